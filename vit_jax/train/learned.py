"""Which parameters learn. Those that do not get no gradient, no moments and no update.

A tree of parameters is split in two of the same structure, each with None (no leaf at all, to JAX)
where the other has a parameter; optimizers see those that learn and nothing else.
"""

from collections.abc import Mapping
from typing import Any

import jax

from vit_jax.errors import UsageError
from vit_jax.train.optimizer import multipliers


def which_learn(
    rate_multipliers: Mapping[str, float], params: Any, groups: tuple[str, ...] = ()
) -> Any:
    """True for each parameter whose learning rate is not multiplied by 0.

    Where `groups` are given, parameters outside of them stay as they are unless a pattern says
    otherwise.
    """
    learn = jax.tree.map(
        bool,
        multipliers(
            rate_multipliers, params, lambda path: not groups or path.split("/")[0] in groups
        ),
    )
    if not any(jax.tree.leaves(learn)):
        raise UsageError(
            "optimizer.rate_multipliers freezes every parameter: leave one out, as in "
            "{'head/*': 1.0, '*': 0.0}"
        )
    return learn


def split(tree: Any, learn: Any) -> tuple[Any, Any]:
    """(what learns, what does not) of a tree like that of the parameters."""
    return (
        jax.tree.map(lambda leaf, learns: leaf if learns else None, tree, learn),
        jax.tree.map(lambda leaf, learns: None if learns else leaf, tree, learn),
    )


def joined(learned: Any, fixed: Any) -> Any:
    """The tree that was split."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, learned, fixed, is_leaf=lambda leaf: leaf is None
    )
