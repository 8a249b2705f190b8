"""Low-rank fine-tuning (LoRA, Hu et al., 2021): kernels stay as they are, small factors learn.

The factors lie beside the parameters, in a group of their own: for a kernel of the encoder's blocks
[layer, in..., out...] they are `down` [layer, in, rank] and `up` [layer, rank, out], and what the
network sees is kernel + alpha / rank x down @ up. Networks and files know nothing of it: weights
are merged before they leave.
"""

import dataclasses
import math
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.errors import UsageError
from vit_jax.weights.layouts import flat, nested

GROUP = "lora"
_BLOCKS = "encoder/blocks/"


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which kernels are changed, and how much they can be."""

    rank: int = 0  # 0: off
    alpha: float = 16.0  # the change counts alpha / rank times
    targets: str = "*attention/*/kernel"  # or "*/kernel": MLPs, too

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise UsageError(f"config.lora.rank={self.rank}: expected 0 (off) or more")

    def with_factors(self, params: dict[str, Any], key: jax.Array) -> dict[str, Any]:
        """The parameters and their factors; the network is what it was, since `up` is zero."""
        if not self.rank:
            return params
        factors: dict[str, jax.Array] = {}
        for number, (path, kernel) in enumerate(flat(params).items()):
            if not (path.startswith(_BLOCKS) and fnmatchcase(path, self.targets)):
                continue
            layers, *_ = kernel.shape
            size_in, size_out = _sides(path, kernel.shape)
            down = jax.random.normal(jax.random.fold_in(key, number), (layers, size_in, self.rank))
            factors[f"{path}/down"] = down / math.sqrt(size_in)
            factors[f"{path}/up"] = jnp.zeros((layers, self.rank, size_out))
        if not factors:
            raise UsageError(
                f"config.lora.targets={self.targets!r} matches no kernel of the encoder's blocks: "
                f"expected a pattern as in '*attention/*/kernel'"
            )
        return {**params, GROUP: nested(factors)}

    def merged(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters of a plain network."""
        if not self.rank:
            return params
        factors = flat(params[GROUP])
        rest = flat({key: value for key, value in params.items() if key != GROUP})
        for path in {name.rpartition("/")[0]: None for name in factors}:
            change = jnp.einsum("lir,lro->lio", factors[f"{path}/down"], factors[f"{path}/up"])
            kernel = rest[path]
            rest[path] = kernel + (self.alpha / self.rank) * change.reshape(kernel.shape)
        return nested(rest)


def _sides(path: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Inputs and outputs of each layer. [layer, width, 3, heads, channels] reads the width;
    attention's `out` [layer, heads, channels, width] writes it."""
    outputs = shape[-1] if path.endswith("/out/kernel") else math.prod(shape[2:])
    return math.prod(shape[1:]) // outputs, outputs
