"""The main job on built-in data: pre-train, fine-tune at a higher resolution, few-shot, report.

Beside each result stands the same from random initialisation.
"""

import pathlib
import shutil
from typing import Any

from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate.fewshot import FewShot
from vit_jax.insight.page import paragraph, table
from vit_jax.insight.report import write_report
from vit_jax.models.heads import Classifier
from vit_jax.models.network import create_from_config
from vit_jax.tpu.plan import Site, make_plan
from vit_jax.tpu.topologies import topology
from vit_jax.train.config import RunConfig, run_config
from vit_jax.train.flags import load_config
from vit_jax.train.loop import train
from vit_jax.weights.load import load
from vit_jax.weights.run_folder import RunFolder, read_json, write_json

STAGES = ("pretrain", "finetune", "scratch")
SHOTS = (1, 5, 10, 25)
SLICE = "v5litepod-4"


def demo(workdir: pathlib.Path, *, fresh: bool = False) -> dict[str, Any]:
    """Runs what is not done yet, prints a table, and returns what summary.json holds."""
    summary_path = workdir / "summary.json"
    if fresh:
        _delete(workdir)
    if summary_path.is_file():
        print("The demo is done already; `make demo FRESH=1` starts over. Its results:\n")
    else:
        summary = _run(workdir)
        _write_report(workdir, summary)
        write_json(summary_path, summary)  # last: it is what says that the demo is done
    summary = read_json(summary_path)
    print(_text(summary))
    print(f"\nreport: {workdir / 'report.html'}")
    return summary


def _run(workdir: pathlib.Path) -> dict[str, Any]:
    summaries = {}
    for stage in STAGES:
        config = load_config(f"configs/demo.py:stage={stage}")
        if stage == "finetune":
            config.init = str(workdir / "pretrain")
        summaries[stage] = train(run_config(config), workdir / stage)
        _plan(run_config(config), RunFolder(workdir / stage))
    pretrained = load(workdir / "pretrain")
    random = create_from_config(pretrained.config, seed=0)
    print("few-shot evaluation of the pre-trained and of a random network ...", flush=True)
    return {
        "pretrain": summaries["pretrain"],
        "finetune": summaries["finetune"],
        "finetune_from_scratch": summaries["scratch"],
        "fewshot": {"pretrained": _fewshot(pretrained), "random": _fewshot(random)},
    }


def _plan(config: RunConfig, folder: RunFolder) -> None:
    """What the same would take of a small TPU slice: by estimate, which needs no compiler."""
    site = Site(topology(SLICE), devices=None)
    write_json(folder.plan, make_plan(config, site).as_dict())


def _fewshot(model: Classifier) -> dict[str, dict[str, float]]:
    train_split, test_split = (
        open_source("digits", split, model.config.image_size) for split in ("train", "test")
    )
    results = FewShot(train_split, test_split, SHOTS, seeds=5)(model)
    return {str(k): {"mean": results[f"{k}_shot"], "std": results[f"{k}_shot_std"]} for k in SHOTS}


def _delete(workdir: pathlib.Path) -> None:
    """Only what a demo made: a folder with something else in it is left alone."""
    if not workdir.exists():
        return
    strangers = {p.name for p in workdir.iterdir()} - {*STAGES, "summary.json", "report.html"}
    if strangers:
        raise UsageError(
            f"{workdir} holds more than a demo ({', '.join(sorted(strangers))}): move that away, "
            f"or choose another --workdir"
        )
    shutil.rmtree(workdir)


def _text(summary: dict[str, Any]) -> str:
    header, rows = _table(summary)
    return "\n".join(
        f"{row[0]:34}" + "".join(f"{cell:>16}" for cell in row[1:]) for row in [header, *rows]
    )


def _table(summary: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    fewshot = summary["fewshot"]
    rows = [
        (
            f"{shot}-shot",
            *(
                "{mean:.1%} ± {std:.1%}".format(**fewshot[kind][str(shot)])
                for kind in ("pretrained", "random")
            ),
        )
        for shot in SHOTS
    ]
    rows.append(
        (
            f"fine-tuned, {summary['finetune']['steps']} steps",
            *(
                f"{summary[key]['metrics']['digits/accuracy']:.1%}"
                for key in ("finetune", "finetune_from_scratch")
            ),
        )
    )
    return ("accuracy on digits", "pre-trained", "random"), rows


def _write_report(workdir: pathlib.Path, summary: dict[str, Any]) -> None:
    pretrain = summary["pretrain"]
    top = [
        paragraph(
            f"A small Vision Transformer saw {pretrain['examples']:,} images of letters in "
            f"{pretrain['seconds']:.0f} seconds, and then handwritten digits, of which it had "
            f"seen none. Beside it stands the same network from random initialisation."
        ),
        table(*_table(summary)),
    ]
    write_report(
        [workdir / stage for stage in STAGES],
        workdir / "report.html",
        title="vit_jax demo",
        top=top,
        fewshot=summary["fewshot"],
        note=lambda text: print(text, flush=True),
    )
