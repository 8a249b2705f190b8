"""From configs/*.py and flags to a typed RunConfig."""

import dataclasses

import pytest

from vit_jax.errors import UsageError
from vit_jax.train.config import (
    RunConfig,
    config_arguments,
    default_config,
    evaluator,
    network_config,
    run_config,
)


def test_the_default_config_is_the_default_run():
    assert run_config(default_config()) == RunConfig()


def test_values_become_typed_sections():
    config = default_config(batch_size=64, image_size=(32, 48))
    config.optimizer.learning_rate = 1.0
    config.evaluators.test = evaluator("digits", kind="fewshot")
    run = run_config(config)
    assert (run.batch_size, run.image_size, run.optimizer.learning_rate) == (64, (32, 48), 1.0)
    assert run.evaluators["test"].kind == "fewshot"
    assert run_config(dataclasses.asdict(run)) == run


def test_multipliers_are_set_by_pattern():
    config = default_config()
    config.optimizer.rate_multipliers = {"embedding/*": 0.0}
    config.optimizer.decay_multipliers["head/*"] = 10.0
    optimizer = run_config(config).optimizer
    assert optimizer.rate_multipliers == {"embedding/*": 0.0}
    assert optimizer.decay_multipliers == {"head/*": 10.0}


def test_what_a_config_leaves_open_is_as_the_name_says():
    config = default_config(image_size=32)
    config.model.update(name="Axial-B/16", width=96)
    network = network_config(run_config(config), num_classes=5)
    assert (network.pooling, network.axial, network.width, network.depth) == ("gap", True, 96, 12)
    with pytest.raises(TypeError):
        config.model.registers = "four"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"batchsize": 3}, "config.batchsize. Did you mean batch_size?"),
        ({"optimizer": {"learning_rat": 3}}, "config.optimizer.learning_rat. Did you mean"),
        ({"evaluators": {"a": {"evry": "1%"}}}, "config.evaluators.a.evry. Did you mean every?"),
        ({"batch_size": "many"}, "config.batch_size='many': expected int"),
        ({"data": "digits"}, "config.data='digits': expected a section"),
        ({"seed": True}, "expected int, got bool"),
        ({"batch_size": 0}, "config.batch_size=0: expected 1 or more"),
        ({"seed": -1}, "config.seed=-1: expected 0 or more"),
        ({"checkpoints_kept": 0}, "config.checkpoints_kept=0: expected 1 or more"),
        ({"data": {"threads": -1}}, "config.data.threads=-1: expected 0 or more"),
        ({"optimizer": {"learning_rate": 0.0}}, "learning_rate=0.0: expected more than 0"),
        ({"optimizer": {"moment_dtype": "int8"}}, "moment_dtype='int8': expected one of"),
        ({"optimizer": {"polyak": 2.0}}, "polyak=2.0: expected from 0 to 1"),
        ({"optimizer": {"rate_multipliers": {"a": "b"}}}, "rate_multipliers.a='b': expected float"),
        ({"augment": {"mixup": -1.0}}, "augment.mixup=-1.0: expected 0 or more"),
        ({"augment": {"erasing": 1.5}}, "expected a chance up to 1"),
        ({"accumulation": 0}, "accumulation=0: expected 1 or more"),
    ],
)
def test_unknown_keys_and_wrong_types_are_errors(values, says):
    with pytest.raises(UsageError) as error:
        run_config(values)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_config_files_cannot_set_keys_that_nobody_reads():
    with pytest.raises(AttributeError):
        default_config().batchsize = 3


def test_arguments_of_a_config_file():
    arguments = config_arguments("model=B/16,data=digits", model="Ti/16", data="", size="224")
    assert (arguments.model, arguments.data, arguments.size) == ("B/16", "digits", "224")
    for text in ("modl=B/16", "B/16"):
        with pytest.raises(UsageError, match="KEY one of model"):
            config_arguments(text, model="Ti/16")
