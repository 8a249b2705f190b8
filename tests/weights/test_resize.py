"""Position embeddings on another grid."""

import jax
import numpy as np
import pytest
import scipy.ndimage

from vit_jax.weights.resize import (
    resize_axis,
    resize_offsets,
    resize_patches,
    resize_positions,
)


def table(rows, columns, prefix=1, width=5):
    rng = np.random.default_rng(rows)
    return rng.normal(size=(1, prefix + rows * columns, width)).astype(np.float32)


@pytest.mark.parametrize("prefix", [0, 1])
def test_from_224_to_384_pixels_it_equals_the_reference(prefix):
    old = table(14, 14, prefix)
    new = resize_positions(old, (14, 14), (24, 24))
    grid = old[0, prefix:].reshape(14, 14, 5)
    expected = scipy.ndimage.zoom(grid, (24 / 14, 24 / 14, 1), order=1).reshape(24 * 24, 5)
    np.testing.assert_allclose(new[0, prefix:], expected, atol=1e-5)
    np.testing.assert_array_equal(new[:, :prefix], old[:, :prefix])  # the class token's row
    assert new.dtype == np.float32


@pytest.mark.parametrize(("old", "new"), [(28, 48), (28, 24), (16, 30)])
def test_no_row_or_column_is_lost_where_the_reference_writes_zeros(old, new):
    before = table(old, old)
    grid = resize_positions(before, (old, old), (new, new))[0, 1:].reshape(new, new, -1)
    reference = scipy.ndimage.zoom(
        before[0, 1:].reshape(old, old, -1), (new / old, new / old, 1), order=1
    )
    assert np.abs(grid[-1]).min() > 0 and np.abs(grid[:, -1]).min() > 0
    np.testing.assert_allclose(grid[:-1, :-1], reference[:-1, :-1], atol=1e-5)
    np.testing.assert_array_equal(grid[-1, -1], before[0, -1])


@pytest.mark.parametrize(("old", "new"), [((4, 6), (7, 3)), ((2, 5), (2, 5)), ((1, 3), (4, 1))])
def test_non_square_grids(old, new):
    before = table(*old)
    grid = resize_positions(before, old, new)[0, 1:].reshape(*new, -1)
    source = before[0, 1:].reshape(*old, -1)
    for row in range(new[0]):
        for column in range(new[1]):
            at = [
                index * (old[axis] - 1) / max(new[axis] - 1, 1)
                for axis, index in enumerate((row, column))
            ]
            expected = [
                scipy.ndimage.map_coordinates(source[..., c], [[at[0]], [at[1]]], order=1)[0]
                for c in range(5)
            ]
            np.testing.assert_allclose(grid[row, column], expected, atol=1e-5)


def test_a_linear_field_stays_linear():
    ramp = np.arange(8.0).reshape(1, 8, 1).repeat(2, axis=2)
    new = resize_positions(ramp, (1, 8), (1, 15))
    np.testing.assert_allclose(new[0, :, 0], np.arange(15) / 2)


def test_a_table_that_is_no_such_grid_is_refused():
    with pytest.raises(ValueError, match="no 3 x 3 grid"):
        resize_positions(table(4, 4), (3, 3), (2, 2))


def test_offsets_on_the_same_grid_stay():
    offsets = np.random.default_rng(0).normal(size=(2, 2 * 13 - 1, 5))
    np.testing.assert_allclose(resize_offsets(offsets, (3, 4), (3, 4), extra=1), offsets)


def test_offsets_keep_their_meaning_in_rows_and_columns():
    # An embedding that is linear in (rows, columns) says of each new offset where it points.
    def linear(rows, columns):
        offset = np.arange(-(rows * columns - 1), rows * columns)
        down = np.rint(offset / columns)
        return np.stack([down / (rows - 1), (offset - down * columns) / (columns - 1)], axis=-1)

    resized = resize_offsets(linear(5, 5), (5, 5), (9, 9))
    near = [dr * 9 + dc + 80 for dr in range(-4, 5) for dc in range(-4, 5)]
    np.testing.assert_allclose(resized[near], linear(9, 9)[near], atol=1e-6)


def test_offsets_of_one_line_are_interpolated_between_their_neighbours():
    line = np.arange(-3.0, 4)[:, None]
    expected = np.linspace(-3, 3, 13)[:, None]
    np.testing.assert_allclose(resize_offsets(line, (1, 4), (1, 7)), expected)


def test_a_patch_that_grows_and_its_kernel_give_the_same_token():
    rng = np.random.default_rng(0)
    kernel, patch = rng.normal(size=(4, 6, 3, 7)), rng.normal(size=(4, 6, 3))
    resized = resize_patches(kernel, (8, 9))
    grown = np.asarray(jax.image.resize(patch, (8, 9, 3), "bilinear", antialias=False))
    np.testing.assert_allclose(
        np.einsum("hwc,hwcd->d", grown, resized),
        np.einsum("hwc,hwcd->d", patch, kernel),
        atol=1e-4,
    )


def test_shrinking_and_growing_an_axis():
    table = np.arange(6.0)[:, None].repeat(2, axis=1)
    np.testing.assert_allclose(resize_axis(table, 3)[:, 0], [0, 2.5, 5])
    np.testing.assert_allclose(resize_axis(table, 11)[:, 1], np.arange(11) / 2)
