"""Every shipped config is built and its step traced, at full size and without memory."""

import pytest

from vit_jax.data.sources import open_source
from vit_jax.models.config import as_size
from vit_jax.models.variants import model_config
from vit_jax.train.config import MeshConfig, run_config
from vit_jax.train.flags import load_config
from vit_jax.train.program import make_program
from vit_jax.train.sharding import make_mesh

CONFIGS = [
    *(f"configs/demo.py:stage={stage}" for stage in ("pretrain", "finetune", "scratch")),
    *(f"configs/pretrain.py:model={name}" for name in ("B/32", "B/16", "L/32", "L/16", "H/14")),
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
    program.step.eval_shape(program.state, program.batch)


def test_pretraining_is_that_of_table_3():
    config = run_config(load_config("configs/pretrain.py:model=L/16,data=visual_atoms_multi"))
    assert config.batch_size == 4096 and config.total == "14 epochs"
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (4e-4, 0.1)
    assert (config.optimizer.schedule, config.optimizer.warmup) == ("linear", "10_000 steps")
    assert (config.loss, config.model.head_bias) == ("sigmoid", -10.0)
