"""Names of weights that are elsewhere: fetched by the real clients from servers on loopback."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save

import vit_jax
from tests.hub_server import HubServer
from tests.weights.test_npz import images_for, params_of, random_model
from vit_jax.cli import dispatch, run_verb
from vit_jax.errors import UsageError
from vit_jax.weights.hugging_face import write_hugging_face
from vit_jax.weights.locate import locate
from vit_jax.weights.timm_folder import write_timm

AUGREG = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nothing answers
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch):
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def put(hub, repository, folder):
    hub.files[repository] = {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_name_of_the_hub_is_fetched_and_kept(hub, tmp_path, monkeypatch):
    model = random_model("token")
    write_hugging_face(tmp_path / "hf", model.config, params_of(model), ("a", "b", "c", "d", "e"))
    put(hub, "google/vit-base-patch16-224", tmp_path / "hf")
    loaded = vit_jax.load_with_table("google/vit-base-patch16-224")
    images = images_for(model)
    np.testing.assert_array_equal(loaded.model(images), model(images))
    assert loaded.class_names == ("a", "b", "c", "d", "e")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # as if the network were gone
    assert vit_jax.load("hf_hub:google/vit-base-patch16-224").config.num_classes == 5


@pytest.mark.parametrize(
    "name",
    [
        "timm/vit_small_patch8_224.mine",
        "hf_hub:timm/vit_small_patch8_224.mine",
        "hf-hub:timm/vit_small_patch8_224.mine",
        "vit_small_patch8_224.mine",
    ],
)
def test_names_of_timm_are_fetched(hub, name, tmp_path):
    model = random_model("gap")
    write_timm(tmp_path / "timm", model.config, params_of(model))
    put(hub, "timm/vit_small_patch8_224.mine", tmp_path / "timm")
    images = images_for(model)
    np.testing.assert_array_equal(vit_jax.load(name)(images), model(images))


def test_weights_in_several_files_are_fetched(hub, tmp_path):
    model = random_model("token")
    write_hugging_face(tmp_path / "hf", model.config, params_of(model))
    put(hub, "me/large", tmp_path / "hf")
    arrays = load_file(tmp_path / "hf" / "model.safetensors")
    names = {key: f"model-{len(key) % 2}.safetensors" for key in arrays}
    files = hub.files["me/large"]
    del files["model.safetensors"]
    for name in set(names.values()):
        files[name] = save({key: value for key, value in arrays.items() if names[key] == name})
    files["model.safetensors.index.json"] = json.dumps({"weight_map": names}).encode()
    images = images_for(model)
    np.testing.assert_array_equal(vit_jax.load("me/large")(images), model(images))


def test_a_name_of_augreg_is_fetched_once(bucket_server, tmp_path, monkeypatch, empty_cache):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket_server.url)
    model = random_model("token")
    vit_jax.save_npz(model, tmp_path / "model.npz")
    bucket_server.objects.setdefault("vit_models", {})
    data = (tmp_path / "model.npz").read_bytes()
    bucket_server.put("vit_models", f"augreg/{AUGREG}.npz", data, {})
    path = locate(AUGREG)
    assert path == empty_cache / "weights" / "augreg" / f"{AUGREG}.npz"
    del bucket_server.objects["vit_models"]
    images = images_for(model)
    np.testing.assert_array_equal(vit_jax.load(AUGREG)(images), model(images))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "file", "where"),
    [
        (AUGREG, f"gs://vit_models/augreg/{AUGREG}.npz", f"weights/augreg/{AUGREG}.npz"),
        ("R26_S_32-i21k-300ep-lr_0.001", "augreg/R26_S_32", "weights/augreg/R26_S_32"),
        ("google/vit-base-patch16-224", "model.safetensors", "google/vit-base-patch16-224"),
        ("vit_base_patch16_224.augreg_in21k", "model.safetensors", "timm/vit_base_patch16_224."),
    ],
)
def test_without_a_network_it_says_which_file_to_put_where(name, file, where, empty_cache):
    with pytest.raises(UsageError) as error:
        vit_jax.load(name)
    says = str(error.value)
    assert "\n" not in says and file in says and str(empty_cache / "weights") in says
    assert where in says


def test_what_was_put_there_by_hand_is_found(empty_cache):
    model = random_model("token")
    by_hand = empty_cache / "weights" / "google" / "vit-base-patch16-224"
    write_hugging_face(by_hand, model.config, params_of(model))
    assert vit_jax.load("google/vit-base-patch16-224").config.width == 32


def test_a_repository_that_is_not_there_is_no_such_file_either(hub):
    with pytest.raises(UsageError, match=r"no such file or folder: me/none; .*404") as error:
        vit_jax.load("me/none")
    assert "\n" not in str(error.value)


def test_verbs_take_such_names(hub, tmp_path, capsys):
    model = random_model("token")
    write_hugging_face(tmp_path / "hf", model.config, params_of(model))
    put(hub, "me/small", tmp_path / "hf")
    command = ["fewshot", "--model=me/small", "--data=digits", "--shots=1", "--seeds=1"]
    assert run_verb(dispatch, [*command, "--no-cache"]) == 0
    printed = capsys.readouterr()
    assert "1_shot" in printed.out
    assert printed.err.startswith("loaded  embedding  4 arrays, ")


def test_pushing_is_asked_for_and_private(hub, trained_run, tmp_path, capsys):
    arguments = ["convert", str(trained_run), str(tmp_path / "hf"), "--to=hf"]
    assert run_verb(dispatch, [*arguments, "--push-to-hub=me/my-vit"]) == 0
    assert f"pushed: {hub.url}/me/my-vit/commit" in capsys.readouterr().out
    [made] = hub.created
    assert made.get("private") or made.get("visibility") == "private"  # by the client's version
    written = {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()}
    assert hub.files["me/my-vit"] == written
    arguments[2] = str(tmp_path / "again")
    assert run_verb(dispatch, arguments) == 0 and len(hub.created) == 1  # never by itself


def test_a_push_that_fails_leaves_the_folder_and_says_how_to_go_on(
    hub, trained_run, tmp_path, capsys
):
    hub.refuses_writes = True
    arguments = ["convert", str(trained_run), str(tmp_path / "hf"), "--to=hf"]
    assert run_verb(dispatch, [*arguments, "--push-to-hub=me/my-vit"]) == 2
    error = capsys.readouterr().err
    assert "hf auth login" in error and len(error.splitlines()) == 1
    assert (tmp_path / "hf" / "model.safetensors").is_file()
