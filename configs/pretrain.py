"""Supervised pre-training (Table 3): Adam, batch 4096, 224 px, linear decay, 10k steps of warm-up.

    vit-jax train --config=configs/pretrain.py:model=B/16,data=visual_atoms --workdir=runs/b16

Hardware: a TPU slice; `vit-jax plan` says which one fits. The rows are those for JFT-300M, for
which `visual_atoms` (300M images, procedural) stands in, `visual_atoms_multi` with several labels
per image. Published for JFT-300M, fine-tuned on ImageNet at 384 px (paper, Table 5): B/32 80.73,
B/16 84.15, L/32 84.37, L/16 87.12 (14 epochs), H/14 88.04.
"""

import ml_collections

from vit_jax.errors import UsageError
from vit_jax.train.config import config_arguments, default_config

# Model -> (epochs, peak learning rate).
TABLE_3_JFT = {
    "B/32": (7, 8e-4),
    "B/16": (7, 8e-4),
    "L/32": (7, 6e-4),
    "L/16": (14, 4e-4),
    "H/14": (14, 3e-4),
}


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(arguments, model="B/16", data="visual_atoms")
    if chosen.model not in TABLE_3_JFT:
        raise UsageError(
            f"configs/pretrain.py has no recipe for {chosen.model}: choose one of "
            f"{', '.join(TABLE_3_JFT)}, or --config.model.name=... on top of one"
        )
    epochs, learning_rate = TABLE_3_JFT[chosen.model]
    config = default_config(batch_size=4096, image_size=224, total=f"{epochs} epochs")
    config.model.update(name=chosen.model, dtype="bfloat16")
    config.data.name = chosen.data
    config.optimizer.update(
        learning_rate=learning_rate,
        schedule="linear",
        warmup="10_000 steps",
        end_learning_rate=1e-5,
        weight_decay=0.1,
    )
    if chosen.data.endswith("_multi"):
        config.loss = "sigmoid"
        config.model.head_bias = -10.0
    config.checkpoint_every = "5000 steps"
    return config
