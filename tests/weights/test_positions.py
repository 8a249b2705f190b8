"""Position embeddings on another grid."""

import numpy as np
import pytest
import scipy.ndimage

from vit_jax.weights.positions import resize_positions


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
