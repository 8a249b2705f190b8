"""One of several arrays of a kind, where they lie together."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from vit_jax.models.activations import BATCH_AXES, on_mesh

FREE = PartitionSpec.UNCONSTRAINED


class Kept(NamedTuple):
    """stack[slot]. Kernels read it there, and what is written is not copied."""

    stack: jax.Array  # [slot, ...]
    slot: jax.Array  # int32 scalar

    @classmethod
    def alone(cls, value: jax.Array) -> "Kept":
        return cls(value[None], jnp.int32(0))

    def read(self) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(self.stack, self.slot, keepdims=False)

    def written(self, value: jax.Array) -> "Kept":
        value = value.astype(self.stack.dtype)
        stack = jax.lax.dynamic_update_index_in_dim(self.stack, value, self.slot, 0)
        return self._replace(stack=stack)

    @property
    def index(self) -> jax.Array:
        """The slot, as kernels take it: int32 [1]."""
        return jnp.asarray(self.slot, jnp.int32).reshape(1)


def empty_stack(slots: int, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """[slot, batch, ...], split over the batch, with nothing in it yet."""
    stack = jax.lax.empty((slots, *shape), dtype)
    if not on_mesh():
        return stack
    spec = PartitionSpec(None, BATCH_AXES, *(FREE,) * (len(shape) - 1))
    return jax.lax.with_sharding_constraint(stack, spec)
