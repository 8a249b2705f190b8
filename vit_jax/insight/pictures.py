"""Pictures of a run with what they show, kept in its plots/ folder until its weights change."""

import pathlib
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from vit_jax.weights.paths import write_bytes
from vit_jax.weights.run_folder import RunFolder, read_json, write_json


class Picture(NamedTuple):
    """A file's name without its ending, what it shows, and the PNG; without one, why not."""

    name: str
    title: str
    text: str
    png: bytes | None = None
    is_final: bool = True  # else there may be a picture another time, of the same weights


def keep(folder: pathlib.Path, group: str, step: int, pictures: Sequence[Picture]) -> None:
    """Writes NAME.png each, and GROUP.json that says what they show and of which step they are:
    if they are all there can be."""
    for picture in pictures:
        if picture.png:
            write_bytes(folder / f"{picture.name}.png", picture.png)
    if not all(picture.is_final for picture in pictures):
        return
    # Last, so that it names what is there.
    entries = [p._replace(png=bool(p.png))._asdict() for p in pictures]
    write_json(folder / f"{group}.json", {"step": step, "pictures": entries})


def kept(folder: pathlib.Path, group: str, step: int | None) -> list[Picture]:
    """What was written for that step, or for any; nothing where it is not all there."""
    try:
        index = read_json(folder / f"{group}.json")
        if step not in (None, index["step"]):
            return []
        return [
            Picture(**p)._replace(png=_read(folder, p["name"]) if p["png"] else None)
            for p in index["pictures"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def tell_tensorboard(folder: RunFolder, step: int, pictures: Sequence[Picture]) -> None:
    """The same pictures under its Images, beside the scalars that the run wrote.

    In a folder of their own: of several files in one, TensorBoard reads on in the last.
    """
    values = [
        Summary.Value(tag=p.name, image=Summary.Image(encoded_image_string=p.png, colorspace=4))
        for p in pictures
        if p.png
    ]
    with tempfile.TemporaryDirectory() as here:  # the folder may be in a bucket
        writer = EventsWriter(str(pathlib.Path(here) / "events"))
        writer.write_event(Event(step=step, summary=Summary(value=values)))
        writer.close()
        for file in pathlib.Path(here).iterdir():
            write_bytes(folder.tensorboard / "pictures" / file.name, file.read_bytes())


def _read(folder: pathlib.Path, name: str) -> bytes:
    return (folder / f"{pathlib.Path(name).name}.png").read_bytes()
