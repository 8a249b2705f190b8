"""What pre-training without labels is worth: masked patches against labels and against nothing.

    python benchmarks/masked_patch.py [--steps=1200] [--workdir=runs/masked_patch]

The demo's network on the demo's letters, as many images for each: with labels, by each of the three
targets of masked patch prediction (appendix B.1.2), and not at all. Prints the loss of the last
steps beside that of the best guess without a look at the image (for colours: always the
frequencies of the colours), and 10-shot accuracy on handwritten digits. About 15 minutes on two
cores; a run that was interrupted goes on.
"""

import argparse
import pathlib
import statistics

from vit_jax.data.sources import open_source
from vit_jax.evaluate.fewshot import FewShot
from vit_jax.models.heads import Classifier
from vit_jax.models.network import create_from_config
from vit_jax.train.config import run_config
from vit_jax.train.flags import load_config
from vit_jax.train.loop import train
from vit_jax.train.masked_patch import TARGETS
from vit_jax.weights.load import load
from vit_jax.weights.run_folder import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/masked_patch"))
    arguments = parser.parse_args()

    rows = []
    for target in ("labels", *TARGETS):
        folder = arguments.workdir / target
        config = load_config("configs/demo.py:stage=pretrain")
        config.update(total=f"{arguments.steps} steps", log_every="10 steps")
        del config.evaluators.glyphs
        if target != "labels":
            config.loss = "masked_patch"
            config.masked.target = target
        train(run_config(config), folder)
        model = load(folder)
        rows.append((target, *_losses(folder), _ten_shot(model)))
    rows.append(("nothing", None, None, _ten_shot(create_from_config(model.config))))

    print(f"\n{'learned from':14}{'loss':>8}{'constant':>10}{'10-shot on digits':>20}")
    for target, loss, constant, shots in rows:
        cells = (f"{value:.3f}" if value is not None else "-" for value in (loss, constant))
        print(f"{target:14}{next(cells):>8}{next(cells):>10}{shots:>20}")


def _losses(folder: pathlib.Path) -> tuple[float | None, ...]:
    """Medians of the last ten records: the loss, and that of a constant guess."""
    records = RunFolder(folder).metrics_records()[-10:]
    return tuple(
        statistics.median(record[key] for record in records) if key in records[-1] else None
        for key in ("train/loss", "train/constant_loss")
    )


def _ten_shot(model: Classifier) -> str:
    splits = (open_source("digits", split, model.config.image_size) for split in ("train", "test"))
    results = FewShot(*splits, (10,), seeds=5)(model)
    return f"{results['10_shot']:.1%} ± {results['10_shot_std']:.1%}"


if __name__ == "__main__":
    main()
