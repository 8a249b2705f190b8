"""Where a patch is: the position embeddings of Table 8 that are added to tokens.

Relative positions are not here: they enter the logits (attention.py).
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models.config import ViTConfig


class Positions(nnx.Module):
    """() -> [1, patch tokens, width], the table that is added.

    1-D tables have a row for the class token, as in the published weights; in the others its row
    is zero: the token itself is learned.
    """

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        rows, columns = config.grid

        def normal(*shape: int) -> nnx.Param:
            return nnx.Param(config.position_std * jax.random.normal(rngs.params(), shape))

        if config.positions == "1d":
            self.table = normal(1, config.patch_tokens, config.width)
        elif config.positions == "2d":
            self.rows = normal(rows, config.width // 2)
            self.columns = normal(columns, config.width // 2)
        self.config = config

    def __call__(self) -> jax.Array:
        config = self.config
        if config.positions == "1d":
            return self.table[...]
        if config.positions == "sincos2d":
            grid = jnp.asarray(sincos2d(*config.grid, config.width))
        else:
            # [x; y]: the first half of the channels says which column, the second which row.
            shape = (*config.grid, config.width // 2)
            x = jnp.broadcast_to(self.columns[...], shape)
            y = jnp.broadcast_to(self.rows[...][:, None], shape)
            grid = jnp.concatenate([x, y], axis=-1)
        patches = grid.reshape(1, -1, config.width)
        return jnp.pad(patches, ((0, 0), (int(config.pooling == "token"), 0), (0, 0)))


def sincos2d(rows: int, columns: int, width: int, temperature: float = 10_000.0) -> np.ndarray:
    """[row, column, width]: sin x, cos x, sin y, cos y at width / 4 frequencies each."""
    count = width // 4
    frequencies = temperature ** -(np.arange(count) / max(count - 1, 1))
    y, x = np.mgrid[:rows, :columns][..., None] * frequencies
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=-1, dtype=np.float32)
