"""Augmentation and regularisation in their best proportion (Steiner et al., 2021: "AugReg").

    vit-jax train --config=configs/augreg.py:model=B/16,data=visual_atoms --workdir=runs/b16
    vit-jax train --config=configs/augreg.py:model=S/16,data=/my/images,augment=medium1 ...

Hardware: for B/16 a v5litepod-256; `vit-jax plan` says what else fits. `recipe` is imagenet21k or
imagenet, 300 epochs each; for the latter the authors recommend no single setting, and those of
ImageNet-21k are taken, except for the head's bias. `augment` is none, light1, light2, medium1,
medium2, strong1 or strong2; left out, it is what they recommend for the model on ImageNet-21k.

Published, pre-trained on ImageNet-21k, fine-tuned on ImageNet at 384 px (the vision_transformer
repository): Ti/16 78.22, S/32 79.58, S/16 83.73, B/32 83.59, B/16 85.49, L/16 85.59, R+Ti/16 75.40,
R26+S/32 83.85, R50+L/32 85.99.
"""

import ml_collections

from vit_jax.errors import UsageError, closest
from vit_jax.models.variants import canonical_name
from vit_jax.train.config import config_arguments, default_config, evaluator

# Name -> (alpha of mixup, layers and magnitude of RandAugment).
AUGMENT = {
    "none": (0.0, 0, 0),
    "light1": (0.0, 2, 0),
    "light2": (0.2, 2, 10),
    "medium1": (0.2, 2, 15),
    "medium2": (0.5, 2, 15),
    "strong1": (0.5, 2, 20),
    "strong2": (0.8, 2, 20),
}

# Model -> (augmentation, weight decay, dropout and stochastic depth).
RECOMMENDED = {
    "Ti/16": ("none", 0.03, 0.0),
    "S/32": ("none", 0.1, 0.0),
    "S/16": ("light1", 0.03, 0.0),
    "B/32": ("light1", 0.1, 0.0),
    "B/16": ("medium1", 0.1, 0.0),
    "B/8": ("medium2", 0.1, 0.0),
    "L/16": ("strong1", 0.1, 0.0),
    "R+Ti/16": ("none", 0.03, 0.0),
    "R26+S/32": ("light1", 0.1, 0.0),
    "R50+L/32": ("medium1", 0.1, 0.1),
}


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(
        arguments, model="B/16", data="visual_atoms", recipe="imagenet21k", augment=""
    )
    model = canonical_name(chosen.model)
    if model not in RECOMMENDED:
        raise UsageError(
            f"configs/augreg.py has no recipe for {model}: choose one of {', '.join(RECOMMENDED)}, "
            f"or --config.model.name=... on top of one"
        )
    augment, weight_decay, noise = RECOMMENDED[model]
    augment = chosen.augment or augment
    for what, value, choices in (
        ("augment", augment, AUGMENT),
        ("recipe", chosen.recipe, ("imagenet21k", "imagenet")),
    ):
        if value not in choices:
            raise UsageError(
                f"configs/augreg.py:{what}={value}: expected one of {', '.join(choices)}."
                f"{closest(value, choices)}"
            )
    mixup, layers, magnitude = AUGMENT[augment]
    config = default_config(batch_size=4096, image_size=224, total="300 epochs", loss="sigmoid")
    config.model.update(name=model, dtype="bfloat16", dropout=noise, stochastic_depth=noise)
    config.model.head_bias = -10.0 if chosen.recipe == "imagenet21k" else -6.9
    config.data.name = chosen.data
    config.augment.update(mixup=mixup, randaugment_layers=layers, randaugment_magnitude=magnitude)
    config.optimizer.update(
        learning_rate=1e-3,
        schedule="cosine",
        warmup="10_000 steps",
        weight_decay=weight_decay,
        clip_norm=1.0,
    )
    config.evaluators.validation = evaluator(chosen.data, every="5%")
    config.checkpoint_every = "5000 steps"
    return config
