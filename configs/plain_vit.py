"""A better plain ViT for ImageNet-1k (Beyer, Zhai, Kolesnikov, 2022): S/16, little else.

    vit-jax train --config=configs/plain_vit.py:data=/my/imagenet --workdir=runs/s16

Hardware: 8 TPU v3 cores, 6 to 7 hours for 90 epochs (published), or a v5litepod-8.

Published top-1 on ImageNet validation, 224 px: 76.5 % after 90 epochs, 80.0 % after 300 (set
--config.total="300 epochs"). They train on the first 99 % of the training split.
"""

import ml_collections

from vit_jax.train.config import config_arguments, default_config, evaluator


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(arguments, model="S/16", data="visual_atoms_1k")
    config = default_config(batch_size=1024, image_size=224, total="90 epochs")
    config.model.update(name=chosen.model, dtype="bfloat16", pooling="gap", positions="sincos2d")
    config.data.name = chosen.data
    config.augment.update(mixup=0.2, randaugment_layers=2, randaugment_magnitude=10)
    config.optimizer.update(
        learning_rate=1e-3,
        schedule="cosine",
        warmup="10_000 steps",
        weight_decay=0.1,  # times the learning rate: their 1e-4, which is not
        clip_norm=1.0,
        moment_dtype="bfloat16",
    )
    config.evaluators.validation = evaluator(chosen.data, every="5%")
    config.checkpoint_every = "5000 steps"
    return config
