"""Every shipped config is built for every model it names, traced at full size without memory, and
compared with what it was. `python -m tests.test_configs` writes tests/golden_configs/ anew."""

import dataclasses
import pathlib
import re

import jax
import pytest

from configs import augreg, pretrain
from vit_jax.data.sources import open_source
from vit_jax.models.config import as_size, differences
from vit_jax.models.variants import model_config
from vit_jax.train.config import RunConfig, changes, default_config, run_config
from vit_jax.train.flags import load_config
from vit_jax.train.masked_patch import TARGETS
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh

GOLDEN = pathlib.Path(__file__).parent / "golden_configs"
ROOT = pathlib.Path(__file__).parents[1]

ARGUMENTS = {
    "augreg": [
        *(f"model={model}" for model in augreg.RECOMMENDED),
        "model=B/16,recipe=imagenet,data=visual_atoms_1k,augment=strong2",
    ],
    "demo": [f"stage={stage}" for stage in ("pretrain", "finetune", "scratch")],
    "finetune": [
        *(f"model={model}" for model in ("B/16", "L/16", "R50+B/16", "BiT-R50x1")),
        "model=H/14,schedule=tiny,held_out=0,train=head",
    ],
    "masked_patch": [f"model=B/16,target={target}" for target in TARGETS],
    "plain_vit": ["model=S/16"],
    "pretrain": [
        *(
            f"model={model},recipe={recipe}"
            for recipe, rows in pretrain.TABLE_3.items()
            for model in rows
        ),
        "model=B/16,data=visual_atoms_multi",
    ],
    "scaling": ["model=g/14", "model=G/14"],
}
LOCATIONS = [
    f"configs/{name}.py:{arguments}" for name, several in ARGUMENTS.items() for arguments in several
]


def described(location: str) -> str:
    """What a config sets besides the defaults, and the program that comes of it."""
    config = run_config(load_config(location))
    source = open_source(config.data.name, config.data.split, as_size(config.image_size))
    program = make_program(config, source, make_mesh(config.mesh))
    network = program.network
    _, metrics = program.step.eval_shape(program.state, program.batch, program.frozen)
    params, state = (jax.tree.leaves(tree) for tree in (program.state.params, program.state))
    named = model_config(config.model.name, image_size=network.image_size)
    lines = [
        location,
        *(f"  {key} = {value!r}" for key, _, value in sorted(changes(RunConfig(), config))),
        f"  network: {', '.join(differences(named, network).values()) or 'as named'}",
        f"  steps: {program.total_steps:,}",
        *(f"  batch {key}: {value.dtype}{value.shape}" for key, value in program.batch.items()),
        f"  parameters: {sum(leaf.size for leaf in params):,} in {len(params)} arrays",
        f"  state: {sum(leaf.size * leaf.dtype.itemsize for leaf in state):,} bytes",
        f"  metrics: {', '.join(metrics)}",
    ]
    return "\n".join(lines) + "\n"


def defaults() -> str:
    """The whole schema."""
    empty = dataclasses.replace(RunConfig(), evaluators={})
    rows = [(f.name, getattr(empty, f.name)) for f in dataclasses.fields(RunConfig)]
    lines = []
    for key, value in rows:
        if dataclasses.is_dataclass(value):
            lines += [f"{key}.{k} = {v!r}" for k, v in dataclasses.asdict(value).items()]
        else:
            lines.append(f"{key} = {value!r}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_config_is_the_program_it_was(location):
    assert described(location) == golden_of(location)


def test_the_defaults_are_what_they_were():
    assert defaults() == (GOLDEN / "defaults.txt").read_text()


def test_every_config_has_its_golden_text_and_no_other():
    shipped = {path.stem for path in (ROOT / "configs").glob("*.py")} - {"__init__"}
    assert shipped == ARGUMENTS.keys()
    assert {path.stem for path in GOLDEN.glob("*.txt")} == shipped | {"defaults"}
    for name, several in ARGUMENTS.items():
        assert (GOLDEN / f"{name}.txt").read_text().count("configs/") == len(several)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_config_opens_with_its_command_and_its_hardware(name):
    opening = (ROOT / "configs" / f"{name}.py").read_text().split('"""')[1]
    assert re.search(r"^    vit-jax (train --config=configs/|demo)", opening, re.MULTILINE)
    assert "Hardware: " in opening
    if name != "demo":
        assert "Published" in opening


def test_pretraining_is_that_of_table_3():
    config = run_config(load_config("configs/pretrain.py:model=L/16,data=visual_atoms_multi"))
    assert config.batch_size == 4096 and config.total == "14 epochs"
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (4e-4, 0.1)
    assert (config.optimizer.schedule, config.optimizer.warmup) == ("linear", "10_000 steps")
    assert (config.loss, config.model.head_bias) == ("sigmoid", -10.0)
    assert config.model.representation_size == 1024


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("model=R50x2", ("7 epochs", 1e-3, "linear", 0.1, None, 0.0)),
        ("model=R50+ViT-L_32", ("7 epochs", 2e-4, "linear", 0.1, None, 0.0)),
        ("model=B/16,recipe=imagenet21k", ("90 epochs", 1e-3, "linear", 0.03, 0.1, 0.0)),
        ("model=L/16,recipe=imagenet", ("300 epochs", 3e-3, "cosine", 0.3, 0.1, 1.0)),
    ],
)
def test_rows_of_table_3(arguments, expected):
    config = run_config(load_config(f"configs/pretrain.py:{arguments}"))
    optimizer = config.optimizer
    assert expected == (
        config.total,
        optimizer.learning_rate,
        optimizer.schedule,
        optimizer.weight_decay,
        config.model.dropout,
        optimizer.clip_norm,
    )


def test_the_default_config_is_the_default_run():
    assert run_config(default_config()) == RunConfig()


def golden_of(location: str) -> str:
    name = re.match(r"configs/(\w+)\.py", location)[1]
    sections = (GOLDEN / f"{name}.txt").read_text().split("\n\n")
    found = [s.rstrip("\n") + "\n" for s in sections if s.split("\n")[0] == location]
    assert len(found) == 1, f"{location} has no golden text: python -m tests.test_configs"
    return found[0]


def write_golden() -> None:
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "defaults.txt").write_text(defaults())
    for name, several in ARGUMENTS.items():
        texts = [described(f"configs/{name}.py:{arguments}") for arguments in several]
        (GOLDEN / f"{name}.txt").write_text("\n".join(texts))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    write_golden()
