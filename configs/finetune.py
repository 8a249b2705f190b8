"""Fine-tuning (section 3.2, appendix B.1.1): SGD with momentum, no weight decay, higher resolution.

    vit-jax train --config=configs/finetune.py:model=B/16,data=/my/images --workdir=runs/mine \
        --config.init=runs/b16

`data` is a built-in data set or a folder of class folders. The head starts at zero, positions are
interpolated. 384 px, batch 512, cosine decay, as in Table 4; steps and rate are those it gives
for small data sets, the rate being one of its grid (0.001, 0.003, 0.01, 0.03).

Hardware: for B/16 one host with 8 TPU chips; `vit-jax plan` says what else fits.

Published, B/16 pre-trained on JFT-300M for 7 epochs (paper, Table 6): ImageNet 84.15 and CIFAR-10
99.00, CIFAR-100 91.87, Pets 95.80, Flowers-102 99.56 (20,000 steps for ImageNet, 10,000 for CIFAR).
"""

import ml_collections

from vit_jax.data.vtab import TASKS
from vit_jax.train.config import config_arguments, default_config, evaluator


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(arguments, model="B/16", data="digits")
    config = default_config(batch_size=512, image_size=384, total="500 steps")
    config.model.update(name=chosen.model, dtype="bfloat16")
    config.data.name = chosen.data
    if chosen.data in ("digits", "glyphs"):  # half a letter, or a mirrored one, is another letter
        config.data.update(crop="resize", flip=False)
    config.optimizer.update(
        name="sgd", learning_rate=0.01, schedule="cosine", warmup="100 steps", clip_norm=1.0
    )
    if chosen.data.startswith("vtab:"):  # 800 + 200 images; not every task survives a mirror
        task = TASKS.get(chosen.data.removeprefix("vtab:"))  # an unknown one is told of later
        spoiled_by = task.spoiled_by if task else ()
        config.data.update(split="train800val200", flip="flip" not in spoiled_by)
        config.data.crop = "resize" if "crop" in spoiled_by else "random"
        config.total = "2500 steps"
    config.evaluators.test = evaluator(chosen.data, every="20%")
    return config
