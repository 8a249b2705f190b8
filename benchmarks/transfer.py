"""What pre-training on visual_atoms is worth on a folder of photographs, against no pre-training.

    python benchmarks/transfer.py /my/images [--workdir=runs/transfer] [--steps=1500] [--size=40]

A small ViT learns a hundred thousand procedural images; then it, and the same network from random
weights, are fine-tuned on the folder at a higher resolution with the same recipe, each with the
learning rate that a sweep on held-out images chose for it, three seeds each; and both are evaluated
few-shot. Half an hour on two CPU cores; started again, it goes on where it was.
"""

import argparse
import pathlib

import ml_collections

from vit_jax.data.sources import open_source
from vit_jax.evaluate.fewshot import FewShot
from vit_jax.models.network import create_from_config
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.flags import load_config
from vit_jax.train.loop import train
from vit_jax.train.sweep import sweep
from vit_jax.weights.load import load

MODEL = {"name": "Pico/4", "pooling": "gap", "position_std": 0.3}
SHOTS = (1, 5, 10, 25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="one folder per class")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/transfer"))
    parser.add_argument("--steps", type=int, default=1500, help="of pre-training, 64 images each")
    parser.add_argument("--size", type=int, default=40, help="of images in fine-tuning")
    arguments = parser.parse_args()
    before = arguments.workdir / "pretrain"
    train(run_config(pretraining(arguments.steps)), before)

    results = {}
    for name, init in (("pre-trained", str(before)), ("from scratch", "")):
        config = fine_tuning(arguments.data, arguments.size, init)
        found = sweep(run_config(config), arguments.workdir / name.replace(" ", "_"))
        results[name] = found | {"few-shot": fewshot(arguments.data, before, is_random=not init)}
    print(f"{'accuracy, %':24}" + "".join(f"{name:>16}" for name in results))
    for shot in SHOTS:
        cells = [_cell(r["few-shot"][f"{shot}_shot"], r["few-shot"][f"{shot}_shot_std"])
                 for r in results.values()]  # fmt: skip
        print(f"{f'{shot}-shot':24}" + "".join(f"{cell:>16}" for cell in cells))
    tuned = [r["results"]["test/accuracy"] for r in results.values()]
    print(f"{'fine-tuned':24}" + "".join(f"{_cell(t['mean'], t['std']):>16}" for t in tuned))
    rates = [r["learning_rate"] for r in results.values()]
    print(f"{'  at learning rate':24}" + "".join(f"{rate:>16g}" for rate in rates))


def pretraining(steps: int) -> ml_collections.ConfigDict:
    """The demo's recipe, on atoms."""
    config = load_config("configs/demo.py")
    config.total = f"{steps} steps"
    config.model.update(MODEL)
    config.data.name = "visual_atoms_mini"
    config.evaluators.clear()
    config.evaluators.atoms = evaluator("visual_atoms_mini", split="test[:1000]", every="50%")
    config.optimizer.learning_rate = 2e-3
    return config


def fine_tuning(data: str, size: int, init: str) -> ml_collections.ConfigDict:
    config = load_config(f"configs/finetune.py:data={data},schedule=tiny")
    config.update(init=init, image_size=size, total="10 epochs")
    config.model.update(MODEL)
    config.sweep.rates = (0.01, 0.03)
    return config


def fewshot(data: str, weights: pathlib.Path, *, is_random: bool) -> dict[str, float]:
    model = load(weights)
    if is_random:
        model = create_from_config(model.config, seed=0)
    splits = [open_source(data, split, model.config.image_size) for split in ("train", "test")]
    return FewShot(*splits, shots=SHOTS, seeds=5)(model)


def _cell(mean: float, deviation: float) -> str:
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}"


if __name__ == "__main__":
    main()
