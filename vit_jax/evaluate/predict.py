"""What a model says of images without labels: the likeliest classes, or features, file by file."""

import csv
import glob
import io
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from vit_jax.data import files
from vit_jax.data.batches import eval_batches, host_batches
from vit_jax.data.folder import EXTENSIONS, ImageFiles
from vit_jax.errors import UsageError
from vit_jax.evaluate.classification import model_logits
from vit_jax.evaluate.features import extract_features


class Prediction(NamedTuple):
    """Classes and their probabilities, the likeliest first; none where the image is unreadable."""

    image: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


def find_images(places: Sequence[str]) -> list[str]:
    """Image files, those in folders, and those that match patterns such as "photos/*.jpg"."""
    found: list[str] = []
    for place in places:
        path = place if files.is_remote(place) else str(pathlib.Path(place).expanduser())
        if files.is_folder(path):
            inside = [f"{path.rstrip('/')}/{name}" for name in files.find(path)]
            matches = [name for name in inside if name.lower().endswith(EXTENSIONS)]
        else:
            matches = [path] if files.is_file(path) else sorted(glob.glob(path, recursive=True))
        if not matches:
            raise UsageError(
                f"no images at {place}: expected an image, a folder that holds some, or a pattern "
                f"in quotes, as in 'photos/*.jpg'"
            )
        found += matches
    return list(dict.fromkeys(found))


def predict(
    model: nnx.Module,
    images: Sequence[str],
    class_names: Sequence[str] = (),
    *,
    top: int = 5,
    batch_size: int = 64,
    crop: str = "resize",
) -> Iterator[Prediction]:
    """The `top` classes of each image, in order; by number where their names are not known."""
    count = model.config.num_classes
    if not count:
        raise UsageError(f"{model.config.name} has no head to predict with: fine-tune it first")
    names = list(class_names) or [str(number) for number in range(count)]
    graphdef, params = nnx.split(model)
    batches = eval_batches(
        image_files(images),
        batch_size=batch_size,
        image_size=model.config.image_size,
        crop=crop,
        on_bad_image="skip",
    )
    remaining = iter(images)
    for batch in host_batches(batches):
        probabilities = np.asarray(jax.nn.softmax(model_logits(graphdef, params, batch["image"])))
        order = np.argsort(-probabilities, axis=-1)[:, :top]
        # The names last: a zip takes one of each, in turn, until something ends.
        rows = zip(probabilities, order, batch["mask"], remaining, strict=False)
        for row, best, mask, image in rows:
            best = best if mask else best[:0]
            yield Prediction(
                image, tuple(names[k] for k in best), tuple(float(row[k]) for k in best)
            )


def embed(
    model: nnx.Module, images: Sequence[str], *, batch_size: int = 64, crop: str = "resize"
) -> tuple[list[str], np.ndarray]:
    """Readable images and their features: float32 [image, feature]."""
    features, _, readable = extract_features(
        model, image_files(images), batch_size, crop=crop, on_bad_image="skip"
    )
    return [name for name, ok in zip(images, readable, strict=True) if ok], features[readable]


def as_csv(predictions: Sequence[Prediction], top: int) -> str:
    """A line for each image: its path, then classes and probabilities in turn."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = [f"{what}_{k + 1}" for k in range(top) for what in ("class", "probability")]
    writer.writerow(["image", *columns])
    for image, classes, probabilities in predictions:
        pairs = zip(classes, (f"{p:.6f}" for p in probabilities), strict=True)
        writer.writerow([image, *(cell for pair in pairs for cell in pair)])
    return stream.getvalue()


def as_json(predictions: Sequence[Prediction]) -> str:
    """A list of {"image", "classes": {name: probability}}."""
    rows: list[dict[str, Any]] = [
        {"image": p.image, "classes": dict(zip(p.classes, p.probabilities, strict=True))}
        for p in predictions
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"


def write_features(path: pathlib.Path, images: list[str], features: np.ndarray) -> None:
    """As .npz (images, features), or as .parquet, for which pyarrow must be there."""
    if path.suffix == ".npz":
        np.savez(path, images=np.array(images), features=features)
    elif path.suffix == ".parquet":
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError as error:
            raise UsageError(f"{path}: parquet needs pyarrow: pip install pyarrow") from error
        table = pyarrow.table({"image": images, "features": list(features)})
        pyarrow.parquet.write_table(table, path)
    else:
        raise UsageError(f"--out={path}: expected a file that ends in .npz or .parquet")


def image_files(images: Sequence[str]) -> ImageFiles:
    """A data set of unlabelled images."""
    return ImageFiles("images", ("",), tuple(images), np.zeros(len(images), np.int32))
