"""What is looked at in a run: its images, its mistakes, its network. Each is drawn once per step.

Whatever state a run is in, each study has its pictures or a sentence that says why not.
"""

import contextlib
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluate.predict import find_images, image_files
from vit_jax.insight.batch_picture import batch_picture
from vit_jax.insight.inspection import inspect, sample_images
from vit_jax.insight.mistakes import mistakes
from vit_jax.insight.pictures import Picture, keep, kept, tell_tensorboard
from vit_jax.models.heads import Classifier
from vit_jax.train.config import RunConfig, run_config
from vit_jax.train.loop import stored_config
from vit_jax.weights.load import find_weights, load
from vit_jax.weights.paths import as_path
from vit_jax.weights.run_folder import RunFolder, read_json

Note = Callable[[str], None]  # told what takes a while, before it does


class Study(NamedTuple):
    """A group of pictures, what to call it, and what draws it from a run and its network."""

    group: str
    what: str
    draw: Callable[[RunFolder, "Network"], Iterator[Picture]]


def study_run(
    folder: RunFolder, *, compute: bool = True, note: Note = lambda text: None
) -> Mapping[str, Sequence[Picture]]:
    """Group -> pictures; from its plots/ where they are of its newest weights.

    Without `compute`, those that are there, of whatever step: a run under way is left in peace.
    """
    found = {}
    network = Network(folder)
    for study in STUDIES:
        step = network.step if compute else None
        found[study.group] = kept(folder.plots, study.group, step)
        if not found[study.group]:
            found[study.group] = (
                _drawn(folder, study, network, note) if compute else [_not_yet(folder, study)]
            )
    return found


def inspect_model(
    model: Classifier,
    place: str,
    data: str | None = None,
    images: Sequence[str] | None = None,
    out: pathlib.Path | None = None,
) -> list[pathlib.Path]:
    """Draws all pictures of a network, loaded from `place`; returns where they are.

    With images of `data`, or of the run's own; `images` are files to look at one by one. In the
    run's plots/, from where its report takes them, or in ./plots.
    """
    size, folder = model.config.image_size, RunFolder(as_path(place))
    shown = sample_images(image_files(find_images(images)), size) if images else None
    if data:
        sample = sample_images(open_source(data, "test", size), size)
    elif folder.is_run():
        sample = _own_images(folder, model)
    else:
        sample = "No images were given: attention is looked at with --data or --images."
    if isinstance(sample, str) and shown is not None:
        sample = shown
    pictures = list(inspect(model, sample, shown))
    target = out or (folder.plots if folder.is_run() else pathlib.Path("plots"))
    step = (find_weights(folder.path).step or 0) if folder.is_run() else 0
    keep(target, "inspection", step, pictures)
    if folder.is_run():
        tell_tensorboard(folder, step, pictures)
    for picture in pictures:
        if not picture.png:
            logging.getLogger("vit_jax").info("%s", picture.text)
    return [target / f"{picture.name}.png" for picture in pictures if picture.png]


class Network:
    """The network of a run, loaded when it is first needed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._model = folder, None

    @property
    def step(self) -> int:
        """Of its weights; -1 where there are none."""
        try:
            return find_weights(self._folder.path).step or 0
        except Exception:  # said where the network is needed
            return -1

    @property
    def model(self) -> Classifier:
        if self._model is None:
            self._model = load(self._folder.path)
        return self._model


def _drawn(folder: RunFolder, study: Study, network: Network, note: Note) -> list[Picture]:
    note(f"{folder.path.name}: drawing {study.what} ...")
    try:
        pictures = list(study.draw(folder, network))
    except Exception as error:  # a report opens whatever became of a run's weights and data
        return [_missing(study, error)]
    with contextlib.suppress(OSError):  # a folder to look at only: drawn again another time
        keep(folder.plots, study.group, network.step, pictures)
        tell_tensorboard(folder, network.step, pictures)
    return pictures


def _missing(study: Study, error: Exception) -> Picture:
    why = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    return Picture(study.group, "", f"There is no picture of {study.what}: {' '.join(why.split())}")


def _not_yet(folder: RunFolder, study: Study) -> Picture:
    text = f"Of {study.what} nothing is drawn yet: vit-jax report {folder.path} does it."
    return Picture(study.group, "", text)


def _see_batch(folder: RunFolder, network: Network) -> Iterator[Picture]:
    config = _config(folder)
    yield Picture(
        "batch",
        "The first batch",
        f"Images of {config.data.name} as the network saw them, cropped and augmented, with their "
        f"labels.",
        batch_picture(config, count=32),
    )


def _see_mistakes(folder: RunFolder, network: Network) -> Iterator[Picture]:
    model = network.model
    data, split, crop = _tested_on(folder)
    source = open_source(data, split, model.config.image_size)
    yield from mistakes(model, source, crop=crop, class_names=folder.class_names())


def _see_network(folder: RunFolder, network: Network) -> Iterator[Picture]:
    yield from inspect(network.model, _own_images(folder, network.model))


STUDIES = (
    Study("answers", "its mistakes", _see_mistakes),
    Study("inspection", "what it learned", _see_network),
    Study("input", "what it sees", _see_batch),
)


def _own_images(folder: RunFolder, model: Classifier) -> np.ndarray | str:
    """Of what a run is tested on, or of what it was trained on; or why there are none."""
    size = model.config.image_size
    try:
        data, split, _ = _tested_on(folder)
        try:
            return sample_images(open_source(data, split, size), size)
        except UsageError:  # there may be no such split
            config = _config(folder)
            return sample_images(open_source(config.data.name, config.data.split, size), size)
    except UsageError as error:
        return f"There are no images to look at attention with: {error}."


def _tested_on(folder: RunFolder) -> tuple[str, str, str]:
    """Data, split and crop: of the first evaluator of the kind, else of its own data set."""
    stored = read_json(folder.config)
    evaluators: Mapping[str, Any] = stored.get("evaluators", {})
    for item in evaluators.values():
        if item["kind"] == "classification":
            return item["data"], item["split"], item["crop"]
    return _config(folder).data.name, "test", "resize"


def _config(folder: RunFolder) -> RunConfig:
    if not (stored := stored_config(folder)):
        raise UsageError(f"{folder.path} holds converted weights, and no data to train on")
    return run_config(stored)
