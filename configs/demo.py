"""The demo: pre-train on letters, fine-tune on handwritten digits at a higher resolution.

    vit-jax demo

Hardware: two CPU cores, a few minutes. `stage` is pretrain, finetune or scratch; scratch is the
same fine-tuning from random weights.
"""

import ml_collections

from vit_jax.errors import UsageError
from vit_jax.train.config import config_arguments, default_config, evaluator


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    stage = config_arguments(arguments, stage="pretrain").stage
    stages = {"pretrain": pretrain, "finetune": finetune, "scratch": finetune}
    if stage not in stages:
        raise UsageError(f"configs/demo.py:stage={stage}: expected one of {', '.join(stages)}")
    return stages[stage]()


def pretrain() -> ml_collections.ConfigDict:
    config = default_config(image_size=32, batch_size=64, total="1200 steps")
    config.model.update(name="Pico/8", pooling="gap", position_std=0.1)
    config.data.update(name="glyphs", crop="resize", flip=False)
    config.optimizer.update(learning_rate=1e-3, warmup="10%", weight_decay=0.05, clip_norm=1.0)
    config.evaluators.glyphs = evaluator("glyphs", every="25%")
    return config


def finetune() -> ml_collections.ConfigDict:
    """At 48 px: a grid of 6x6 patches, where pre-training had 4x4."""
    config = default_config(image_size=48, batch_size=64, total="100 steps")
    config.model.update(name="Pico/8", pooling="gap", position_std=0.1)
    config.data.update(name="digits", crop="resize", flip=False)
    config.optimizer.update(name="sgd", learning_rate=0.03, warmup="10%", clip_norm=1.0)
    config.evaluators.digits = evaluator("digits", every="20%")
    config.log_every = "10 steps"
    return config
