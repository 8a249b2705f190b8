"""What the scale of fresh position embeddings is worth in a short run.

    python benchmarks/positions.py [STEPS]

Pre-trains the demo's network on glyphs for STEPS steps (default 700) with several values of
`position_std`, and prints 10-shot accuracy on digits before and after.
"""

import sys
import tempfile

from vit_jax.data.sources import open_source
from vit_jax.evaluate.fewshot import FewShot
from vit_jax.models.network import create_from_config
from vit_jax.train.config import run_config
from vit_jax.train.flags import load_config
from vit_jax.train.loop import train
from vit_jax.weights.load import load

VALUES = (0.02, 0.1, 0.3)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 700
    rows = []
    for value in VALUES:
        config = load_config("configs/demo.py:stage=pretrain")
        config.total = f"{steps} steps"
        config.model.position_std = value
        with tempfile.TemporaryDirectory() as workdir:
            summary = train(run_config(config), workdir)
            trained = load(workdir)
        fresh = create_from_config(trained.config)
        accuracies = [ten_shot(model) for model in (fresh, trained)]
        rows.append((value, *accuracies, summary["metrics"]["train/loss"]))
    print(f"\n{'position_std':>12} {'10-shot before':>15} {'after':>7} {'loss':>7}")
    for value, before, after, loss in rows:
        print(f"{value:12} {before:15.1%} {after:7.1%} {loss:7.3f}")


def ten_shot(model) -> float:
    size = model.config.image_size
    evaluate = FewShot(*(open_source("digits", split, size) for split in ("train", "test")), (10,))
    return evaluate(model)["10_shot"]


if __name__ == "__main__":
    main()
