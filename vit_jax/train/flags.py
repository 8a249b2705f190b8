"""Command-line flags of a run: --config=FILE.py[:ARGUMENTS] --config.key=value --workdir=DIR."""

import pathlib
import re
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import ml_collections
from absl import flags
from ml_collections import config_flags

from vit_jax.errors import UsageError, closest
from vit_jax.home import home

USAGE = (
    "vit-jax train --config=configs/demo.py --workdir=runs/mine [--config.batch_size=64 ...] "
    "[--sweep]"
)


class RunFlags(NamedTuple):
    """What was typed."""

    config: ml_collections.ConfigDict  # with its --config.key=value changes made
    workdir: str
    sweep: bool


def parse_flags(argv: Sequence[str]) -> RunFlags:
    """The flags of a run."""
    values = _parse_with_changes(argv)
    if not values.workdir:
        raise UsageError(f"--workdir is missing; usage: {USAGE}")
    return RunFlags(values.config, values.workdir, values.sweep)


def parse_config(argv: Sequence[str]) -> ml_collections.ConfigDict:
    """The config alone, with its changes made."""
    return _parse_with_changes(argv).config


def load_config(location: str) -> ml_collections.ConfigDict:
    """The config in FILE.py[:ARGUMENTS], as it stands."""
    return parse_config([f"--config={location}"])


def _parse_with_changes(argv: Sequence[str]) -> flags.FlagValues:
    argv = _joined(argv)
    as_it_stands = _parse([argument for argument in argv if not _changed_key(argument)])
    if as_it_stands.config is None:
        raise UsageError(f"--config is missing; usage: {USAGE}")
    for argument in argv:
        if key := _changed_key(argument):
            _check_key(as_it_stands.config, key)
    return _parse(argv)


def _joined(argv: Sequence[str]) -> list[str]:
    """`--flag value` as `--flag=value`."""
    joined: list[str] = []
    for argument in argv:
        if joined and re.fullmatch(r"--?(config[\w.]*|workdir)", joined[-1]):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _parse(argv: Sequence[str]) -> flags.FlagValues:
    argv = ["vit-jax train", *map(_with_found_file, argv)]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "the run's folder", flag_values=values)
    flags.DEFINE_boolean("sweep", False, "choose a learning rate first", flag_values=values)
    try:
        extra = values(argv)[1:]
    except flags.Error as error:
        raise UsageError(f"{' '.join(str(error).split())}; usage: {USAGE}") from error
    except UsageError:
        raise
    except Exception as error:  # whatever the config file itself raised
        raise UsageError(_where(error)) from error
    if extra:
        raise UsageError(f"unexpected argument {extra[0]!r}; usage: {USAGE}")
    return values


def _where(error: Exception) -> str:
    """The line of a config file that went wrong, and how."""
    files = [f for f in traceback.extract_tb(error.__traceback__) if f.name == "get_config"]
    place = f"{files[-1].filename}:{files[-1].lineno}: " if files else ""
    message = " ".join(str(error).split()).partition(" Other fields present")[0]
    return f"the config failed: {place}{type(error).__name__}: {message}"


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
    """Names a file that exists: as given, or that of this name in configs/ of vit_jax itself."""
    match = re.fullmatch(r"--?config=([^:]*)(:.*)?", argument)
    if not match:
        return argument
    given = pathlib.Path(match[1]).expanduser()
    for path in (given, home() / given):
        if path.is_file():
            return f"--config={path}{match[2] or ''}"
    raise UsageError(f"no such config file: {given}; expected --config=configs/FILE.py[:ARGUMENTS]")
