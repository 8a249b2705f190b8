"""The 1,797 handwritten digits that ship with scikit-learn: real images, 8 x 8, no download."""

import functools
from typing import Literal

import numpy as np

from vit_jax.data.source import Example, check_index

TEST_PER_CLASS = 50


class Digits:
    """1,297 digits to train on and 500 (50 of each) to test on.

    Images keep their native size, uint8 [8, 8, 3]; enlarging them is the decoder's business.
    """

    name = "digits"
    class_names = tuple("0123456789")

    def __init__(self, split: Literal["train", "test"]):
        self._images, self.labels = _load()[split]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        check_index(self, index)
        return Example(
            image=np.repeat(self._images[index][..., None], 3, axis=-1),
            label=np.array(self.labels[index]),
        )


@functools.cache
def _load() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Split name -> images uint8 [n, 8, 8], labels int32 [n]."""
    # Here and not above: importing scikit-learn takes a second that most runs need not spend.
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    images = np.round(values * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    labels = labels.astype(np.int32)
    # Neighbours in the file are by the same hand. Its end is held out, hands the model has hardly
    # seen: nearest neighbours err three times as often there as on a shuffled split.
    test = np.sort(
        np.concatenate([np.flatnonzero(labels == c)[-TEST_PER_CLASS:] for c in range(10)])
    )
    train = np.setdiff1d(np.arange(len(labels)), test)
    return {"train": (images[train], labels[train]), "test": (images[test], labels[test])}
