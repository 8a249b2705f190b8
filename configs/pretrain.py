"""Supervised pre-training, every row of the paper's Table 3: Adam, batch 4096, 224 px.

    vit-jax train --config=configs/pretrain.py:model=B/16,data=visual_atoms --workdir=runs/b16
    vit-jax train --config=configs/pretrain.py:model=L/16,data=/my/images,recipe=imagenet21k ...

Hardware: for B/16 a v5litepod-256, for H/14 the same with --config.mesh.fsdp=16, or a v5p-128;
`vit-jax plan` says what else fits. `recipe` is jft (the default), imagenet21k or imagenet.
`visual_atoms` (300M images, procedural) stands in for JFT-300M, `visual_atoms_multi` with several
labels per image.

Published, fine-tuned on ImageNet at 384 px (paper, Table 5). JFT-300M: B/32 80.73, B/16 84.15, L/32
84.37, L/16 87.12 (14 epochs), H/14 88.04. ImageNet-21k: B/16 83.97, B/32 81.28, L/16 85.15, L/32
80.99. ImageNet: B/16 77.91, B/32 73.38, L/16 76.53, L/32 71.16. ResNets and hybrids on JFT-300M
(Table 6): R50x1 77.54, R152x2 84.97, R50+B/16 85.58, R50+L/16 87.12 (14 epochs).
"""

import ml_collections

from vit_jax.errors import UsageError
from vit_jax.models.variants import canonical_name, model_config
from vit_jax.train.config import config_arguments, default_config, evaluator

# Recipe -> model -> (epochs, peak learning rate). Where the paper trains for 7 and for 14 epochs,
# or for 30 and 90, the longer one.
TABLE_3 = {
    "jft": {
        "B/32": (7, 8e-4),
        "B/16": (7, 8e-4),
        "L/32": (7, 6e-4),
        "L/16": (14, 4e-4),
        "H/14": (14, 3e-4),
        "BiT-R50x1": (7, 1e-3),
        "BiT-R50x2": (7, 1e-3),
        "BiT-R101x1": (7, 8e-4),
        "BiT-R152x1": (7, 6e-4),
        "BiT-R152x2": (7, 6e-4),
        "R50+B/32": (7, 8e-4),
        "R50+B/16": (7, 8e-4),
        "R50+L/32": (7, 2e-4),
        "R50+L/16": (14, 4e-4),
    },
    "imagenet21k": {
        "B/32": (90, 1e-3),
        "B/16": (90, 1e-3),
        "L/32": (90, 1e-3),
        "L/16": (90, 1e-3),
    },
    "imagenet": dict.fromkeys(("B/32", "B/16", "L/32", "L/16"), (300, 3e-3)),
}


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(arguments, model="B/16", data="visual_atoms", recipe="jft")
    if chosen.recipe not in TABLE_3:
        raise UsageError(
            f"configs/pretrain.py:recipe={chosen.recipe}: expected one of {', '.join(TABLE_3)}"
        )
    rows, model = TABLE_3[chosen.recipe], canonical_name(chosen.model)
    if model not in rows:
        raise UsageError(
            f"configs/pretrain.py has no recipe for {model} on {chosen.recipe}: choose one of "
            f"{', '.join(rows)}, or --config.model.name=... on top of one"
        )
    epochs, learning_rate = rows[model]
    config = default_config(batch_size=4096, image_size=224, total=f"{epochs} epochs")
    config.model.update(name=model, dtype="bfloat16")
    network = model_config(model)
    if network.family == "vit":
        # Pre-training has a hidden layer before its head, fine-tuning does not (section 3.1).
        config.model.representation_size = network.width
    config.data.name = chosen.data
    config.optimizer.update(
        learning_rate=learning_rate,
        schedule="linear",
        warmup="10_000 steps",
        end_learning_rate=1e-5,
        weight_decay=0.1,
    )
    if chosen.recipe == "imagenet21k":
        config.optimizer.weight_decay = 0.03
        config.model.dropout = 0.1
    elif chosen.recipe == "imagenet":
        config.optimizer.update(schedule="cosine", weight_decay=0.3, clip_norm=1.0)
        config.optimizer.end_learning_rate = 0.0
        config.model.dropout = 0.1
    if chosen.data.endswith("_multi"):
        config.loss = "sigmoid"
        config.model.head_bias = -10.0
    config.evaluators.validation = evaluator(chosen.data, every="5%")
    config.checkpoint_every = "5000 steps"
    return config
