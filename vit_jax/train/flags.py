"""Command-line flags of a run: --config=FILE.py[:ARGUMENTS] --config.key=value --workdir=DIR."""

import pathlib
import re
from collections.abc import Sequence

import ml_collections
from absl import flags
from ml_collections import config_flags

from vit_jax.errors import UsageError, closest

USAGE = "vit-jax train --config=configs/demo.py --workdir=runs/mine [--config.batch_size=64 ...]"


def parse_flags(argv: Sequence[str]) -> tuple[ml_collections.ConfigDict, str]:
    """The config, with its --config.key=value changes made, and the --workdir."""
    without_changes = [argument for argument in argv if not _changed_key(argument)]
    values = _parse(without_changes)
    for flag in ("config", "workdir"):
        if values[flag].value is None:
            raise UsageError(f"--{flag} is missing; usage: {USAGE}")
    for argument in argv:
        if key := _changed_key(argument):
            _check_key(values.config, key)
    return _parse(argv).config, values.workdir


def load_config(location: str) -> ml_collections.ConfigDict:
    """The config in FILE.py[:ARGUMENTS], as it stands."""
    return _parse([f"--config={location}"]).config


def _parse(argv: Sequence[str]) -> flags.FlagValues:
    argv = ["vit-jax train", *map(_with_found_file, argv)]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "the run's folder", flag_values=values)
    try:
        extra = values(argv)[1:]
    except flags.Error as error:
        raise UsageError(f"{str(error).splitlines()[0]}; usage: {USAGE}") from error
    if extra:
        raise UsageError(f"unexpected argument {extra[0]!r}; usage: {USAGE}")
    return values


def _changed_key(argument: str) -> str | None:
    match = re.match(r"--?config\.([\w.]+)", argument)
    return match and match[1]


def _check_key(config: ml_collections.ConfigDict, key: str) -> None:
    section = config
    for part in key.split("."):
        if not isinstance(section, ml_collections.ConfigDict) or part not in section:
            known = list(section) if isinstance(section, ml_collections.ConfigDict) else []
            raise UsageError(
                f"unknown config key --config.{key}: {part!r} is none of "
                f"{', '.join(known)}.{closest(part, known)}"
            )
        section = section[part]


def _with_found_file(argument: str) -> str:
    """Names a file that exists: as given, or beside the package (configs/ of the source tree)."""
    match = re.fullmatch(r"--?config=([^:]*)(:.*)?", argument)
    if not match:
        return argument
    given = pathlib.Path(match[1]).expanduser()
    for path in (given, pathlib.Path(__file__).parents[2] / given):
        if path.is_file():
            return f"--config={path}{match[2] or ''}"
    raise UsageError(f"no such config file: {given}; expected --config=configs/FILE.py[:ARGUMENTS]")
