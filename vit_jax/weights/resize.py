"""Parameters that belong to a grid of patches, a patch, or a channel, made to fit other ones."""

import numpy as np


def resize_positions(
    table: np.ndarray, old_grid: tuple[int, int], new_grid: tuple[int, int]
) -> np.ndarray:
    """[..., tokens, width] on the old grid -> the same on the new one, both (rows, columns).

    Bilinear with aligned corners, so that the corner patches keep their embeddings (section 3.2).
    A row for the class token, before those of the grid, is passed through.
    """
    (old_rows, old_columns), (new_rows, new_columns) = old_grid, new_grid
    prefix = table.shape[-2] - old_rows * old_columns
    if prefix not in (0, 1):
        raise ValueError(f"{table.shape[-2]} positions are no {old_rows} x {old_columns} grid")
    *leading, _, width = table.shape
    grid = table[..., prefix:, :].reshape(*leading, old_rows, old_columns, width)
    grid = np.einsum(
        "ab,...bcd,ec->...aed",
        _interpolation(old_rows, new_rows),
        grid,
        _interpolation(old_columns, new_columns),
    )
    resized = grid.reshape(*leading, new_rows * new_columns, width).astype(table.dtype)
    return np.concatenate([table[..., :prefix, :], resized], axis=-2)


def resize_axis(table: np.ndarray, new: int) -> np.ndarray:
    """[..., place, width] along one axis of the grid -> as many places as the new one has."""
    return (_interpolation(table.shape[-2], new) @ table).astype(table.dtype)


def resize_offsets(
    table: np.ndarray, old_grid: tuple[int, int], new_grid: tuple[int, int], extra: int = 0
) -> np.ndarray:
    """[..., 2 tokens - 1, width], a row for each raster offset, on another grid.

    A raster offset is so many rows and so many columns, of which the fewest are meant; these are
    scaled and interpolated as in `resize_positions`. `extra` tokens are in no grid.
    """
    (old_rows, old_columns), (new_rows, new_columns) = old_grid, new_grid
    furthest = old_rows * old_columns + extra - 1
    if table.shape[-2] != 2 * furthest + 1:
        raise ValueError(f"{table.shape[-2]} offsets are not those of {furthest + 1} tokens")
    new_furthest = new_rows * new_columns + extra - 1
    offsets = np.arange(-new_furthest, new_furthest + 1)
    rows = np.clip(np.rint(offsets / new_columns), 1 - new_rows, new_rows - 1)
    columns = offsets - rows * new_columns
    rows = rows * (old_rows - 1) / max(new_rows - 1, 1)
    columns = columns * (old_columns - 1) / max(new_columns - 1, 1)
    result = np.zeros((*table.shape[:-2], len(offsets), table.shape[-1]))
    for row, row_weight in _neighbours(rows):
        for column, column_weight in _neighbours(columns):
            at = np.clip(row * old_columns + column, -furthest, furthest).astype(int) + furthest
            result += table[..., at, :] * (row_weight * column_weight)[:, None]
    return result.astype(table.dtype)


def resize_patches(kernel: np.ndarray, new: tuple[int, int]) -> np.ndarray:
    """[height, width, channel, feature] for patches of another size.

    The pseudo-inverse resize (Beyer et al., 2022): an image resized with its patches keeps its
    tokens, exactly so where patches grow.
    """
    rows, columns = (
        np.linalg.pinv(_half_pixel(old, new_size).T)
        for old, new_size in zip(kernel.shape[:2], new, strict=True)
    )
    return np.einsum("ab,cd,bdef->acef", rows, columns, kernel).astype(kernel.dtype)


def resize_channels(kernel: np.ndarray, new: int) -> np.ndarray:
    """[height, width, channel, feature] for images of so many channels.

    Keeps the answer to an image that is the same in all channels. (Standardised kernels are scaled
    again when they are used, so that in hybrids and ResNets this holds only roughly.)
    """
    old = kernel.shape[2]
    if new < old:
        mean = kernel.mean(axis=2, keepdims=True)
        return (mean * old / new).repeat(new, axis=2)
    source = np.arange(new) % old
    copies = np.bincount(source)[source].astype(kernel.dtype)
    return kernel[:, :, source] / copies[:, None]


def _half_pixel(old: int, new: int) -> np.ndarray:
    """[new, old]: bilinear resizing of an image's side, where pixels are areas, not points."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return _weights(at, old)


def _interpolation(old: int, new: int) -> np.ndarray:
    """[new, old]: bilinear with aligned corners."""
    return _weights(np.linspace(0, old - 1, new), old)


def _weights(at: np.ndarray, old: int) -> np.ndarray:
    """Each row holds the two weights that make the point `at` from the old ones."""
    new = len(at)
    below = np.minimum(at.astype(int), max(old - 2, 0))
    matrix = np.zeros((new, old))
    matrix[np.arange(new), below] = 1 - (at - below)
    matrix[np.arange(new), np.minimum(below + 1, old - 1)] += at - below
    return matrix


def _neighbours(at: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """The whole numbers on both sides, each with its weight."""
    below = np.floor(at)
    return (below, 1 - (at - below)), (below + 1, at - below)
