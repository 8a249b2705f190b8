"""The paper's pictures of a network: filters, positions, attention, features (section 4.5)."""

from collections.abc import Iterator

import numpy as np

from vit_jax.data.batches import eval_batches, host_batches
from vit_jax.data.compose import Subset
from vit_jax.data.source import Source
from vit_jax.insight import attention, figures
from vit_jax.insight.embedding import as_colours, filters, position_similarity
from vit_jax.insight.pictures import Picture
from vit_jax.models.config import ViTConfig
from vit_jax.models.heads import Classifier

SAMPLE = 128  # images that attention is averaged over (Fig. 7)
_SHOWN = 8  # images with pictures of their own
_LAYERS = 8  # of those with a picture each
_HEADS = 6  # of the last layer


def inspect(
    model: Classifier, sample: np.ndarray | str, shown: np.ndarray | None = None
) -> Iterator[Picture]:
    """All pictures of a model. `sample`: uint8 images to average attention over, or a sentence that
    says why there are none.

    `shown`: others to look at one by one; default: the first of the sample.
    """
    config = model.config
    yield _filters(model)
    yield _positions(model)
    if not attends(model):
        text = f"{config.name} has no attention to look at: it is a ResNet of convolutions."
        yield Picture("attention_distance", "Attention", text)
        return
    if isinstance(sample, str):
        yield Picture("attention_distance", "Attention", sample, is_final=False)
        return
    yield _distances(model, sample)
    if not isinstance(config, ViTConfig) or config.axial:
        yield _lines(model, sample)
    if isinstance(config, ViTConfig):
        yield from _image_by_image(model, sample[:_SHOWN] if shown is None else shown[:_SHOWN])


def attends(model: Classifier) -> bool:
    """Whether a network has any attention."""
    return isinstance(model.config, ViTConfig) or model.config.kind == "axial"


def sample_images(source: Source, size: tuple[int, int], count: int = SAMPLE) -> np.ndarray:
    """uint8 images from all over a data set, as they are evaluated."""
    numbers = np.unique(np.linspace(0, len(source) - 1, count).astype(int))
    batches = eval_batches(
        Subset(source, numbers), batch_size=len(numbers), image_size=size, on_bad_image="skip"
    )
    batch = next(host_batches(batches))
    return batch["image"][batch["mask"] > 0]


def _filters(model: Classifier) -> Picture:
    components = filters(model)
    stem = getattr(model.config, "stem_stages", ()) is not None
    of = "root convolution" if stem else "patch embedding"
    return Picture(
        "filters",
        "Filters",
        f"The first {len(components)} principal components of the {of}'s filters, "
        f"{components.shape[1]}x{components.shape[2]} pixels each: of what a network sees first "
        f"(Fig. 7, left).",
        figures.filters(components),
    )


def _positions(model: Classifier) -> Picture:
    name, title = "position_similarity", "Positions"
    cosines = position_similarity(model)
    if cosines is None:
        return Picture(name, title, f"{model.config.name} adds no positions to its patches.")
    rows, columns = cosines.shape[:2]
    return Picture(
        name,
        title,
        f"Cosine similarity of the position embeddings: for each of the {rows}x{columns} patches a "
        f"tile, with its likeness to all others (Fig. 7, middle).",
        figures.similarity(cosines),
    )


def _distances(model: Classifier, sample: np.ndarray) -> Picture:
    found = attention.distances(model, sample)
    height, width = model.config.image_size
    return Picture(
        "attention_distance",
        "Attention distance",
        f"How far heads look, in pixels of {width} x {height}: the distance between patches, "
        f"weighted by attention, over {len(sample)} images. A dot is a head, the line their mean "
        f"(Fig. 7, right).",
        figures.distances(found),
    )


def _lines(model: Classifier, sample: np.ndarray) -> Picture:
    layers = attention.lines(model, sample)
    shown = np.unique(np.linspace(0, len(layers) - 1, _LAYERS).astype(int))
    return Picture(
        "axial_attention",
        "Row and column attention",
        "Attention along rows and along columns, layer by layer: from each place on a line "
        "(downwards) to each other (rightwards), from none to the most; the mean over heads, lines "
        "and images.",
        figures.lines_by_layer({int(k) + 1: layers[k] for k in shown}),
    )


def _image_by_image(model: Classifier, images: np.ndarray) -> Iterator[Picture]:
    config = model.config
    looks = attention.looks(model, images)
    asked = "class token" if config.pooling == "token" else "mean of the patches"
    yield Picture(
        "attention_rollout",
        "Attention rollout",
        f"What the {asked} is made of, through all layers: attention averaged over heads, the "
        f"identity added for the residual, multiplied up (Fig. 6). Yellow is most.",
        figures.columns_of(images, {"rollout": figures.overlay(images, looks.rollout)}),
    )
    heads = range(min(_HEADS, looks.heads.shape[1]))
    yield Picture(
        "last_layer_heads",
        "Heads of the last layer",
        f"Where the heads look from the {asked}; each from its least to its most.",
        figures.columns_of(
            images,
            {f"head {h + 1}": figures.overlay(images, looks.heads[:, h]) for h in heads},
        ),
    )
    colours = as_colours(looks.tokens).reshape(len(images), *config.grid, 3)
    yield Picture(
        "patch_features",
        "Patch features",
        "Encoded patches by their first three principal components, as red, green and blue: "
        "patches of one colour mean the same to the network.",
        figures.columns_of(images, {"features": figures.enlarged(colours, config.image_size)}),
    )
