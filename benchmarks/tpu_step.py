"""One train step on a TPU slice, on paper: cycles by kind of work, copies, bytes, utilisation.

    python -m benchmarks.tpu_step                                # the table of RESULTS.md, 224 px
    python -m benchmarks.tpu_step --config=configs/pretrain.py:model=L/16 --topology=v5litepod-64 \\
        --config.batch_size=4096 --change='no scan,no kernels'    # one step, with and without

The step is compiled as a whole by the TPU compiler and needs no TPU. Cycles are the compiler's own
estimates, and for our own kernels their schedule or their bytes, whichever takes longer
(vit_jax/tpu/kernels.py). Each takes minutes; what is in build/tpu_step.json is not compiled again,
and a section of RESULTS.md is written from it.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from benchmarks import results
from vit_jax.models import fused_blocks
from vit_jax.models.encoder import Encoder
from vit_jax.tpu.plan import Plan, Site, make_plan
from vit_jax.tpu.topologies import topology
from vit_jax.train import compiler
from vit_jax.train.chips import V5E
from vit_jax.train.config import RunConfig, default_config, run_config
from vit_jax.train.flags import parse_config

PROGRAM = "tpu_step.py"
KEPT = pathlib.Path("build/tpu_step.json")  # what is compiled already
TOPOLOGY = "v5litepod-16"
# (model, images on each chip, what is changed)
ROWS = [
    ("B/16", 128, ""),
    ("B/16", 64, ""),
    ("L/16", 64, ""),
    ("H/14", 32, ""),
    ("B/16", 128, "remat qkv"),
    ("B/16", 128, "whole last block"),
    ("B/16", 128, "16 MB for an operation"),
    ("L/16", 64, "16 MB for an operation"),
    ("B/16", 128, "gradients apart"),
    ("B/16", 128, "no scan"),
    ("B/16", 64, "no scan"),
    ("B/16", 64, "no kernels"),
    ("B/16", 128, "no kernels"),
    ("H/14", 32, "split matmuls"),
    ("B/16", 128, "GELU anywhere"),
    ("B/16", 128, "no transposed copies"),
    ("B/16", 128, "plain casts"),
    ("L/16", 64, "no scan"),
]


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config", help="one step of a config, with --config.KEY=VALUE")
    parser.add_argument("--topology", default=TOPOLOGY)
    parser.add_argument("--slices", type=int, default=1)
    parser.add_argument("--change", default="", help=f"also so: {', '.join(SETTINGS | PATCHES)}")
    arguments, flags = parser.parse_known_args()
    site = Site.of(topology(arguments.topology, arguments.slices), said)
    if arguments.config:
        config = parse_config([f"--config={arguments.config}", *flags])
        for change in ["", *filter(None, arguments.change.split(","))]:
            print(told(row(run_config(config), site, change)))
        return
    rows = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for model, per_chip, change in ROWS:
        key = f"{model} {per_chip} {change}"
        if key not in rows:
            rows[key] = row(usual(model, per_chip, site), site, change)
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(rows, indent=1))
            print(told(rows[key]))
        results.write(PROGRAM, document(rows))


def usual(model: str, per_chip: int, site: Site) -> RunConfig:
    """Pre-training at 224 px in bfloat16 with AdamW, data-parallel."""
    config = default_config(
        batch_size=per_chip * site.topology.chips, image_size=224, total="1 epoch"
    )
    config.model.update(name=model, dtype="bfloat16")
    config.data.update(name="visual_atoms_1k")
    config.optimizer.update(weight_decay=0.1, clip_norm=1.0)
    if model == "H/14":  # whose parameters and moments are 8 GB
        config.mesh.update(fsdp=site.topology.chips)
    return run_config(config)


def row(config: RunConfig, site: Site, change: str) -> dict[str, Any]:
    """What the compiler says of a step, with one thing changed."""
    model = dataclasses.replace(config.model, **SETTINGS.get(change, {}))
    with PATCHES.get(change, contextlib.nullcontext)():
        jax.clear_caches()
        plan = make_plan(dataclasses.replace(config, model=model), site)
    return figures(plan) | {"changed": change}


def figures(plan: Plan) -> dict[str, Any]:
    found = {
        "model": plan.model,
        "topology": plan.topology.name,
        "per_chip": plan.batch_size // plan.topology.chips,
        "remat": plan.remat,
        "temporaries": plan.memory.temporaries,
        "compile_seconds": plan.compile_seconds,
    }
    if plan.cost is None:
        return found
    return found | {
        "cycles": plan.cost.cycles,
        "waiting": plan.cost.waiting,
        "without_estimate": plan.cost.without_estimate,
        "images_per_second": plan.images_per_second / plan.topology.chips,
        "utilization": plan.utilization,
        "work": {w.kind: [w.count, w.cycles, w.bytes] for w in plan.cost.work},
    }


# ---- what is changed: settings of the network, or code put back as it would be without the trick

SETTINGS: dict[str, dict[str, Any]] = {
    "remat qkv": {"remat": "qkv"},
    "no scan": {"scan": False},
    "no kernels": {"attention": "plain"},
}


def _plain_cast(weights: fused_blocks.Weights, dtype: Any) -> fused_blocks.Weights:
    """Left to the compiler."""
    kernels = {"qkv", "out", "up", "down"}
    pairs = weights._asdict().items()
    return fused_blocks.Weights(*(x.astype(dtype) if k in kernels else x for k, x in pairs))


def _with_whole_last_block() -> contextlib.AbstractContextManager:
    """Also where one token of it is read."""
    run = Encoder._written_out
    return mock.patch.object(
        Encoder, "_written_out", lambda self, x, _, *others: run(self, x, False, *others)
    )


def _told(options: dict[str, str]) -> contextlib.AbstractContextManager:
    """The compiler, for v5e, instead of what it is told."""
    return mock.patch.dict(compiler.OPTIONS, {V5E: options})


PATCHES: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "split matmuls": lambda: _told(compiler._ROOM_FOR_MATMULS),
    "16 MB for an operation": lambda: _told(compiler._NO_SPLIT_MATMULS),
    "gradients apart": lambda: mock.patch.object(fused_blocks, "_is_cast", lambda weights: False),
    "GELU anywhere": lambda: mock.patch.object(fused_blocks, "_apart", lambda hidden: hidden),
    "no transposed copies": lambda: mock.patch.object(fused_blocks, "_transposed", lambda w: w.T),
    "whole last block": _with_whole_last_block,
    "plain casts": lambda: mock.patch.object(fused_blocks, "_cast", _plain_cast),
}


# ---- in words


def told(found: dict[str, Any]) -> str:
    changed = f", {found['changed']}" if found["changed"] else ""
    head = f"{found['model']}, {found['per_chip']} images a chip of {found['topology']}{changed}: "
    if "cycles" not in found:
        return f"{head}does not fit, {found['temporaries'] / 1e9:.1f} GB of temporaries"
    lines = [
        f"{head}{found['cycles'] / 1e6:,.1f} M cycles, {found['images_per_second']:,.0f} images/s "
        f"a chip, {found['utilization']:.1%} of peak, {found['temporaries'] / 1e9:.2f} GB of "
        f"temporaries, compiled in {found['compile_seconds']:.0f} s"
    ]
    for kind, (count, cycles, moved) in found["work"].items():
        lines.append(f"  {kind:12} {count:6} {cycles / 1e6:8.1f} M cycles {moved / 1e9:8.1f} GB")
    return "\n".join(lines)


def document(rows: dict[str, dict[str, Any]]) -> str:
    """The section of RESULTS.md."""
    kinds = ("matmul", "kernel", "reduction", "elementwise", "copy")
    lines = [
        "## A train step on TPU, on paper",
        "",
        f"Written by `benchmarks/tpu_step.py` on {time.strftime('%Y-%m-%d')} with libtpu "
        f"{importlib.metadata.version('libtpu')} and jax {jax.__version__}: the whole step (AdamW, "
        f"bfloat16, 224 px) compiled for {TOPOLOGY}, no TPU was there. Millions of cycles, by the "
        "compiler's estimates and our kernels' own figures. `changed`: one thing put back or "
        "set otherwise; compile times are of a machine that others used as well.",
        "",
        "| model | images a chip | changed | M cycles | "
        + " | ".join(kinds)
        + " | images/s a chip | of peak | GB temporaries | compiled in s |",
        "|---|--:|---|--:|" + "--:|" * (len(kinds) + 4),
    ]
    for found in rows.values():
        start = f"| {found['model']} | {found['per_chip']} | {found['changed'] or '-'} |"
        temporaries = f"{found['temporaries'] / 1e9:.2f}"
        if "cycles" not in found:
            lines.append(f"{start} does not fit |" + " |" * len(kinds) + f" | | {temporaries} | |")
            continue
        work = (found["work"].get(kind, [0, 0, 0])[1] / 1e6 for kind in kinds)
        lines.append(
            f"{start} {found['cycles'] / 1e6:.1f} | "
            + " | ".join(f"{cycles:.1f}" for cycles in work)
            + f" | {found['images_per_second']:,.0f} | {found['utilization']:.1%} | {temporaries} "
            f"| {found['compile_seconds']:.0f} |"
        )
    return "\n".join(lines)


def said(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    main()
