"""What a user types, and what a mistake gets: one line, exit code 2."""

import json
import shutil
import subprocess
import sys

import pytest

from vit_jax.cli import dispatch, run_verb
from vit_jax.models import variants

TRAIN = ["train", "--config=configs/demo.py:stage=pretrain", "--workdir=unused"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*TRAIN, "--config.batchsize=3"], "Did you mean batch_size?"),
        ([*TRAIN, "--config.optimizer.learning_rat=3"], "Did you mean learning_rate?"),
        ([*TRAIN, "--config.seed.x=3"], "unknown config key --config.seed.x"),
        ([*TRAIN, "--config.batch_size=many"], "--config.batch_size=many"),
        ([*TRAIN, "--config.batch_size=100"], "does not divide over 8 devices: use 96 or 104"),
        ([*TRAIN, "--config.model.name=BB/16"], "unknown model 'BB/16'. Did you mean B/16?"),
        ([*TRAIN, "--config.model.registers=x"], "--config.model.registers=x"),
        (
            [*TRAIN, "--config.model.name=BiT-R50x1"],
            "is set, by the config file or on the command line, but BiT-R50x1 has no such",
        ),
        ([*TRAIN, "--config.data.name=/no/such"], "no such folder: /no/such"),
        ([*TRAIN, "--config.data.name=glyph"], "Did you mean glyphs?"),
        ([*TRAIN, "--config.init=no/run"], "no such file or folder: no/run"),
        ([*TRAIN, "--config.mesh.fsdp=3"], "does not fit 8 devices"),
        ([*TRAIN, "--config.total=soon"], "config.total='soon' is no duration"),
        ([*TRAIN, "--config.loss=hinge"], "expected one of softmax, sigmoid"),
        ([*TRAIN, "--config.batch_size", "0"], "config.batch_size=0: expected 1 or more"),
        ([*TRAIN, "--config.data.name=glyphs/"], "no such folder: glyphs/"),
        (["fewshot", "--model=Pico/8", "--data=digits", "--shots=0"], "'0' is no count"),
        (["fewshot", "--model=Pico/8", "--data=digits", "--shots=a"], "'a' is no count"),
        (["eval", "--model=Pico/8", "--data=digits", "--image-size=0"], "'0' is no count"),
        (["plan", "--topology=v5p-8"], "--config is missing"),
        ([*TRAIN, "stray"], "unexpected argument 'stray'"),
        ([*TRAIN, "--confg=x"], "confg"),
        (["train", "--config=configs/no.py", "--workdir=x"], "no such config file: configs/no.py"),
        (["train", "--config=configs/demo.py:stag=x", "--workdir=x"], "Did you mean stage?"),
        (["train", "--config=configs/pretrain.py:model=B/7", "--workdir=x"], "no recipe for B/7"),
        (["train", "--config=configs/demo.py"], "--workdir is missing"),
        (["train", "--workdir=x"], "--config is missing"),
        (["fewshot", "--model=./none", "--data=digits"], "no such file or folder"),
        (["eval", "--model=Pico/8", "--data=digit"], "Did you mean digits?"),
        (["eval", "--model=Pico/8", "--data=digits"], "knows 1000 classes, digits has 10"),
        (["plan", "--config=configs/demo.py", "--topology=v9-1"], "unknown topology 'v9-1'"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(arguments, says, capsys, tmp_path, monkeypatch):
    arguments = [a.replace("--workdir=unused", f"--workdir={tmp_path}") for a in arguments]
    assert run_verb(dispatch, arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1 and error.startswith("vit-jax: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("c.batchsize = 3", "mine.py:4: AttributeError"),
        ("c.batch_size = 'many'", "TypeError"),
        ("return c +", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
    ],
)
def test_a_broken_config_file_is_told_by_its_line(text, says, capsys, tmp_path):
    source = "from vit_jax.train.config import default_config\ndef get_config():\n"
    (tmp_path / "mine.py").write_text(
        f"{source}    c = default_config()\n    {text}\n    return c\n"
    )
    arguments = ["train", f"--config={tmp_path / 'mine.py'}", f"--workdir={tmp_path / 'run'}"]
    assert run_verb(dispatch, arguments) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1


def test_plan_takes_changes_of_the_config(capsys):
    arguments = ["plan", "--config=configs/demo.py", "--topology=v5litepod-4"]
    assert run_verb(dispatch, [*arguments, "--config.batch_size=8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] and plan["batch_size"] == 8


def test_eval_and_fewshot_print_numbers_or_json(trained_run, capsys):
    assert run_verb(dispatch, ["eval", f"--model={trained_run}", "--data=digits", "--json"]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["accuracy"] <= 1
    arguments = ["fewshot", f"--model={trained_run}", "--data=digits", "--shots=1,2", "--seeds=2"]
    assert run_verb(dispatch, arguments) == 0
    assert "2_shot_std" in capsys.readouterr().out


def test_report_names_the_file_it_wrote(trained_run, tmp_path, capsys):
    run = shutil.copytree(trained_run, tmp_path / "run")
    assert run_verb(dispatch, ["report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == f"{run}/report.html"


def test_models_lists_the_zoo(capsys, monkeypatch):
    monkeypatch.setattr(variants, "LISTED", ("H/14", "R+Ti/16", "AxialResNet26"))
    assert run_verb(dispatch, ["models"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["H/14", "632,045,800", "334.59", "224", "257"] in lines
    assert lines[2][:2] == ["R+Ti/16", "6,337,704"]
    assert run_verb(dispatch, ["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[2]["tokens"] is None


def test_both_ways_to_start_training_are_one(tmp_path):
    flags = [
        "--config=configs/demo.py:stage=finetune", f"--workdir={tmp_path}",
        "--config.total=2 steps", "--config.batch_size=8", "--config.image_size=16",
        "--config.optimizer.warmup=0 steps",
    ]  # fmt: skip
    first = subprocess.run(
        [sys.executable, "-m", "vit_jax.cli", "train", *flags], capture_output=True, text=True
    )
    assert first.returncode == 0, first.stderr
    assert "compiling the train step" in first.stderr and "step 2/2 (100%)" in first.stderr
    again = subprocess.run(
        [sys.executable, "-m", "vit_jax.main", *flags], capture_output=True, text=True
    )
    assert again.returncode == 0 and "nothing to do" in again.stderr
    wrong = subprocess.run(
        [sys.executable, "-m", "vit_jax.main", *flags, "--config.seeed=1"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1
