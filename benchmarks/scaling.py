"""Weak scaling on paper: the same images on each chip, more and more chips, by compilation.

    python benchmarks/scaling.py [--models=B/16,L/16] [--most-chips=64] [--out=docs/scaling.md]

Compiles the whole train step of each model for slices of v5e from 4 to 256 chips, then for 2 and 4
slices of 256, and writes what `vit-jax plan` says as a table, with H/14's whole schedule beside the
paper's; then every shipped pre-training config, at full depth, for the slice that it names. Each
compilation takes a minute or several and no TPU; what is already in build/scaling.json is not
compiled again (delete it after a change of the model).
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from vit_jax.tpu.plan import Plan, Site, make_plan
from vit_jax.tpu.topologies import topology
from vit_jax.train.config import RunConfig, run_config
from vit_jax.train.flags import load_config

# Model -> (config, images on each chip, what else it needs to fit 16 GiB).
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "B/16": ("configs/pretrain.py:model=B/16", 32, {}),
    "L/16": ("configs/pretrain.py:model=L/16", 16, {}),
    "H/14": ("configs/pretrain.py:model=H/14", 16, {"mesh.fsdp": 16}),
    "G/14": ("configs/scaling.py:model=G/14", 16, {}),
}
# (slice, number of them)
SLICES = [(f"v5litepod-{n}", 1) for n in (4, 16, 64, 256)] + [
    ("v5litepod-256", 2),
    ("v5litepod-256", 4),
]
PAPER_CORE_DAYS = 2500  # TPUv3, H/14 on JFT-300M (Table 2)
CONFIGS = ("pretrain", "masked_patch", "augreg", "plain_vit", "scaling")  # that name a slice
KEPT = pathlib.Path("build/scaling.json")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--most-chips", type=int, default=1024)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/scaling.md"))
    arguments = parser.parse_args()
    rows = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    KEPT.parent.mkdir(exist_ok=True)
    wanted = [
        (f"{model} {slices} x {name}", topology(name, slices), model)
        for model in arguments.models.split(",")
        for name, slices in SLICES
    ]
    wanted += [(f"configs/{name}.py", topology(named_slice(name)), None) for name in CONFIGS]
    wanted = [
        (key, slice_, model)
        for key, slice_, model in wanted
        if key not in rows and slice_.chips <= arguments.most_chips
    ]
    for number, (key, slice_, model) in enumerate(wanted):
        said(f"{number + 1} of {len(wanted)}: {key}")
        run = weak(model, slice_.chips) if model else run_config(load_config(key))
        rows[key] = row(make_plan(run, Site.of(slice_, said)))
        KEPT.write_text(json.dumps(rows, indent=1))
    arguments.out.write_text(document(rows))


def named_slice(config: str) -> str:
    """The slice that a config's opening names."""
    opening = pathlib.Path(f"configs/{config}.py").read_text().split('"""')[1]
    return re.search(r"^Hardware: [^.]*?\b(v\w+-\d+)", opening, re.MULTILINE)[1]


def weak(model: str, chips: int) -> RunConfig:
    """The model's run with so many images on each chip."""
    location, per_chip, changes = MODELS[model]
    config = load_config(location)
    config.batch_size = per_chip * chips
    config.update_from_flattened_dict(changes)
    config.mesh.fsdp = min(config.mesh.fsdp, chips)
    return run_config(config)


def row(plan: Plan) -> dict[str, Any]:
    """What the table shows of a plan, and what it needs for that."""
    found = {"model": plan.model, "topology": plan.topology.name, "slices": plan.topology.slices}
    found |= {"chips": plan.topology.chips, "fits": plan.fits, "bytes": plan.memory.total}
    found |= {"total_images": plan.total_steps * plan.batch_size}
    if plan.cost:
        sent = {"ICI": 0, "DCN": 0}
        for collective in plan.cost.collectives:
            sent[collective.network] += collective.bytes
        found |= {"cycles": plan.cost.cycles, "step_seconds": plan.step_seconds, "sent": sent}
        found |= {"images_per_second": plan.images_per_second, "utilization": plan.utilization}
    return found


def document(rows: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    scaled = [r for key, r in rows.items() if not key.startswith("configs/")]
    order = list(MODELS)
    scaled.sort(key=lambda r: (order.index(r["model"]), r["chips"]))
    libtpu, jax = (importlib.metadata.version(name) for name in ("libtpu", "jax"))
    date = time.strftime("%Y-%m-%d")
    per_chip = "; ".join(
        f"{model}: {images}" + "".join(f", {key}={value}" for key, value in changes.items())
        for model, (_, images, changes) in MODELS.items()
    )
    lines = [
        "# Scale on paper",
        "",
        f"Written by `benchmarks/scaling.py` ({date}, libtpu {libtpu}, jax {jax}):",
        "the real train step, compiled by the TPU compiler for slices that were not there. Times",
        "are the compiler's own estimates, replayed (`vit_jax/tpu/cost.py`); nothing here was",
        "measured on a TPU. The images on each chip stay the same, so perfect scaling is the same",
        f"step time in every row of a model ({per_chip}).",
        "",
        _header("model"),
        *(_line(found["model"], found) for found in scaled),
        "",
        *paper_lines(rows),
        "",
        "Every shipped pre-training config, at full depth, on the slice that it names:",
        "",
        _header("config"),
        *(_line(f"`{key}`", found) for key, found in rows.items() if key.startswith("configs/")),
    ]
    return "\n".join(lines) + "\n"


def _header(first: str) -> str:
    cells = (
        "slice | chips | GiB a chip | M cycles | MB over ICI | MB over DCN | ms a step | images/s"
    )
    return f"| {first} | {cells} | utilisation |\n|---|---|" + "--:|" * 8


def _line(first: str, found: dict[str, Any]) -> str:
    slices = f"{found['slices']} x " if found["slices"] > 1 else ""
    start = f"| {first} | {slices}{found['topology']} | {found['chips']} | "
    start += f"{found['bytes'] / 2**30:.1f} |"
    if not found["fits"]:
        return f"{start} does not fit | | | | | |"
    return (
        f"{start} {found['cycles'] / 1e6:,.0f} | {found['sent']['ICI'] / 1e6:,.0f} | "
        f"{found['sent']['DCN'] / 1e6:,.0f} | {1e3 * found['step_seconds']:.1f} | "
        f"{found['images_per_second']:,.0f} | {found['utilization']:.1%} |"
    )


def paper_lines(rows: dict[str, dict[str, Any]]) -> list[str]:
    """H/14's whole schedule on JFT-300M beside the paper's."""
    of_h = [r for r in rows.values() if r["model"] == "H/14" and r["fits"] and r["slices"] == 1]
    if not of_h:
        return []
    found = max(of_h, key=lambda r: r["chips"])
    days = found["total_images"] / found["images_per_second"] * found["chips"] / 86_400
    return [
        f"H/14 for {found['total_images'] / 1e9:.1f}G images (14 epochs of 300M, as on JFT-300M) "
        f"on {found['topology']}: {days:,.0f} chip-days of v5e by these estimates; the paper's "
        f"Table 2 says {PAPER_CORE_DAYS:,} TPUv3-core-days.",
    ]


def said(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    main()
