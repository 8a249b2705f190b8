"""vit-jax convert: run folder to npz and back, verified by logits."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.train.small_run import small_config
from vit_jax.cli import dispatch, run_verb
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.loop import train


def params(path):
    return nnx.to_pure_dict(nnx.state(vit_jax.load(path)))


def test_there_and_back_again(trained_run, tmp_path, capsys):
    npz, folder = tmp_path / "weights.npz", tmp_path / "folder"
    assert run_verb(dispatch, ["convert", str(trained_run), str(npz)]) == 0
    assert run_verb(dispatch, ["convert", str(npz), str(folder)]) == 0
    assert capsys.readouterr().out.count("differ by 0 at most") == 2
    jax.tree.map(np.testing.assert_array_equal, params(folder), params(trained_run))
    assert vit_jax.load(folder).config.num_classes == 10


@pytest.mark.parametrize("form", ["hf", "timm"])
def test_to_another_library_and_back(form, trained_run, tmp_path, capsys):
    folder, back = tmp_path / "folder", tmp_path / "back"
    assert run_verb(dispatch, ["convert", str(trained_run), str(folder), f"--to={form}"]) == 0
    assert run_verb(dispatch, ["convert", str(folder), str(back), "--to=run"]) == 0
    assert capsys.readouterr().out.count("differ by 0 at most") == 2
    jax.tree.map(np.testing.assert_array_equal, params(back), params(trained_run))
    names = vit_jax.load_with_table(back).class_names
    assert names == vit_jax.load_with_table(trained_run).class_names and len(names) == 10


def test_the_model_card_has_the_numbers_of_the_run(tmp_path):
    config = small_config(total="2 steps")
    config.evaluators.digits = evaluator("digits", every="100%")
    summary = train(run_config(config), tmp_path / "run")
    convert = ["convert", str(tmp_path / "run"), str(tmp_path / "hf"), "--to=hf"]
    assert run_verb(dispatch, convert) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"| digits/accuracy | {summary['metrics']['digits/accuracy']:.4f} |" in card
    assert "| data | digits |" in card and "| steps | 2 |" in card
    assert "85,978 parameters, 10 classes" in card and str(tmp_path) not in card


def test_the_published_model_starts_no_run_but_evaluates(trained_run, tmp_path, capsys):
    folder = tmp_path / "hf"
    assert run_verb(dispatch, ["convert", str(trained_run), str(folder), "--to=hf"]) == 0
    scores = []
    for place in (trained_run, folder):
        capsys.readouterr()
        assert run_verb(dispatch, ["eval", f"--model={place}", "--data=digits", "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out))
    assert scores[0] == scores[1]
    assert run_verb(dispatch, ["report", str(folder)]) == 2
    assert "it has a config.json of another library" in capsys.readouterr().err


def test_other_dialects_and_bfloat16(trained_run, tmp_path, capsys):
    out = str(tmp_path / "weights.npz")
    flags = ["--dialect=big_vision_stacked", "--dtype=bfloat16", "--json"]
    assert run_verb(dispatch, ["convert", str(trained_run), out, *flags]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result["largest_difference"] < 0.1


def test_a_run_starts_from_converted_weights_but_not_in_their_folder(trained_run, tmp_path, capsys):
    folder = tmp_path / "folder"
    assert run_verb(dispatch, ["convert", str(trained_run), str(folder)]) == 0
    train(run_config(small_config(total="1 steps", init=str(folder))), tmp_path / "tuned")
    capsys.readouterr()
    command = ["train", "--config=configs/demo.py", f"--workdir={folder}"]
    assert run_verb(dispatch, command) == 2
    error = capsys.readouterr().err
    assert "--config.init=" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{run}", "{out}"], "is there already"),
        (["{out}.nowhere", "{out}.npz"], "no such file or folder"),
        (["{run}", "{out}.npz", "--dialect=bigvision"], "Did you mean big_vision?"),
        (["{run}", "{out}.npz", "--dtype=int8"], "expected float32 or bfloat16"),
        (["{run}", "{out}_folder", "--dtype=bfloat16"], "name an .npz"),
        (["{run}", "{out}.safetensors"], "a name that ends in .npz"),
        (["{run}", "{out}.npz", "--image-size=big"], "'big' is no count"),
        (["{run}", "{out}.npz", "--to=hf"], "with --to=hf that of a new folder"),
        (["{run}", "{out}_folder", "--to=npz"], "expected a name that ends in .npz"),
        (["{run}", "{out}_folder", "--to=tim"], "Did you mean timm?"),
        (["{run}", "{out}.npz", "--push-to-hub=me/it"], "needs --to=hf or --to=timm"),
        (["{run}", "{out}_hf", "--to=hf", "--push-to-hub=it"], "expected OWNER/NAME"),
    ],
)
def test_mistakes(trained_run, tmp_path, arguments, says, capsys):
    (tmp_path / "out").mkdir()
    arguments = [a.format(run=trained_run, out=tmp_path / "out") for a in arguments]
    assert run_verb(dispatch, ["convert", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_left_behind_where_there_is_nothing_to_verify(trained_run, tmp_path, capsys):
    model = vit_jax.load(trained_run)
    model.head.bias[...] = np.full(10, np.nan)
    vit_jax.save_npz(model, tmp_path / "nan.npz")
    arguments = ["convert", str(tmp_path / "nan.npz"), str(tmp_path / "out.npz")]
    assert run_verb(dispatch, arguments) == 2
    assert "answers NaN" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["nan.npz"]
