"""One door for weights: a path or a name becomes a model."""

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
from vit_jax.weights.hugging_face import read_hugging_face
from vit_jax.weights.kind import kind_of
from vit_jax.weights.layouts import flat
from vit_jax.weights.locate import locate, looks_like_path
from vit_jax.weights.lora import GROUP as LORA
from vit_jax.weights.paths import exists, size_of
from vit_jax.weights.run_folder import RunFolder
from vit_jax.weights.stored import Stored
from vit_jax.weights.table import NEW, Row
from vit_jax.weights.timm_folder import read_timm


@dataclasses.dataclass(frozen=True)
class Place:
    """Where weights lie: what network they are of, and which version of them this is."""

    path: pathlib.Path
    network: NetworkConfig
    step: int | None  # of a run folder's newest checkpoint

    @property
    def version(self) -> str:
        """Changes when the weights do."""
        if self.step is not None:
            return f"step {self.step}"
        is_file = self.path.is_file()
        files = [self.path] if is_file else sorted(self.path.glob("*.safetensors"))
        return f"{sum(map(size_of, files))} bytes"

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


class Loaded(NamedTuple):
    """A model, what became of each stored parameter, and its classes where they are known."""

    model: Classifier
    table: tuple[Row, ...]
    class_names: tuple[str, ...]
    report: str  # the table in one line


def load(
    path_or_name: str | pathlib.Path,
    *,
    file_image_size: int | tuple[int, int] | None = None,
    **changes: Any,
) -> Classifier:
    """The model in a run folder, an npz, or a folder of transformers or timm; or one by name.

    `load("B_16.npz", image_size=384, num_classes=10)`: changes are fields of its config
    (models/config.py), and the weights are adapted to them; what became of them is logged.

    Names: a repository of the Hugging Face hub (google/vit-base-patch16-224, timm's too), a
    checkpoint of AugReg, which are fetched; or a network of the zoo (B/16), which is fresh.

    An npz needs no name: its architecture is read off the file, all but the size of images where
    its positions are fixed or its grid is no square, which `file_image_size` says.
    """
    loaded = load_with_table(path_or_name, file_image_size=file_image_size, **changes)
    level = logging.WARNING if any(row.is_stray for row in loaded.table) else logging.INFO
    logging.getLogger("vit_jax").log(level, "%s: %s", path_or_name, loaded.report)
    return loaded.model


def load_with_table(
    path_or_name: str | pathlib.Path,
    *,
    file_image_size: int | tuple[int, int] | None = None,
    **changes: Any,
) -> Loaded:
    """`load`, with a row for each parameter that says whether it was loaded, resized, ...

    `vit_jax.table_text(loaded.table)` is the table as text.
    """
    path = locate(path_or_name)
    if not exists(path) and not looks_like_path(str(path_or_name)):
        return _fresh(str(path_or_name), changes)
    own_size = None if file_image_size is None else as_size(file_image_size, "file_image_size")
    stored = read_weights(path, own_size)
    new = _changed(stored.network, changes)
    adapted = adapt(stored.params, stored.network, new, unused=stored.unused)
    model = nnx.merge(graphdef(new), jax.tree.map(jnp.asarray, adapted.params))
    has_same_classes = new.num_classes == len(stored.class_names)
    names = stored.class_names if has_same_classes else ()
    return Loaded(model, adapted.rows, names, adapted.report())


def load_params(
    name: str | pathlib.Path, network: NetworkConfig, *, keep_head: bool = True
) -> Adapted:
    """The parameters that `name` stands for, as in `load`, made to fit `network`."""
    stored = read_weights(locate(name))
    return adapt(stored.params, stored.network, network, keep_head=keep_head, unused=stored.unused)


def read_weights(path: pathlib.Path, image_size: tuple[int, int] | None = None) -> Stored:
    """What lies at `path`, as it is. `image_size` is its own, where a file does not tell."""
    if not exists(path):
        raise UsageError(
            f"no such file or folder: {path}; expected a run folder (a --workdir), an npz, or a "
            f"folder with config.json and model.safetensors"
        )
    if path.is_file() and path.suffix != ".safetensors":
        return Stored(*read_npz(path, image_size))
    place = _folder_of(path)
    kind = kind_of(place)
    if kind != "run":
        return read_hugging_face(place) if kind == "hf" else read_timm(place)
    if place != path:
        raise UsageError(f"{path} needs the config.json beside it that says which network it is of")
    folder = RunFolder(path)
    network = folder.network()
    params = _restored(folder, _on_one_device(network), _steps(folder))
    return Stored(network, params, class_names=folder.class_names())


def find_weights(name: str | pathlib.Path) -> Place:
    """What `name` stands for, as in `load`; without its numbers where it is a run folder."""
    path = locate(name)
    if path.is_dir() and kind_of(path) == "run":
        folder = RunFolder(path)
        network, steps = folder.network(), _steps(folder)
        if not steps:
            raise UsageError(f"{path} {no_good_one({})}")
        return Place(path, network, steps[0])
    return Place(path, read_weights(path).network, None)


def _fresh(name: str, changes: dict[str, Any]) -> Loaded:
    try:
        canonical_name(name)
    except UsageError as error:
        raise UsageError(f"no such file or folder, and {error}") from error
    model = create_model(name, **changes)
    leaves = flat(abstract_params(model.config))
    rows = tuple(Row(NEW, path, None, leaf.shape, "random") for path, leaf in leaves.items())
    return Loaded(model, rows, (), "fresh, with random numbers")


def _folder_of(path: pathlib.Path) -> pathlib.Path:
    """The folder itself, or that of a file of it."""
    return path.parent if path.suffix == ".safetensors" and path.is_file() else path


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
