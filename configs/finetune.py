"""Fine-tuning (section 3.2, appendix B.1.1): SGD with momentum, no weight decay, higher resolution.

    vit-jax train --config=configs/finetune.py:model=B/16,data=/my/images --workdir=runs/mine \
        --config.init=weights.npz
    vit-jax train --config=configs/finetune.py:data=tfds:cifar100 --workdir=runs/c100 \
        --config.init=weights.npz --sweep

Classes are counted, positions interpolated, the head starts at zero. `model` may be left out: the
weights say what they are. A part of the training images is held out to validate on (10 % of small
sets, 2 % of CIFAR, 1 % of ImageNet); `held_out=0` trains on all of them. Steps and learning rates
are those of Table 4, for your own data by its size. The rate is one of its grid; `--sweep` tries
them all on what is held out, and then trains on everything with the best, three times. ImageNet has
the settings of Table 2: 512 px for L/16, 518 px for H/14, an average of the weights.

`schedule=tiny` is for a few hundred images or a machine without accelerators: 20 epochs in batches
of 32, in float32. `train=head` freezes the rest, `train=lora` learns low-rank changes of it. Other
ways are keys of vit_jax/train/config.py: `--config.optimizer.layer_decay=0.75`,
`--config.class_weights=balanced`, `--config.loss=sigmoid` for several labels per image,
`--config.best_by=validation/accuracy --config.patience=3` to stop early and keep the best.

Hardware: for B/16 one host with 8 TPU chips; `vit-jax plan` says what else fits.

Published, B/16 pre-trained on JFT-300M for 7 epochs (paper, Table 6): ImageNet 84.15 and CIFAR-10
99.00, CIFAR-100 91.87, Pets 95.80, Flowers-102 99.56.
"""

import re
from typing import NamedTuple

import ml_collections

from vit_jax.data.vtab import TASKS
from vit_jax.errors import UsageError
from vit_jax.models.config import fitting_size
from vit_jax.models.variants import canonical_name, model_config
from vit_jax.train.config import config_arguments, default_config, evaluator


class Row(NamedTuple):
    """Of Table 4. The rate taken without a sweep is the one that AugReg's transfers chose."""

    total: str
    warmup: str
    rate: float
    rates: tuple[float, ...]
    held_out: int  # percent
    train: str = "train"
    test: str = "test"


GRID = (0.001, 0.003, 0.01, 0.03)
TABLE_4 = {
    "imagenet2012": Row(
        "20_000 steps", "500 steps", 0.03, (0.003, 0.01, 0.03, 0.06), 1, test="validation"
    ),
    "cifar100": Row("10_000 steps", "500 steps", 0.01, GRID, 2),
    "cifar10": Row("10_000 steps", "500 steps", 0.003, GRID, 2),
    "oxford_iiit_pet": Row("500 steps", "100 steps", 0.003, GRID, 10),
    "oxford_flowers102": Row("500 steps", "100 steps", 0.003, GRID, 10),
    "vtab": Row("2500 steps", "100 steps", 0.01, (0.01,), 0, train="train800val200"),
}
OWN = Row("by size", "10%", 0.01, GRID, 10)

# ImageNet at the resolution of Table 2, which has an average of the weights besides.
TABLE_2 = {"L/16": 512, "H/14": 518}

TRAINED = ("all", "head", "lora")
SCHEDULES = ("paper", "tiny")


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(
        arguments, model="", data="digits", held_out="", train="all", schedule="paper"
    )
    for key, choices in (("train", TRAINED), ("schedule", SCHEDULES)):
        if getattr(chosen, key) not in choices:
            raise UsageError(
                f"configs/finetune.py:{key}={getattr(chosen, key)}: expected one of "
                f"{', '.join(choices)}"
            )
    data = re.split("[:/]", chosen.data.removeprefix("tfds:"))[0]
    row = TABLE_4.get(data, OWN)
    size = fitting_size(model_config(chosen.model), 384) if chosen.model else 384
    config = default_config(batch_size=512, image_size=size, total=row.total)
    config.model.update(name=chosen.model, dtype="bfloat16")
    config.data.name = chosen.data
    config.optimizer.update(
        name="sgd", learning_rate=row.rate, schedule="cosine", warmup=row.warmup, clip_norm=1.0
    )
    named = chosen.model and canonical_name(chosen.model)
    if data == "imagenet2012" and named in TABLE_2:
        config.image_size = TABLE_2[named]
        config.optimizer.polyak = 0.9999
    if data in ("digits", "glyphs"):  # half a letter, or a mirrored one, is another letter
        config.data.update(crop="resize", flip=False)
    if data == "vtab":  # not every task survives a mirror
        task = TASKS.get(chosen.data.removeprefix("vtab:"))  # an unknown one is told of later
        spoiled_by = task.spoiled_by if task else ()
        config.data.flip = "flip" not in spoiled_by
        config.data.crop = "resize" if "crop" in spoiled_by else "random"
    if chosen.schedule == "tiny":
        config.update(batch_size=32, total="20 epochs")
        config.model.dtype = "float32"
        config.optimizer.warmup = "10%"
    if chosen.train == "head":
        config.optimizer.rate_multipliers = {"head/*": 1.0, "*": 0.0}
    elif chosen.train == "lora":
        config.lora.rank = 8
    hold_out(config, row, percentage(chosen.held_out) if chosen.held_out else row.held_out)
    config.sweep.update(rates=row.rates, final_split=row.train)
    return config


def hold_out(config: ml_collections.ConfigDict, row: Row, percent: int) -> None:
    """Divides the training images; without a part to validate on, the test split is watched."""
    config.data.split = row.train
    if percent:
        config.data.split = f"{row.train}[:{100 - percent}%]"
        config.evaluators.validation = evaluator(
            config.data.name, split=f"{row.train}[{100 - percent}%:]", every="20%"
        )
    config.evaluators.test = evaluator(
        config.data.name, split=row.test, every="100%" if percent else "20%"
    )


def percentage(text: str) -> int:
    if not text.isdecimal() or int(text) >= 100:
        raise UsageError(
            f"configs/finetune.py:held_out={text}: expected a percentage of the training images, "
            f"from 0 to 99"
        )
    return int(text)
