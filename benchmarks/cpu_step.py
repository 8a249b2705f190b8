"""A forward pass and a train step on this machine's CPU: ours beside other people's ViT.

    pip install -e '.[bench]'
    python -m benchmarks.cpu_step [--cases=S/16:8,S/16:32,B/16:8] [--rounds=9] [--write]

Every contestant lives in a process of its own and has its turn in every round, so that a busy
machine slows all alike; the ratio of two is the median over the rounds. Memory is the most that the
process ever held, libraries and compilation included. A train step takes uint8 images and ends with
AdamW's update: ours is that of the trainer itself, with its checks and metrics. All compute the
same network in float32, on as many threads as there are cores. Each is started as its users start
it: our trainer asks for large pages (vit_jax/startup.py), our model in a notebook does not.
"""

import argparse
import dataclasses
import importlib.util
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import results
from vit_jax.startup import huge_pages

PROGRAM = "cpu_step.py"
KINDS = ("forward", "train")
CLASSES, SIZE = 1000, 224
SHAPES = {"S/16": (384, 12, 6), "B/16": (768, 12, 12)}  # width, depth, heads
TURN_SECONDS = 2.0  # about as long as a turn takes, of one step at least
REST_SECONDS = 0.3  # threads that are done still spin for a while


@dataclasses.dataclass(frozen=True)
class Case:
    """What is computed."""

    model: str
    batch: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a contestant needs for it."""

    seconds: tuple[float, ...]  # for a step, round by round
    cpu_seconds: tuple[float, ...]  # of all its threads, likewise
    ready_seconds: float  # from the first line of its process to the end of its first step
    memory: float  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="S/16:8,S/16:32,B/16:8", help="MODEL:BATCH, ...")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--contestants", default=",".join(available()))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    arguments = parser.parse_args()
    contestants = arguments.contestants.split(",")
    lines = []
    for kind in arguments.kinds.split(","):
        for name in arguments.cases.split(","):
            model, _, batch = name.partition(":")
            case = Case(model, int(batch), kind)
            lines += rows(case, measure(case, contestants, arguments.rounds))
            if arguments.write:  # what is measured so far
                results.write(PROGRAM, document(lines, contestants, arguments.rounds))


def available() -> list[str]:
    """The contestants that can run here."""
    found = [OURS]
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        found += ["transformers", "transformers-compiled"]
        # Its models import torchvision, which has no build for every torch.
        if importlib.util.find_spec("timm") and importlib.util.find_spec("torchvision"):
            found += ["timm", "timm-compiled"]
    return found


# ---- taking turns


def measure(case: Case, contestants: list[str], rounds: int) -> dict[str, Figures]:
    """All contestants on one case."""
    spawn = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    try:
        ready = {}
        for name in contestants:  # one after the other, so that compiling is not shared
            ends[name], other = spawn.Pipe()
            process = spawn.Process(target=contestant, args=(name, case, other), daemon=True)
            with mock.patch.dict(os.environ, environment(name, case)):
                process.start()
            processes.append(process)
            ready[name] = ends[name].recv()
        steps = {name: max(1, round(TURN_SECONDS / turn(ends[name], 1)[0])) for name in contestants}
        turns: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name in contestants:
                turns[name].append(turn(ends[name], steps[name]))
                time.sleep(REST_SECONDS)
        memory = {name: asked(ends[name], 0) for name in contestants}
    finally:
        for end in ends.values():
            end.close()
        for process in processes:
            process.join()
    return {
        name: Figures(*zip(*turns[name], strict=True), ready[name], memory[name])
        for name in contestants
    }


def environment(name: str, case: Case) -> dict[str, str]:
    """That its process starts with, besides this one's. (Where no TPU is, our users have no library
    for it; this environment has, for tpu_step.py, and JAX would load it.)"""
    if name != OURS:
        return {}
    return {"JAX_PLATFORMS": "cpu"} | (huge_pages() if case.kind == "train" else {})


def turn(end: Connection, steps: int) -> tuple[float, float]:
    """Seconds for each of so many steps, by the clock and of all threads."""
    seconds, cpu_seconds = asked(end, steps)
    return seconds / steps, cpu_seconds / steps


def asked(end: Connection, steps: int) -> Any:
    end.send(steps)
    return end.recv()


def contestant(name: str, case: Case, end: Connection) -> None:
    """Takes steps when asked, and says how long; asked for none, says what memory it took."""
    started = time.perf_counter()
    step = make(name, case)
    step()
    end.send(time.perf_counter() - started)
    while True:
        try:
            steps = end.recv()
        except EOFError:
            return
        if steps == 0:
            end.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0)
            continue
        step()  # what others have had the cores and the memory for since: a run has no such pauses
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        end.send((time.perf_counter() - began, time.process_time() - cpu))


# ---- contestants: a function that takes one step and waits for it

Step = Callable[[], object]
OURS = "vit_jax"


def make(name: str, case: Case) -> Step:
    if name == OURS:
        return our_step(case) if case.kind == "train" else our_forward(case)
    library, _, compiled = name.partition("-")
    return torch_step(library, case, bool(compiled))


def images(case: Case) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (case.batch, SIZE, SIZE, 3), np.uint8)


def labels(case: Case) -> np.ndarray:
    return np.random.default_rng(0).integers(0, CLASSES, case.batch)


def our_forward(case: Case) -> Step:
    import vit_jax

    model = vit_jax.create_model(case.model, num_classes=CLASSES, image_size=SIZE)
    inputs = images(case).astype(np.float32) / 127.5 - 1
    return lambda: model(inputs).block_until_ready()


def our_step(case: Case) -> Step:
    import jax

    from vit_jax.data.sources import open_source
    from vit_jax.train.config import default_config, run_config
    from vit_jax.train.program import make_program
    from vit_jax.train.sharding import make_mesh

    config = default_config(batch_size=case.batch, image_size=SIZE, total="1000 steps")
    config.model.update(name=case.model)
    config.data.update(name="visual_atoms_1k")
    config.optimizer.update(weight_decay=0.1)
    config = run_config(config)
    program = make_program(
        config, open_source(config.data.name, "train", SIZE), make_mesh(config.mesh)
    )
    compiled = program.lower().compile()
    batch = {"image": images(case), "label": labels(case).astype(program.batch["label"].dtype)}
    batch = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), batch, program.batch)
    state = program.init(jax.random.key(0))

    def step() -> object:
        nonlocal state
        state, metrics = compiled(state, batch, {})
        return jax.block_until_ready(metrics)

    return step


def torch_step(library: str, case: Case, compiled: bool) -> Step:
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    model = torch_model(library, case)
    run = torch.compile(model) if compiled else model
    pixels = torch.from_numpy(images(case)).permute(0, 3, 1, 2).contiguous()
    if case.kind == "forward":
        inputs = pixels / 127.5 - 1
        model.eval()

        def forward() -> object:
            with torch.inference_mode():
                return run(inputs)

        return forward
    # The fastest of its kinds: one pass over the parameters.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    targets = torch.from_numpy(labels(case))

    def step() -> object:
        logits = run(pixels / 127.5 - 1)
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_model(library: str, case: Case):
    """The same network; [batch, channel, height, width] -> logits."""
    import torch

    width, depth, heads = SHAPES[case.model]
    if library == "timm":
        from timm.models.vision_transformer import VisionTransformer

        gelu = "gelu_tanh"
        return VisionTransformer(
            embed_dim=width, depth=depth, num_heads=heads, num_classes=CLASSES, act_layer=gelu
        )
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        image_size=SIZE,
        patch_size=16,
        num_labels=CLASSES,
    )

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = ViTForImageClassification(config)

        def forward(self, pixels):
            return self.network(pixels).logits

    return Logits()


# ---- in words


def rows(case: Case, found: dict[str, Figures]) -> list[str]:
    """Of the table: one for each contestant."""
    ours = found.get(OURS)
    lines = []
    for name, figures in found.items():
        ratio = "-"
        if ours and name != OURS:
            pairs = zip(figures.seconds, ours.seconds, strict=True)
            ratio = f"{statistics.median(theirs / own for theirs, own in pairs):.2f}"
        lines.append(
            f"| {case.kind} | {case.model} | {case.batch} | {name} | "
            f"{case.batch / statistics.median(figures.seconds):.1f} | "
            f"{case.batch / min(figures.seconds):.1f} | {ratio} | {min(figures.cpu_seconds):.2f} | "
            f"{figures.memory / 1e9:.2f} | {figures.ready_seconds:.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


def document(lines: list[str], contestants: list[str], rounds: int) -> str:
    """The section of RESULTS.md."""
    peers = sorted({name.partition("-")[0] for name in contestants if name != OURS})
    packages = ["jax", "jaxlib", "flax", *(["torch", *peers] if peers else [])]
    absent = "" if "timm" in contestants else " timm is absent: its models import torchvision."
    cores = os.cpu_count() or 1
    # Seen, not explained: one forward pass was behind torch on quiet cores, ahead on busy ones.
    busy = " The machine was busy, which slows torch more than us." * (os.getloadavg()[1] > cores)
    return "\n".join([
        "## A step on this machine's CPU",
        "",
        f"{results.origin(PROGRAM, *packages)} float32, {SIZE} px, AdamW, {os.cpu_count()} "
        f"threads, {rounds} rounds of turns. `ours is faster by` is the median of the rounds' "
        "ratios; `ready` is the time from the start of the process to the end of its first step; "
        "`CPU s a step` is the least of the rounds, of all threads, with those that only wait for "
        f"others.{absent}{busy}",
        "",
        "| | model | batch | | images/s, median | images/s, best | ours is faster by "
        "| CPU s a step | GB at most | ready in s |",
        "|---|---|--:|---|--:|--:|--:|--:|--:|--:|",
        *lines,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
