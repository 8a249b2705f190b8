"""Every shipped config is built and its step traced, at full size and without memory."""

import pytest

from vit_jax.data.sources import open_source
from vit_jax.models.config import as_size
from vit_jax.models.variants import model_config
from vit_jax.train.config import MeshConfig, run_config
from vit_jax.train.flags import load_config
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh

JFT = (
    "B/32", "B/16", "L/32", "L/16", "H/14", "BiT-R50x1", "BiT-R152x2", "R50+B/16", "R50+L/32",
)  # fmt: skip
CONFIGS = [
    *(f"configs/demo.py:stage={stage}" for stage in ("pretrain", "finetune", "scratch")),
    *(
        f"configs/pretrain.py:model={name},recipe={recipe},data=visual_atoms{suffix}"
        for recipe, suffix, rows in (
            ("jft", "", JFT),
            ("imagenet21k", "", ("B/16", "L/16")),
            ("imagenet", "_1k", ("B/32", "L/16")),
        )
        for name in rows
    ),
    "configs/pretrain.py:data=visual_atoms_multi",
    "configs/finetune.py:model=B/16,data=digits",
]


@pytest.mark.parametrize("location", CONFIGS)
def test_a_config_is_a_program(location):
    config = run_config(load_config(location))
    source = open_source(config.data.name, config.data.split, as_size(config.image_size))
    program = make_program(config, source, make_mesh(MeshConfig()))
    chosen = {key: value for key, value in vars(config.model).items() if value is not None}
    assert program.network == model_config(
        **chosen, num_classes=source.num_classes, image_size=config.image_size
    )
    assert program.total_steps > 0
    program.step.eval_shape(program.state, program.batch, program.frozen)


def test_pretraining_is_that_of_table_3():
    config = run_config(load_config("configs/pretrain.py:model=L/16,data=visual_atoms_multi"))
    assert config.batch_size == 4096 and config.total == "14 epochs"
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (4e-4, 0.1)
    assert (config.optimizer.schedule, config.optimizer.warmup) == ("linear", "10_000 steps")
    assert (config.loss, config.model.head_bias) == ("sigmoid", -10.0)


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
