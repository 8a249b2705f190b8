"""Every command and all Python in README.md and docs/*.md is run, in order, file by file.

A comment before a block says what is done with it instead:

    <!-- run with: --config.total='2 steps' -->   its `vit-jax train` gets these flags besides
    <!-- needs: cloud -->                         or network, or minutes: it is not run, but checked
                                                  (vit-jax is parsed, launchers do a --dry-run)

Blocks are bash (one command a line), python, or text, which is no code. Anything else fails.
What launchers say is in tests/golden_launches.txt; `python -m tests.test_docs` writes it anew.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from docs.configs_reference import reference
from tests.data.images import jpeg, photo, write
from vit_jax import create_model, save_npz
from vit_jax.cli import _parser, dispatch, run_verb
from vit_jax.models.flops import multiply_adds
from vit_jax.models.network import parameter_count
from vit_jax.models.variants import canonical_name, model_config
from vit_jax.train.config import run_config
from vit_jax.train.flags import load_config, parse_config, parse_flags
from vit_jax.train.loop import train

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GOLDEN = ROOT / "tests" / "golden_launches.txt"
NEEDS = ("cloud", "network", "minutes")
NOT_OURS = ("docker", "export", "gcloud", "git", "kubectl")  # nothing of them can be checked here
LAUNCHERS = ("launch/tpu_vm.py", "launch/gke.py", "launch/local.py")


class Block(NamedTuple):
    """A fenced one."""

    line: int  # of its first line of text
    language: str
    mark: str  # what the comment before it says, or nothing
    text: str


def blocks(markdown: str) -> Iterator[Block]:
    """All of them, in order."""
    lines = markdown.splitlines()
    opening = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opening is None:
            opening = number
            continue
        mark = re.fullmatch(r"<!-- (.*) -->", lines[opening - 1]) if opening else None
        text = "\n".join(lines[opening + 1 : number])
        yield Block(opening + 2, lines[opening][3:].strip(), mark[1] if mark else "", text)
        opening = None
    assert opening is None, f"line {opening}: a block without an end"


def commands(text: str) -> Iterator[list[str]]:
    """The words of each line; a backslash at its end joins it with the next."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


class Reader:
    """Does what a page says, in the folder that it is in."""

    def __init__(self) -> None:
        self._names: dict[str, object] = {}  # of its Python

    def do(self, block: Block) -> None:
        kind, _, value = block.mark.partition(": ")
        assert not block.mark or kind in ("needs", "run with"), f"unknown mark {block.mark!r}"
        if block.language == "text":
            return
        assert block.language in ("bash", "python"), f"language {block.language!r}"
        if kind == "needs":
            assert value in NEEDS, f"needs {value!r}: expected one of {NEEDS}"
            check(block)
        elif block.language == "python":
            exec(compile(block.text, "the block", "exec"), self._names)
        else:
            flags = shlex.split(value) if kind == "run with" else []
            for words in commands(block.text):
                run(words, flags)


def run(words: list[str], flags: list[str]) -> None:
    """In this process where it is ours: importing JAX for each would take most of the time."""
    program, *arguments = words
    if program == "vit-jax":
        code = run_verb(dispatch, [*arguments, *(flags if arguments[0] == "train" else [])])
    elif program == "python":
        code = subprocess.run([sys.executable, *arguments]).returncode
    elif program in LAUNCHERS:
        code = subprocess.run([sys.executable, str(ROOT / program), *arguments]).returncode
    else:
        raise AssertionError(f"{program} is not run here: say what it needs")
    assert code == 0, f"{shlex.join(words)}: exit code {code}"


def check(block: Block) -> None:
    """What can be known of it without the cloud, the network, or the time."""
    if block.language == "python":
        compile(block.text, "the block", "exec")
        return
    for words in commands(block.text):
        program = words[0]
        if program == "vit-jax":
            parse(words[1:])
        elif is_launch(words):
            dry_run(words)
        elif program == "make":
            said_by(["make", "-n", "-C", str(ROOT), *words[1:]])
        elif program in ("pip", ".venv/bin/pip"):
            assert words[1] == "install" and set(extras(words)) <= known_extras(), words
        else:
            assert program in NOT_OURS, f"{program} is not known here"


def parse(arguments: list[str]) -> None:
    """The verb, its flags, the config file and its keys."""
    if arguments[0] == "train":
        run_config(parse_flags(arguments[1:]).config)
        return
    parsed, config_flags = _parser().parse_known_args(arguments)
    assert parsed
    if any(flag.startswith("--config") for flag in config_flags):
        run_config(parse_config([f for f in config_flags if not f.startswith("--workdir")]))
    else:
        assert not config_flags, f"unknown flags {config_flags}"


def is_launch(words: list[str]) -> bool:
    return words[0] in (*LAUNCHERS, "sbatch")


def dry_run(words: list[str]) -> str:
    """What a launcher would do."""
    if words[0] != "sbatch":
        return said_by([sys.executable, str(ROOT / words[0]), "--dry-run", *words[1:]])
    script = words.index("launch/slurm.sbatch")
    parse(["train", *words[script + 1 :]])
    return said_by(["bash", str(ROOT / words[script]), "--dry-run", *words[script + 1 :]])


def said_by(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def launches() -> str:
    """All dry runs of the pages, each once."""
    found = {
        shlex.join(words): words
        for page in PAGES
        for block in blocks(page.read_text())
        if block.mark == "needs: cloud" and block.language == "bash"
        for words in commands(block.text)
        if is_launch(words)
    }
    return "\n".join(f"$ {text}\n{dry_run(words)}" for text, words in found.items())


def extras(words: list[str]) -> list[str]:
    """Of '.[gcs,tpu]'."""
    return [
        name
        for word in words
        for found in re.findall(r"\[(.*)\]", word)
        for name in found.split(",")
    ]


def known_extras() -> set[str]:
    return set(importlib.metadata.metadata("vit_jax").get_all("Provides-Extra"))


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """What the pages talk of: a demo that was run (briefly), a folder of images, weights."""
    folder = tmp_path_factory.mktemp("things")
    for stage, init in (("pretrain", ""), ("finetune", str(folder / "runs/demo/pretrain"))):
        config = load_config(f"configs/demo.py:stage={stage}")
        config.update(total="2 steps", batch_size=16, init=init)
        config.model.update(depth=2)
        config.optimizer.warmup = "0 steps"
        if stage == "pretrain":
            del config.evaluators["glyphs"]  # 4,600 images
        train(run_config(config), folder / "runs/demo" / stage)
    for number in range(40):
        name = ("cats", "dogs")[number % 2]
        write(folder / "data/animals" / name / f"{number}.jpg", jpeg(photo(seed=number)))
    shutil.copy(folder / "data/animals/cats/0.jpg", folder / "photo.jpg")
    published = create_model("Ti/16", image_size=32, num_classes=10, depth=1)
    save_npz(published, folder / "B_16.npz")
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_it_says_works(page, things, tmp_path, monkeypatch):
    shutil.copytree(things, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    reader = Reader()
    for block in blocks(page.read_text()):
        with told_where(page, block):
            reader.do(block)


@contextlib.contextmanager
def told_where(page: pathlib.Path, block: Block) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # the latter is argparse's
        raise AssertionError(f"{page.name}, line {block.line}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if "://" not in link]
    missing = [link for link in local if not (page.parent / link).exists()]
    assert not missing


CLOUD, MINUTES = "<!-- needs: cloud -->\n", "<!-- needs: minutes -->\n"
WRONG = {  # what is said -> of what
    "language ''": "```\nvit-jax models\n```",
    "needs 'luck'": "<!-- needs: luck -->\n```bash\nvit-jax models\n```",
    "unknown mark 'skip'": "<!-- skip -->\n```bash\nvit-jax models\n```",
    "rm is not run here": "```bash\nrm -rf mine\n```",
    "invalid choice": "```bash\nvit-jax modles\n```",
    "exit code 2": "```bash\nvit-jax results nowhere\n```",
    "crate_model": "```python\nimport vit_jax\nvit_jax.crate_model\n```",
    "--workdir is missing": f"{MINUTES}```bash\nvit-jax train --config=configs/demo.py\n```",
    "bath_size": f"{CLOUD}```bash\nvit-jax plan --topology=v5p-128 "
    "--config=configs/pretrain.py --config.bath_size=8\n```",
    "--image": f"{CLOUD}```bash\nlaunch/gke.py --name=x -- vit-jax train\n```",
    "tqu": "<!-- needs: network -->\n```bash\npip install '.[tqu]'\n```",
    "dmeo": f"{MINUTES}```bash\nmake dmeo\n```",
    "without an end": "```bash\nvit-jax models",
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_wrong_is_found(says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((Exception, SystemExit)) as caught:
        for block in blocks(WRONG[says]):
            Reader().do(block)
    assert says in str(caught.value) + capsys.readouterr().err


def test_the_tour_can_be_taken(tmp_path):
    """As its reader would; its cells are in one script."""
    command = [sys.executable, str(ROOT / "notebooks" / "tour.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)  # those of the tests compile fast, and run slowly
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "largest difference of logits: 0.0"
    for name in ("digits.png", "attention.png", "tour.npz", "run/summary.json"):
        assert (tmp_path / "tour" / name).is_file()


def test_the_zoo_is_as_it_is_counted():
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d.]+) \| (.*)\|$", PAGES[0].read_text(), re.M)
    assert len(rows) > 10
    for name, parameters, gflops, aliases in rows:
        config = model_config(name, image_size=224)
        assert f"{parameter_count(config):,}" == parameters
        assert f"{2 * multiply_adds(config) / 1e9:.2f}" == gflops
        assert {canonical_name(alias) for alias in re.findall("`(.*?)`", aliases)} <= {name}


def test_what_launchers_would_do_is_what_it_was():
    assert launches() == GOLDEN.read_text()


def test_the_reference_of_configs_is_current():
    """`make configs-reference` writes it."""
    assert (ROOT / "docs" / "configs.md").read_text() == reference()


if __name__ == "__main__":
    GOLDEN.write_text(launches())
