"""Checkpoints of a run: which steps there are, and their arrays, verified, onto any devices."""

import logging
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orbax.checkpoint as ocp

from vit_jax.errors import UsageError
from vit_jax.weights.manifest import (
    MANIFEST,
    Damaged,
    check_forms,
    make_manifest,
    read_manifest,
    verify,
)
from vit_jax.weights.paths import in_bucket, resolved, write_bytes

# The names under which a checkpoint keeps the parts of a train state: what a network is, its
# average where the run keeps one, and what only resuming needs.
PARAMS, AVERAGE, PROGRESS = "params", "average", "progress"

# A folder in a bucket cannot appear in one move: Orbax writes this file into it, last of all.
_MARKER = "commit_success.txt"

_READ_AGAIN_SECONDS = 1.0  # a file system may stumble; damage is still there a moment later


def restore_params(checkpoints: pathlib.Path, target: Any, steps: Sequence[int]) -> dict[str, Any]:
    """The parameters of the first of these steps that is good, or their average if it keeps one,
    laid out as the abstract `target` says."""
    reasons = {}
    for number in steps:
        folder = checkpoints / str(number)
        try:
            manifest = read_manifest(folder)
            is_averaged = any(name.startswith(f"{AVERAGE}/") for name in manifest["leaves"])
            item = AVERAGE if is_averaged else PARAMS
            restored = read_items(folder, manifest, {item: target})
            verify(manifest, restored)
            return restored[item]
        except Damaged as error:
            # Left where it is: the run may be another's, or under way.
            logging.getLogger("vit_jax").warning("%s is damaged: %s", folder, error)
            reasons[number] = error
    raise UsageError(f"{checkpoints.parent} {no_good_one(reasons)}")


def no_good_one(reasons: Mapping[int, Damaged]) -> str:
    """Why there is nothing to restore."""
    if not reasons:
        return "has no checkpoint yet: wait for its first, or train"
    damages = "; ".join(f"step {step}: {reason}" for step, reason in reasons.items())
    return f"has no good checkpoint, all there are cannot be used ({damages})"


def read_items(
    folder: pathlib.Path, manifest: Mapping[str, Any], targets: Mapping[str, Any]
) -> dict[str, Any]:
    """Items of one step, laid out as the abstract `targets` say; not yet verified.

    Each process reads by itself, without waiting for others: one that cannot must be able to say
    so. That is why this is Orbax's handler and not its manager.
    """
    check_forms(manifest, targets, str(folder))
    for attempt in range(2):
        try:
            return {name: _read(resolved(folder) / name, item) for name, item in targets.items()}
        except Exception as error:  # of many kinds: what it is depends on the byte that is wrong
            if attempt:
                text = " ".join(str(error).split())
                raise Damaged(f"it cannot be read: {text[:200]}") from error
        time.sleep(_READ_AGAIN_SECONDS)
    raise AssertionError


def _read(path: pathlib.Path, target: Any) -> Any:
    handler = ocp.StandardCheckpointHandler()
    try:
        return handler.restore(path, args=ocp.args.StandardRestore(target))
    finally:
        handler.close()


def save_args(items: Mapping[str, Any], notes: Mapping[str, Any]) -> ocp.args.Composite:
    """What Orbax is to write for one step: the items, and the manifest about them."""
    arrays = {name: ocp.args.StandardSave(value) for name, value in items.items()}
    manifest = ocp.args.JsonSave(make_manifest(items, notes))
    return ocp.args.Composite(**arrays, **{MANIFEST: manifest})


def all_steps(checkpoints: pathlib.Path) -> list[int]:
    """All that are there by name, oldest first."""
    try:
        found = [path for path in checkpoints.iterdir() if path.name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    # In a bucket what is no folder has no name of digits, and each would be asked for.
    return sorted(int(path.name) for path in found if in_bucket(path) or path.is_dir())


def finished_steps(checkpoints: pathlib.Path) -> list[int]:
    """Those that were saved to their end, oldest first."""
    return sorted(_newest_first(checkpoints))


def _newest_first(checkpoints: pathlib.Path) -> Iterator[int]:
    """Finished steps, each looked at when it is asked for: in a bucket that takes a while."""
    steps = all_steps(checkpoints)[::-1]
    is_any_marked = False
    for step in steps:
        if is_marked(checkpoints / str(step)) and _has_manifest(checkpoints / str(step)):
            is_any_marked = True
            yield step
    if not is_any_marked:  # a run that was copied into a bucket has no markers at all
        yield from (step for step in steps if _has_manifest(checkpoints / str(step)))


def _has_manifest(folder: pathlib.Path) -> bool:
    try:
        read_manifest(folder)
        return True
    except Damaged:
        return False


def is_marked(folder: pathlib.Path) -> bool:
    """Whether the step was saved to its end, as far as a look at its folder tells."""
    return not in_bucket(folder) or (folder / _MARKER).exists()


def mark(folder: pathlib.Path) -> None:
    """For Orbax, which would delete the step in a bucket otherwise."""
    write_bytes(folder / _MARKER, b"")


def latest_step(checkpoints: pathlib.Path) -> int | None:
    """The newest finished step, or None."""
    return next(_newest_first(checkpoints), None)


def what_is_left(checkpoints: pathlib.Path) -> str:
    """For the last words of a run."""
    step = latest_step(checkpoints)
    return (
        "there is no checkpoint yet" if step is None else f"the checkpoint of step {step} is good"
    )
