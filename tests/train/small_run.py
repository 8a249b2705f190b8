"""A run small enough for tests, on real built-in data."""

import ml_collections

from vit_jax.train.config import default_config


def small_config(**values) -> ml_collections.ConfigDict:
    config = default_config(
        **{
            "image_size": 16,
            "batch_size": 16,
            "total": "12 steps",
            "log_every": "2 steps",
            "checkpoint_every": "5 steps",
            **values,
        }
    )
    # Eight devices step through all parameters, in code that is not optimised: few of them.
    config.model.update(name="Pico/8", width=48, mlp_dim=96, dropout=0.1, stochastic_depth=0.1)
    config.data.update(name="digits", crop="inception", flip=True)
    config.optimizer.update(warmup="10%", weight_decay=0.1, clip_norm=1.0)
    return config
