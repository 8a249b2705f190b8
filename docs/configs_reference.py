"""Writes docs/configs.md from the schema (vit_jax/train/config.py) and the shipped configs.

    python -m docs.configs_reference

Meanings are the comments beside the fields, so that they are written once.
"""

import ast
import dataclasses
import inspect
import pathlib
import typing
from collections.abc import Iterator
from typing import Any

from vit_jax.models.config import NetworkConfig, ViTConfig
from vit_jax.train.config import EvaluatorConfig, ModelConfig, RunConfig, changes, run_config
from vit_jax.train.flags import load_config

ROOT = pathlib.Path(__file__).parents[1]
OUT = ROOT / "docs" / "configs.md"
OPENING = """# Configs

<!-- Written by docs/configs_reference.py (`make configs-reference`); changes here are lost. -->

A config is a Python file of plain values. `--config=FILE.py:ARGUMENTS` names it, and what follows
the colon chooses within it; `--config.KEY=VALUE` changes any key below. Unknown keys, wrong types
and impossible values are errors of one line that name what was expected. A file that is not found
is looked for in vit_jax itself, so `configs/demo.py` works from any folder.

A duration is a text with its unit: "90 epochs", "500 steps", "1_000_000 examples", or "5%" of the
run. `None` means "as the name of the network says", or as the weights that it starts from; what
that is for most ViTs stands beside it.
"""


def reference() -> str:
    """The whole page."""
    parts = [OPENING, "## Shipped configs\n"]
    parts += [shipped(path) for path in sorted((ROOT / "configs").glob("*.py"))]
    parts += ["## Keys\n", section("config", RunConfig)]
    hints = typing.get_type_hints(RunConfig)
    for field in dataclasses.fields(RunConfig):
        if dataclasses.is_dataclass(hints[field.name]):
            parts.append(section(f"config.{field.name}", hints[field.name]))
    parts.append(section("config.evaluators.NAME", EvaluatorConfig))
    return "\n".join(parts)


def shipped(path: pathlib.Path) -> str:
    """One config: what it is for, its arguments, and what it sets besides the defaults."""
    name = f"configs/{path.name}"
    tree = ast.parse(path.read_text())
    title = (ast.get_docstring(tree) or "").splitlines()[0]
    arguments = ", ".join(f"`{key}={value}`" for key, value in arguments_of(tree))
    rows = [f"| `config.{key}` | {code(value)} |" for key, value in set_by(name)]
    opening = f"### {name}\n\n{title}\n\nArguments, with their defaults: {arguments}.\n"
    return "\n".join([opening, "| sets | to |", "|---|---|", *rows, ""])


def set_by(name: str) -> Iterator[tuple[str, Any]]:
    """What a config without arguments sets, other than to what it is anyway."""
    of_evaluators = dataclasses.asdict(EvaluatorConfig())
    for key, _, value in sorted(changes(RunConfig(), run_config(load_config(name)))):
        in_evaluator = key.startswith("evaluators.")
        if not in_evaluator or value != of_evaluators[key.rpartition(".")[2]]:
            yield key, value


def arguments_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What may follow the colon: the keywords of its call of config_arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "config_arguments":
            for keyword in node.keywords:
                yield str(keyword.arg), ast.literal_eval(keyword.value)


def section(path: str, schema: type) -> str:
    """The keys of one dataclass; those that are sections themselves come later."""
    notes = comments(schema)
    usual = {}
    if schema is ModelConfig:
        notes = comments(NetworkConfig) | comments(ViTConfig) | notes
        fields = dataclasses.fields(ViTConfig)
        usual = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    rows = []
    for field in dataclasses.fields(schema):
        default, note = default_of(field), cell(notes.get(field.name, ""))
        if dataclasses.is_dataclass(default) or field.name == "evaluators":
            continue
        means = f": {code(usual[field.name])}" if default is None and field.name in usual else ""
        rows.append(f"| `{path}.{field.name}` | {code(default)}{means} | {note} |")
    about = inspect.getdoc(schema) or ""
    return "\n".join(
        [f"### {path}\n", f"{about}\n", "| key | default | |", "|---|---|---|", *rows, ""]
    )


def comments(schema: type) -> dict[str, str]:
    """Field -> the comment on its line."""
    lines = inspect.getsource(schema).splitlines()
    [body] = ast.parse(inspect.cleandoc("\n".join(lines))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            line = lines[(node.end_lineno or 1) - 1]
            _, mark, text = line[node.end_col_offset or 0 :].partition("#")
            found |= {node.target.id: text.strip()} if mark else {}
    return found


def default_of(field: "dataclasses.Field[Any]") -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def code(value: Any) -> str:
    return f"`{cell(repr(value))}`"


def cell(text: str) -> str:
    """Safe in a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    OUT.write_text(reference())
    print(OUT.relative_to(ROOT))
