"""Bodies of ResNets: a root that halves twice, then stages of bottleneck units, scanned."""

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.activations import over_batch
from vit_jax.models.attention import AxialWeights
from vit_jax.models.axial_attention import AxialMixer
from vit_jax.models.convolution import BIT, HYBRID, StandardizedConv, group_norm, max_pool
from vit_jax.models.stack import See, rematerialized, scan, stack

EXPANSION = 4  # a unit's outputs per channel of its bottleneck


class ConvMixer(nnx.Module):
    """The 3 x 3 convolution of a post-activation unit, with its norm."""

    def __init__(self, channels: int, *, stride: int, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.conv = StandardizedConv(
            channels, channels, 3, HYBRID, stride=stride, dtype=dtype, rngs=rngs
        )
        self.norm = group_norm(channels, HYBRID, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class PostActivationUnit(nnx.Module):
    """conv, norm, ReLU, mixer, ReLU, conv, norm, add, ReLU: of the hybrids and axial ResNets."""

    def __init__(
        self,
        inputs: int,
        channels: int,
        *,
        stride: int,
        make_mixer: Callable[..., nnx.Module],
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        outputs = EXPANSION * channels
        conv = functools.partial(StandardizedConv, size=1, flavour=HYBRID, dtype=dtype, rngs=rngs)
        norm = functools.partial(group_norm, flavour=HYBRID, dtype=dtype, rngs=rngs)
        self.projects = inputs != outputs or stride != 1
        if self.projects:
            self.projection = conv(inputs, outputs, stride=stride)
            self.projection_norm = norm(outputs)
        self.conv1, self.norm1 = conv(inputs, channels), norm(channels)
        self.mixer = make_mixer(channels=channels, stride=stride, dtype=dtype, rngs=rngs)
        self.conv3, self.norm3 = conv(channels, outputs), norm(outputs, scale=0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        shortcut = self.projection_norm(self.projection(x)) if self.projects else x
        x = jax.nn.relu(self.mixer(self._narrowed(x)))
        return jax.nn.relu(shortcut + self.norm3(self.conv3(x)))

    def weights(self, x: jax.Array) -> AxialWeights:
        """Who attends to whom, where the mixer attends."""
        return self.mixer.weights(self._narrowed(x))

    def _narrowed(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.norm1(self.conv1(x)))


class PreActivationUnit(nnx.Module):
    """norm, ReLU, conv three times, add: of the BiT networks."""

    def __init__(
        self, inputs: int, channels: int, *, stride: int, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        outputs = EXPANSION * channels
        conv = functools.partial(StandardizedConv, flavour=BIT, dtype=dtype, rngs=rngs)
        norm = functools.partial(group_norm, flavour=BIT, dtype=dtype, rngs=rngs)
        self.projects = inputs != outputs or stride != 1
        if self.projects:
            self.projection = conv(inputs, outputs, 1, stride=stride)
        self.norm1, self.conv1 = norm(inputs), conv(inputs, channels, 1)
        self.norm2, self.conv2 = norm(channels), conv(channels, channels, 3, stride=stride)
        self.norm3, self.conv3 = norm(channels), conv(channels, outputs, 1)

    def __call__(self, x: jax.Array) -> jax.Array:
        activated = jax.nn.relu(self.norm1(x))
        shortcut = self.projection(activated) if self.projects else x
        x = self.conv1(activated)
        x = self.conv2(jax.nn.relu(self.norm2(x)))
        return shortcut + self.conv3(jax.nn.relu(self.norm3(x)))


class Stage(nnx.Module):
    """Units at one resolution: the first changes it and the channels, the rest are equal."""

    def __init__(
        self,
        make_unit: Callable[..., nnx.Module],
        units: int,
        inputs: int,
        channels: int,
        *,
        stride: int,
        remat: str,
        rngs: nnx.Rngs,
    ) -> None:
        self.first = make_unit(inputs, channels, stride=stride, rngs=rngs)
        if units > 1:
            outputs = EXPANSION * channels
            self.rest = stack(
                lambda rngs: make_unit(outputs, channels, stride=1, rngs=rngs), units - 1, rngs
            )
        self.units, self.remat = units, remat

    def __call__(self, x: jax.Array) -> jax.Array:
        x = over_batch(rematerialized(self.first, self.remat, in_scan=False)(over_batch(x)))
        return scan(self.rest, self.remat, x) if self.units > 1 else x

    def each(self) -> Iterator[nnx.Module]:
        """Its units, one by one."""
        yield self.first
        if self.units > 1:
            graphdef, params = nnx.split(self.rest)
            for number in range(self.units - 1):
                yield nnx.merge(graphdef, jax.tree.map(operator.itemgetter(number), params))


class Stages(nnx.Module):
    """All stages; each but the first halves the resolution and doubles the channels."""

    def __init__(
        self,
        make_unit: Callable[[int], Callable[..., nnx.Module]],  # of a stage, counted from 0
        units: tuple[int, ...],
        width: int,
        *,
        remat: str,
        rngs: nnx.Rngs,
    ) -> None:
        inputs = width
        for index, count in enumerate(units):
            channels = width * 2**index
            stage = Stage(
                make_unit(index),
                count,
                inputs,
                channels,
                stride=1 if index == 0 else 2,
                remat=remat,
                rngs=rngs,
            )
            setattr(self, f"stage{index + 1}", stage)
            inputs = EXPANSION * channels
        self.count, self.outputs = len(units), inputs

    def __call__(self, x: jax.Array) -> jax.Array:
        for index in range(self.count):
            x = getattr(self, f"stage{index + 1}")(x)
        return x

    def each(self) -> Iterator[nnx.Module]:
        """The units of all stages, one by one."""
        for index in range(self.count):
            yield from getattr(self, f"stage{index + 1}").each()


class PostActivationTrunk(nnx.Module):
    """Images -> feature map [batch, row, column, channel]. `axial`: (image size, heads)."""

    def __init__(
        self,
        units: tuple[int, ...],
        width: int,
        channels: int,
        *,
        axial: tuple[tuple[int, int], int] | None = None,
        remat: str,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        self.root_conv = StandardizedConv(
            channels, width, 7, HYBRID, stride=2, dtype=dtype, rngs=rngs
        )
        self.root_norm = group_norm(width, HYBRID, dtype=dtype, rngs=rngs)

        def make_unit(stage: int) -> Callable[..., nnx.Module]:
            def unit(inputs: int, channels: int, *, stride: int, rngs: nnx.Rngs) -> nnx.Module:
                mixer = ConvMixer
                if axial:  # attends before it shrinks, so at the resolution of its input
                    (height, width), heads = axial
                    shrunk = 4 * 2**stage // stride
                    grid = -(-height // shrunk), -(-width // shrunk)
                    mixer = functools.partial(AxialMixer, grid, heads=heads)
                return PostActivationUnit(
                    inputs, channels, stride=stride, make_mixer=mixer, dtype=dtype, rngs=rngs
                )

            return unit

        self.stages = Stages(make_unit, units, width, remat=remat, rngs=rngs)

    @property
    def outputs(self) -> int:
        """Channels of the feature map."""
        return self.stages.outputs

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.stages(self._root(images))

    def watched(self, images: jax.Array, see: See, first: Any) -> tuple[jax.Array, Any, tuple]:
        """As ViT.watched; what is kept is a tuple, as units differ in their grids."""
        x, seen, kept = self._root(images), first, []
        for unit in self.stages.each():
            seen, told = see(seen, unit.weights(x))
            kept.append(told)
            x = unit(x)
        return x, seen, tuple(kept)

    def _root(self, images: jax.Array) -> jax.Array:
        return max_pool(jax.nn.relu(self.root_norm(self.root_conv(images))), HYBRID)


class PreActivationTrunk(nnx.Module):
    """Images -> feature map [batch, row, column, channel]."""

    def __init__(
        self,
        units: tuple[int, ...],
        width: int,
        channels: int,
        *,
        remat: str,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        self.root_conv = StandardizedConv(channels, width, 7, BIT, stride=2, dtype=dtype, rngs=rngs)
        unit = functools.partial(PreActivationUnit, dtype=dtype)
        self.stages = Stages(lambda _: unit, units, width, remat=remat, rngs=rngs)
        self.norm = group_norm(self.stages.outputs, BIT, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.stages(max_pool(self.root_conv(images), BIT))
        return jax.nn.relu(self.norm(x))
