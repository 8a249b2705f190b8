"""One door for weights: a run folder, an npz or a name of the zoo becomes a model."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, as_size
from vit_jax.models.heads import Classifier
from vit_jax.models.network import abstract_params, create_model, graphdef
from vit_jax.models.variants import canonical_name, check_options, network_name
from vit_jax.weights.adapt import Adapted, adapt
from vit_jax.weights.checkpoint import finished_steps, no_good_one, restore_params
from vit_jax.weights.files import read_npz
from vit_jax.weights.lora import GROUP as LORA
from vit_jax.weights.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Place:
    """Where weights lie: what network they are of, and which version of them this is."""

    path: pathlib.Path
    network: NetworkConfig
    step: int | None  # of a run folder's newest checkpoint

    @property
    def version(self) -> str:
        """Changes when the weights do."""
        return f"{self.path.stat().st_size} bytes" if self.step is None else f"step {self.step}"

    def read(self, target: Any) -> Any:
        """The parameters, each laid out as the abstract `target` says."""
        if self.step is not None:
            return _restored(RunFolder(self.path), target, [self.step])
        return jax.tree.map(
            lambda value, leaf: jax.make_array_from_callback(
                leaf.shape, leaf.sharding, lambda index: np.asarray(value)[index]
            ),
            read_weights(self.path).params,
            target,
        )


class Stored(NamedTuple):
    """What lies at a path: a network, its parameters, and names of what is none of them."""

    network: NetworkConfig
    params: dict[str, Any]
    unused: tuple[str, ...] = ()


def load(
    path_or_name: str | pathlib.Path,
    *,
    file_image_size: int | tuple[int, int] | None = None,
    **changes: Any,
) -> Classifier:
    """The model in a run folder or an npz, or a fresh one by name.

    `load("B_16.npz", image_size=384, num_classes=10)`: changes are fields of its config
    (models/config.py), and the weights are adapted to them; what became of them is logged. An npz
    needs no name: its architecture is read off the file, all but the size of images where its
    positions are fixed or its grid is no square, which `file_image_size` says.
    """
    path = pathlib.Path(path_or_name).expanduser()
    if not path.exists() and not _looks_like_path(str(path_or_name)):
        try:
            canonical_name(str(path_or_name))
        except UsageError as error:
            raise UsageError(f"no such file or folder, and {error}") from error
        return create_model(str(path_or_name), **changes)
    own_size = None if file_image_size is None else as_size(file_image_size, "file_image_size")
    stored = read_weights(path, own_size)
    new = _changed(stored.network, changes)
    adapted = adapt(stored.params, stored.network, new, unused=stored.unused)
    level = logging.WARNING if stored.unused else logging.INFO
    logging.getLogger("vit_jax").log(level, "%s: %s", path, adapted.report())
    return nnx.merge(graphdef(new), jax.tree.map(jnp.asarray, adapted.params))


def load_params(path: pathlib.Path, network: NetworkConfig, *, keep_head: bool = True) -> Adapted:
    """The parameters stored at `path`, made to fit `network`."""
    stored = read_weights(path)
    return adapt(stored.params, stored.network, network, keep_head=keep_head, unused=stored.unused)


def read_weights(path: pathlib.Path, image_size: tuple[int, int] | None = None) -> Stored:
    """What lies at `path`, as it is. `image_size` is its own, where a file does not tell."""
    if not path.exists():
        raise UsageError(
            f"no such file or folder: {path}; expected a run folder (a --workdir) or an npz"
        )
    if path.is_file():
        return Stored(*read_npz(path, image_size))
    folder = RunFolder(path)
    network = folder.network()
    return Stored(network, _restored(folder, _on_one_device(network), _steps(folder)))


def find_weights(path: pathlib.Path) -> Place:
    """What lies at `path`, without its numbers where it is a run folder."""
    if path.is_dir():
        folder = RunFolder(path)
        network, steps = folder.network(), _steps(folder)
        if not steps:
            raise UsageError(f"{path} {no_good_one({})}")
        return Place(path, network, steps[0])
    return Place(path, read_weights(path).network, None)


def _steps(folder: RunFolder) -> list[int]:
    """Those to take weights from: the best of a run that says what is best, then the newest."""
    newest = finished_steps(folder.checkpoints)[::-1]
    best = folder.best_step()
    return [best, *newest] if best in newest else newest


def _restored(folder: RunFolder, target: Any, steps: Sequence[int]) -> Any:
    """The parameters of the network, laid out as the abstract `target` says."""
    lora = folder.lora()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, target)
    stored = jax.eval_shape(lora.with_factors, target, jax.random.key(0))
    factors = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_copied(shardings)),
        stored.get(LORA, {}),
    )
    target = {**target, LORA: factors} if factors else target
    params = restore_params(folder.checkpoints, target, steps)
    return jax.jit(lora.merged, out_shardings=shardings)(params) if factors else params


def _copied(shardings: Any) -> jax.sharding.Sharding:
    """Whole on every device of these."""
    some = jax.tree.leaves(shardings)[0]
    is_mesh = isinstance(some, jax.sharding.NamedSharding)
    return jax.sharding.NamedSharding(some.mesh, jax.sharding.PartitionSpec()) if is_mesh else some


def _on_one_device(network: NetworkConfig) -> Any:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        abstract_params(network),
    )


def _changed(network: NetworkConfig, changes: dict[str, Any]) -> NetworkConfig:
    check_options(type(network), network.name, changes)
    for key in ("image_size", "patch_size"):
        if key in changes:
            changes[key] = as_size(changes[key], key)
    changed = dataclasses.replace(network, **changes)
    return dataclasses.replace(changed, name=network_name(changed))


def _looks_like_path(text: str) -> bool:
    # "B/16" has a slash as well, and so has "google/vit-base-patch16-224"; a path starts with a
    # dot, a slash or ~, ends as a file of weights does, or names a parent that is there.
    return (
        text.startswith((".", "/", "~"))
        or text.endswith((".npz", ".pth", ".pt", ".safetensors"))
        or (pathlib.Path(text).parent.is_dir() and "/" in text)
    )
