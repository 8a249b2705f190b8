"""The largest ViTs (Zhai et al., 2021, "Scaling Vision Transformers"): g/14 and G/14 with FSDP.

    vit-jax train --config=configs/scaling.py:model=G/14,data=visual_atoms_multi --workdir=runs/G
    vit-jax plan --config=configs/scaling.py:model=G/14 --topology=v5p-512

Hardware: a v5p-512 or larger; `vit-jax plan` says what else fits. Parameters and moments are
split over groups of 8 chips (--config.mesh.fsdp=N: of N, which must divide the width).

Published, pre-trained on JFT-3B for 1M steps of 16,384 images: G/14 90.45 % on ImageNet after
fine-tuning at 518 px (configs/finetune.py with --config.image_size=518), 84.86 % with 10 examples
of each class.
"""

import ml_collections

from vit_jax.train.config import config_arguments, default_config, evaluator


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(arguments, model="G/14", data="visual_atoms_multi")
    config = default_config(batch_size=16_384, image_size=224, total="1_000_000 steps")
    config.loss = "sigmoid"
    config.model.update(
        name=chosen.model, dtype="bfloat16", pooling="map", head_bias=-10.0, remat="full"
    )
    config.mesh.update(replica=-1, fsdp=8)
    config.data.name = chosen.data
    config.optimizer.update(
        name="adafactor",
        moment_dtype="bfloat16",
        learning_rate=8e-4,
        schedule="rsqrt",
        timescale="10_000 steps",
        warmup="10_000 steps",
        cooldown="50_000 steps",
        weight_decay=0.03,
        clip_norm=1.0,
    )
    # A hundred times as much on the head: features that separate by a wide margin, for few-shot.
    config.optimizer.decay_multipliers = {"head/kernel": 100.0}
    config.evaluators.validation = evaluator(chosen.data, every="2%")
    config.checkpoint_every = "2000 steps"
    return config
