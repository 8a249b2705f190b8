"""What a run is made of: the one schema that configs/, the command line and the trainer share.

configs/*.py start from `default_config()` and set plain values; `run_config` turns the result
into frozen dataclasses and refuses what the schema does not know.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections import config_dict

from vit_jax.errors import UsageError, closest
from vit_jax.models.config import DTYPES, NOT_IN_WEIGHTS, NetworkConfig, as_size
from vit_jax.models.variants import model_config, network_name, schema_of
from vit_jax.weights.lora import Lora

LOSSES = ("softmax", "sigmoid", "masked_patch")


def _at_least(least: int, key: str, value: float) -> None:
    if value < least:
        raise UsageError(f"config.{key}={value}: expected {least} or more")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A name of the zoo and what differs from it; see models/config.py for the meanings.

    None: as the name says. What a network does not have (a ResNet's dropout) cannot be set.
    """

    name: str = "B/16"  # empty: as the weights that it starts from (config.init)
    head_bias: float = 0.0
    dtype: str = "float32"
    remat: str = "none"
    # Vision Transformers
    pooling: str | None = None
    representation_size: int | None = None
    positions: str | None = None
    positions_at: str | None = None
    position_std: float | None = None
    registers: int | None = None
    layer_scale: float | None = None
    qk_norm: bool | None = None
    attention: str | None = None
    scan: bool | None = None
    dropout: float | None = None
    stochastic_depth: float | None = None
    # Shapes that have no name, as those of the paper's Fig. 8
    width: int | None = None
    depth: int | None = None
    mlp_dim: int | None = None
    heads: int | None = None


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """What to train on. A built-in (glyphs, visual_atoms, digits) or a folder of class folders."""

    name: str = ""
    split: str = "train"
    crop: str = "inception"  # or "random": a place in an image a little larger; "resize": all of it
    flip: bool = True  # mirror half of the images; wrong for letters and digits
    threads: int = 0  # that decode and crop, on each host; 0: one per core
    workers: int = 0  # processes that share this work; 0: the threads of the trainer itself
    on_bad_image: str = "skip"  # another one in its place, always the same; or "raise"
    bad_images_allowed: float = 0.01  # of all images read: a run with more of them ends

    def __post_init__(self) -> None:
        _at_least(0, "data.threads", self.threads)
        _at_least(0, "data.workers", self.workers)
        if not 0 <= self.bad_images_allowed <= 1:
            raise UsageError(
                f"config.data.bad_images_allowed={self.bad_images_allowed}: expected a share from "
                f"0 to 1"
            )


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """What happens to images on the device, after flipping; 0: off."""

    mixup: float = 0.0  # alpha of the Beta distribution that weights are drawn from
    cutmix: float = 0.0  # likewise, of the area; with both on, each step takes one of them
    erasing: float = 0.0  # the chance of an image to lose a box
    randaugment_layers: int = 0  # operations on each image
    randaugment_magnitude: float = 10.0

    def __post_init__(self) -> None:
        for key, value in dataclasses.asdict(self).items():
            _at_least(0, f"augment.{key}", value)
        if self.erasing > 1:
            raise UsageError(f"config.augment.erasing={self.erasing}: expected a chance up to 1")


@dataclasses.dataclass(frozen=True)
class MaskedConfig:
    """Masked patch prediction (loss="masked_patch"): what is predicted, of how many patches."""

    target: str = "mean_colour"  # or "4x4_colours", "pixels"
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"config.masked.share={self.share}: expected more than 0, up to 1")


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
    """Distillation: a trained network whose answers are learned from (softmax, sigmoid)."""

    path: str = ""  # whatever `vit_jax.load` takes; empty: none
    weight: float = 1.0  # of its answers, against that of the labels
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise UsageError(f"config.teacher.weight={self.weight}: expected more than 0, up to 1")
        if not self.temperature > 0:
            raise UsageError(f"config.teacher.temperature={self.temperature}: expected more than 0")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam with decoupled decay for pre-training, SGD with momentum for fine-tuning.

    Multipliers are numbers by patterns of parameter paths, as in {"embedding/*": 0.0}, which
    freezes the embedding (no gradient, no moments); the longest that matches a whole path counts.
    """

    name: str = "adamw"  # or "sgd", "adafactor" (in its scaled-up form)
    learning_rate: float = 1e-3
    schedule: str = "cosine"  # or "linear", "rsqrt", "constant"
    warmup: str = "0 steps"
    cooldown: str = "0 steps"  # linear, to end_learning_rate (rsqrt, constant)
    timescale: str = "10_000 steps"  # (rsqrt)
    end_learning_rate: float = 0.0
    weight_decay: float = 0.0  # times the learning rate, on kernels only (adamw, adafactor)
    b1: float = 0.9
    b2: float = 0.999
    momentum: float = 0.9  # (sgd)
    moment_dtype: str = "float32"  # of the first moment; "bfloat16" saves a quarter of the state
    clip_norm: float = 0.0  # of the global gradient norm; 0: off
    rate_multipliers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    decay_multipliers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    layer_decay: float = 1.0  # of the learning rate, from each layer to the one below
    polyak: float = 0.0  # > 0: evaluate an average of the parameters that forgets by 1 - this

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise UsageError(
                f"config.optimizer.learning_rate={self.learning_rate}: expected more than 0"
            )
        if self.moment_dtype not in DTYPES:
            raise UsageError(
                f"config.optimizer.moment_dtype={self.moment_dtype!r}: expected one of "
                f"{', '.join(DTYPES)}"
            )
        for key in ("polyak", "layer_decay"):
            if not 0 <= getattr(self, key) <= 1:
                raise UsageError(
                    f"config.optimizer.{key}={getattr(self, key)}: expected from 0 to 1"
                )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; one of them may be -1, "what is left"."""

    replica: int = -1
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True)
class EvaluatorConfig:
    """Something measured while training, always at the end, and every so often before."""

    kind: str = "classification"  # or "fewshot", "linear", "neighbours", on frozen features
    data: str = ""
    split: str = "test"
    crop: str = "resize"  # or "centre": the middle in its own proportions
    every: str = "10%"
    shots: tuple[int, ...] = (1, 5, 10, 25)  # images of each class (fewshot)
    seeds: int = 3  # draws of them


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Trials of `vit-jax train --sweep` (train/sweep.py)."""

    rates: tuple[float, ...] = ()  # learning rates to try
    metric: str = "validation/accuracy"  # that decides
    final_split: str = "train"  # what the final runs are trained on
    seeds: int = 3  # of final runs

    def __post_init__(self) -> None:
        _at_least(1, "sweep.seeds", self.seeds)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One training run. Durations read "90 epochs", "500 steps", "1_000_000 examples" or "5%"."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    masked: MaskedConfig = MaskedConfig()
    teacher: TeacherConfig = TeacherConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: Lora = dataclasses.field(default_factory=Lora)
    mesh: MeshConfig = MeshConfig()
    evaluators: Mapping[str, EvaluatorConfig] = dataclasses.field(default_factory=dict)
    sweep: SweepConfig = SweepConfig()
    image_size: int | tuple[int, int] = 224
    batch_size: int = 4096  # of all devices together
    accumulation: int = 1  # microbatches whose gradients make one step
    total: str = "90 epochs"  # or "by size", for fine-tuning: more steps for more images
    loss: str = "softmax"  # or "sigmoid", for several labels per image; or "masked_patch"
    label_smoothing: float = 0.0
    class_weights: str = ""  # "balanced", or as in "cat=2, dog=0.5"; the others count 1
    init: str = ""  # to start from, whatever `vit_jax.load` takes: fine-tuning
    seed: int = 0
    log_every: str = "50 steps"
    checkpoint_every: str = "10%"  # or by the clock, "10 minutes", "1 hour"
    checkpoints_kept: int = 2  # the newest
    keep_every: str = ""  # keep the first checkpoint of every so long besides, as in "5 epochs"
    best_by: str = ""  # a metric, as in "validation/accuracy": its best step is kept, and is used
    patience: int = 0  # > 0: stop after so many evaluations without a better one
    alarm_seconds: float = 60.0  # tell what all threads do when a step takes longer; 0: never
    bad_steps_allowed: int = 20  # in a row, with a loss or gradient that is not finite
    spike_norm: float = 0.0  # > 0: a step whose gradient is larger is not applied either

    def __post_init__(self) -> None:
        _at_least(1, "batch_size", self.batch_size)
        _at_least(1, "accumulation", self.accumulation)
        _at_least(1, "bad_steps_allowed", self.bad_steps_allowed)
        _at_least(0, "seed", self.seed)
        _at_least(1, "checkpoints_kept", self.checkpoints_kept)
        _at_least(0, "alarm_seconds", self.alarm_seconds)
        _at_least(0, "patience", self.patience)
        if self.patience and not self.best_by:
            raise UsageError(
                f"config.patience={self.patience} needs --config.best_by=..., a metric, as "
                f"in validation/accuracy"
            )
        if self.best_by and self.best_by.partition("/")[0] not in self.evaluators:
            raise UsageError(
                f"config.best_by={self.best_by!r}: expected EVALUATOR/METRIC with one of the "
                f"evaluators {', '.join(self.evaluators) or '(there are none)'}, as in "
                f"validation/accuracy"
            )
        if self.loss not in LOSSES:
            raise UsageError(f"config.loss={self.loss!r}: expected one of {', '.join(LOSSES)}")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"config.label_smoothing={self.label_smoothing}: expected from 0 to less than 1"
            )
        for key, value in (
            ("teacher.path", self.teacher.path),
            ("label_smoothing", self.label_smoothing),
            ("class_weights", self.class_weights),
            ("model.head_bias", self.model.head_bias),
        ):
            if self.loss == "masked_patch" and value:
                raise UsageError(
                    f"config.{key}={value!r}: loss=masked_patch has no labels, leave it out"
                )


def default_config(**values: Any) -> ml_collections.ConfigDict:
    """The whole schema at its defaults, with top-level `values` replaced, keys locked."""
    config = ml_collections.ConfigDict(dataclasses.asdict(RunConfig()), convert_dict=True)
    for key, hint in typing.get_type_hints(ModelConfig).items():
        if config.model[key] is None:  # a flag that sets it must know its type
            config.model[key] = config_dict.placeholder(_without_none(hint))
    config.lock()
    # Their keys are names that each config chooses.
    config.evaluators.unlock()
    config.optimizer.rate_multipliers.unlock()
    config.optimizer.decay_multipliers.unlock()
    with config.ignore_type():  # an image size may be a number or a pair
        for key, value in values.items():
            config[key] = value
    return config


def evaluator(data: str, **values: Any) -> ml_collections.ConfigDict:
    """A value for `config.evaluators`."""
    return ml_collections.ConfigDict(dataclasses.asdict(EvaluatorConfig(data=data, **values)))


def config_arguments(text: str | None, **defaults: str) -> types.SimpleNamespace:
    """Reads what follows the colon in --config=file.py:model=B/16,data=digits."""
    values = dict(defaults)
    for item in filter(None, (text or "").split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in defaults:
            raise UsageError(
                f"config argument {item!r}: expected KEY=VALUE with KEY one of "
                f"{', '.join(defaults)}.{closest(key, defaults)}"
            )
        values[key] = value
    return types.SimpleNamespace(**values)


def run_config(config: Mapping[str, Any]) -> RunConfig:
    """The typed, frozen form of a config; unknown keys and wrong types are errors."""
    values = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    return _build(RunConfig, values, "config")


def changes(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) wherever two configs differ, keys as in optimizer.name."""
    a, b = (flat(dataclasses.asdict(config)) for config in (old, new))
    return [(key, a.get(key), b.get(key)) for key in a | b if a.get(key) != b.get(key)]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as in optimizer.name."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


# What fine-tuning takes over from the network that it starts from, unless its config says else.
_OF_A_RUN = {"num_classes", "image_size", "representation_size", "patch_outputs", "channels"}
INHERITED = (
    "pooling", "positions", "positions_at", "registers", "layer_scale", "qk_norm", "activation",
    "norm_epsilon",
)  # fmt: skip


def network_config(
    config: RunConfig, num_classes: int, init: NetworkConfig | None = None, **more: Any
) -> NetworkConfig:
    """The network that a run trains, starting from `init`; `more` is what its objective decides."""
    chosen = {k: v for k, v in dataclasses.asdict(config.model).items() if v is not None}
    name = chosen.pop("name")
    values = {**chosen, **more, "num_classes": num_classes}
    if name:
        known = _known_options(schema_of(name), name, chosen)
        inherited = {k: getattr(init, k) for k in INHERITED if hasattr(init, k) and k in known}
        return model_config(name, **inherited | values, image_size=config.image_size)
    if init is None:
        raise UsageError(
            "config.model.name is empty and there is no config.init to take it from: name a "
            "network, as in --config.model.name=B/16, or give weights"
        )
    schema = type(init)
    known = _known_options(schema, init.name, chosen)
    inherited = {k: getattr(init, k) for k in known - NOT_IN_WEIGHTS - _OF_A_RUN}
    network = schema(**inherited | values, name=init.name, image_size=as_size(config.image_size))
    return dataclasses.replace(network, name=network_name(network))


def _known_options(schema: type[NetworkConfig], name: str, chosen: Mapping[str, Any]) -> set[str]:
    """All options of a kind of network, of which those `chosen` have to be."""
    known = {field.name for field in dataclasses.fields(schema)}
    for key in chosen.keys() - known:
        raise UsageError(
            f"config.model.{key}={chosen[key]!r} is set, by the config file or on the command "
            f"line, but {name} has no such option: leave it out"
        )
    return known


def _build(schema: Any, values: Any, path: str) -> Any:
    if not isinstance(values, Mapping):
        raise UsageError(f"{path}={values!r}: expected a section with keys, not one value")
    hints = typing.get_type_hints(schema)
    for key in values:
        if key not in hints:
            raise UsageError(
                f"unknown config key {path}.{key}.{closest(key, hints)} "
                f"Keys of {path}: {', '.join(hints)}"
            )
    return schema(
        **{key: _convert(hints[key], value, f"{path}.{key}") for key, value in values.items()}
    )


def _convert(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)
    if typing.get_origin(hint) is Mapping:
        return {
            key: _convert(typing.get_args(hint)[1], v, f"{path}.{key}") for key, v in value.items()
        }
    if typing.get_origin(hint) is tuple and isinstance(value, tuple | list):
        return tuple(_convert(typing.get_args(hint)[0], v, path) for v in value)
    if path == "config.image_size":
        return value if isinstance(value, int) else tuple(value)
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = _without_none(hint)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise UsageError(f"{path}={value!r}: expected {hint.__name__}, got {type(value).__name__}")
    return value


def _without_none(hint: Any) -> Any:
    """`str` from `str | None`."""
    chosen, *_ = (part for part in typing.get_args(hint) if part is not types.NoneType)
    return chosen
