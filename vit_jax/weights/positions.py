"""Position embeddings for another grid of patches (section 3.2: a higher resolution)."""

import numpy as np


def resize_positions(
    table: np.ndarray, old_grid: tuple[int, int], new_grid: tuple[int, int]
) -> np.ndarray:
    """[1, tokens, width] on the old grid -> the same on the new one, both (rows, columns).

    Bilinear with aligned corners, so that the corner patches keep their embeddings. A row for the
    class token, before those of the grid, is passed through.
    """
    (old_rows, old_columns), (new_rows, new_columns) = old_grid, new_grid
    prefix = table.shape[1] - old_rows * old_columns
    if prefix not in (0, 1):
        raise ValueError(f"{table.shape[1]} positions are no {old_rows} x {old_columns} grid")
    grid = table[0, prefix:].reshape(old_rows, old_columns, -1)
    grid = np.einsum(
        "ab,bcd,ec->aed",
        _interpolation(old_rows, new_rows),
        grid,
        _interpolation(old_columns, new_columns),
    )
    resized = grid.reshape(1, new_rows * new_columns, -1).astype(table.dtype)
    return np.concatenate([table[:, :prefix], resized], axis=1)


def _interpolation(old: int, new: int) -> np.ndarray:
    """[new, old]: each row holds the two weights that make a new point from the old ones."""
    at = np.linspace(0, old - 1, new)
    below = np.minimum(at.astype(int), max(old - 2, 0))
    matrix = np.zeros((new, old))
    matrix[np.arange(new), below] = 1 - (at - below)
    matrix[np.arange(new), np.minimum(below + 1, old - 1)] += at - below
    return matrix
