"""Masked patch prediction (appendix B.1.2): pre-training without labels.

    vit-jax train --config=configs/masked_patch.py:model=B/16,data=visual_atoms --workdir=runs/mpp
    vit-jax train --config=configs/masked_patch.py:target=pixels,data=/my/images ...

Hardware: for B/16 a v5litepod-256; `vit-jax plan` says what else fits. `target` is mean_colour (the
paper's choice), 4x4_colours or pixels.

Published: B/16 on JFT-300M, 1M steps, fine-tuned on ImageNet: 79.9 %, 2 points above training from
scratch and 4 below supervised pre-training; little is gained after 100k steps (paper, B.1.2).
"""

import ml_collections

from vit_jax.train.config import config_arguments, default_config


def get_config(arguments: str | None = None) -> ml_collections.ConfigDict:
    chosen = config_arguments(arguments, model="B/16", data="visual_atoms", target="mean_colour")
    config = default_config(batch_size=4096, image_size=224, total="1_000_000 steps")
    config.loss = "masked_patch"
    config.masked.update(target=chosen.target, share=0.5)
    # Features are the mean of the patch tokens: nothing here trains the output of a class token.
    config.model.update(name=chosen.model, dtype="bfloat16", pooling="gap")
    config.data.name = chosen.data
    # The paper gives no weight decay or dropout for this one: none.
    config.optimizer.update(learning_rate=2e-4, schedule="cosine", warmup="10_000 steps")
    config.checkpoint_every = "5000 steps"
    return config
