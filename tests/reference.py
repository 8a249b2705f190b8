"""Forward passes in plain numpy and float64: the second opinion that the models are tested against.

In go a flat dict of weights, named as in the published npz files, and images
[batch, height, width, 3] in [-1, 1]; out come logits [batch, class]. Nothing of vit_jax is used
here, and every size is read off the weights, so that a mistake there is not repeated here.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Weights = Mapping[str, np.ndarray]


def vit_logits(weights: Weights, images: np.ndarray) -> np.ndarray:
    """Logits of a ViT or, where there is a `conv_root`, of a hybrid with a ResNet stem."""
    weights = _in_float64(weights)
    x = np.asarray(images, np.float64)
    if "conv_root/kernel" in weights:
        x = _hybrid_stem(x, weights)
    x = _embed_patches(x, _under(weights, "embedding"))
    if "cls" in weights:
        # Before the positions: the published tables have a row for the class token, the first.
        x = np.concatenate([np.tile(weights["cls"], (len(x), 1, 1)), x], axis=1)
    x = x + weights["Transformer/posembed_input/pos_embedding"]
    for block in _numbered(weights, "Transformer/encoderblock_{}", first=0):
        x = _encoder_block(x, block)
    x = _layer_norm(x, _under(weights, "Transformer/encoder_norm"))
    x = x[:, 0] if "cls" in weights else x.mean(axis=1)
    if "pre_logits/kernel" in weights:
        x = np.tanh(_dense(x, _under(weights, "pre_logits")))
    return _dense(x, _under(weights, "head"))


def bit_logits(weights: Weights, images: np.ndarray) -> np.ndarray:
    """Logits of a BiT network, a ResNet-v2 with GroupNorm and standardised convolutions."""
    net = _under(_in_float64(weights), "resnet")
    x = np.asarray(images, np.float64)
    root = _bit_standardize(net["root_block/standardized_conv2d/kernel"])
    x = _conv(_pad(x, 3), root, stride=2)
    # No ReLU has run yet, so padding with 0 rather than -inf does change the border.
    x = _max_pool(_pad(x, 1))
    for b, block in enumerate(_numbered(net, "block{}", first=1)):
        for u, unit in enumerate(_numbered(block, "unit{:02d}", first=1)):
            x = _bit_unit(x, unit, stride=2 if b > 0 and u == 0 else 1)
    x = _bit_norm_relu(x, _under(net, "group_norm")).mean(axis=(1, 2))
    head = _under(net, "head/conv2d")
    return x @ head["kernel"][0, 0] + head["bias"]


# The tree of weights


def _in_float64(weights: Weights) -> Weights:
    """The same weights, wide enough that rounding here never explains a difference."""
    return {name: np.asarray(leaf, np.float64) for name, leaf in weights.items()}


def _under(weights: Weights, prefix: str) -> Weights:
    """The leaves below `prefix`, which is cut from their names."""
    prefix += "/"
    found = {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
    if not found:
        raise KeyError(f"no weights under {prefix!r}; there are {sorted(weights)}")
    return found


def _numbered(weights: Weights, template: str, first: int) -> Iterator[Weights]:
    """The subtrees `template.format(first)`, `first + 1`, ... as many as carry such a name."""
    stem, depth = template.partition("{")[0], template.count("/") + 1
    names = {tuple(name.split("/")[:depth]) for name in weights if name.startswith(stem)}
    # Counted, not walked until one is missing: a hole in the numbers, or none at all, is an error.
    count = max(len(names), 1)
    return (_under(weights, template.format(first + i)) for i in range(count))


# The Transformer


def _embed_patches(x: np.ndarray, p: Weights) -> np.ndarray:
    """[batch, height, width, channel] to tokens [batch, row * column, width of the model]."""
    x = _conv(x, p["kernel"], stride=p["kernel"].shape[0]) + p["bias"]
    return x.reshape(len(x), -1, x.shape[-1])


def _encoder_block(x: np.ndarray, p: Weights) -> np.ndarray:
    """Pre-norm attention and MLP; the counters of the published names run over all four parts."""
    normed = _layer_norm(x, _under(p, "LayerNorm_0"))
    x = x + _attention(normed, _under(p, "MultiHeadDotProductAttention_1"))
    normed = _layer_norm(x, _under(p, "LayerNorm_2"))
    hidden = _gelu(_dense(normed, _under(p, "MlpBlock_3/Dense_0")))
    return x + _dense(hidden, _under(p, "MlpBlock_3/Dense_1"))


def _attention(x: np.ndarray, p: Weights) -> np.ndarray:
    """Self-attention with kernels [model, head, key] going in and [head, key, model] out."""
    query, key, value = (
        np.einsum("btd,dhk->bhtk", x, p[f"{name}/kernel"]) + p[f"{name}/bias"][:, None]
        for name in ("query", "key", "value")
    )
    scores = np.einsum("bhqk,bhsk->bhqs", query, key) / np.sqrt(query.shape[-1])
    mixed = np.einsum("bhqs,bhsk->bhqk", _softmax(scores), value)
    return np.einsum("bhqk,hkd->bqd", mixed, p["out/kernel"]) + p["out/bias"]


def _softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis; the largest is taken off first, so that exp cannot overflow."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _gelu(x: np.ndarray) -> np.ndarray:
    """The tanh approximation: what the published weights were trained with, not the exact erf."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _dense(x: np.ndarray, p: Weights) -> np.ndarray:
    """A linear layer with a kernel [in, out]."""
    return x @ p["kernel"] + p["bias"]


def _layer_norm(x: np.ndarray, p: Weights) -> np.ndarray:
    """Over the last axis, with eps 1e-6."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


# The stem of the hybrids: normalisation after each convolution, SAME padding


def _hybrid_stem(x: np.ndarray, p: Weights) -> np.ndarray:
    """Root, max-pool and the stages that are there; [batch, row, column, channel] for the ViT."""
    x = _relu(_hybrid_conv_norm(x, p, "_root", stride=2))
    x = _max_pool(_pad_same(x, size=3, stride=2, value=-np.inf))
    has_stages = any(name.startswith("block") for name in p)  # R+Ti/16 has none
    for s, stage in enumerate(_numbered(p, "block{}", first=1) if has_stages else ()):
        for u, unit in enumerate(_numbered(stage, "unit{}", first=1)):
            x = _hybrid_unit(x, unit, stride=2 if s > 0 and u == 0 else 1)
    return x


def _hybrid_unit(x: np.ndarray, p: Weights, stride: int) -> np.ndarray:
    """A bottleneck of ResNet-v1 order: the last ReLU comes after the residual is added."""
    shortcut = _hybrid_conv_norm(x, p, "_proj", stride) if "conv_proj/kernel" in p else x
    x = _relu(_hybrid_conv_norm(x, p, "1"))
    x = _relu(_hybrid_conv_norm(x, p, "2", stride))
    return _relu(_hybrid_conv_norm(x, p, "3") + shortcut)


def _hybrid_conv_norm(x: np.ndarray, p: Weights, name: str, stride: int = 1) -> np.ndarray:
    """Standardised convolution `conv{name}`, then `gn{name}` with eps 1e-6."""
    kernel = _hybrid_standardize(p[f"conv{name}/kernel"])
    x = _conv(_pad_same(x, kernel.shape[0], stride), kernel, stride)
    return _group_norm(x, p[f"gn{name}/scale"], p[f"gn{name}/bias"], eps=1e-6)


def _hybrid_standardize(kernel: np.ndarray) -> np.ndarray:
    """Each output channel to mean 0 and deviation 1; here eps is added to the deviation."""
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    return centred / (kernel.std(axis=(0, 1, 2)) + 1e-5)


# The unit of BiT: normalisation before each convolution, symmetric padding


def _bit_unit(x: np.ndarray, p: Weights, stride: int) -> np.ndarray:
    """A pre-activation bottleneck; a projected shortcut starts after the first norm and ReLU."""
    active = _bit_norm_relu(x, _under(p, "a/group_norm"))
    if "a/proj/standardized_conv2d/kernel" in p:
        x = _conv(active, _bit_standardize(p["a/proj/standardized_conv2d/kernel"]), stride)
    y = _conv(active, _bit_standardize(p["a/standardized_conv2d/kernel"]))
    y = _bit_norm_relu(y, _under(p, "b/group_norm"))
    y = _conv(_pad(y, 1), _bit_standardize(p["b/standardized_conv2d/kernel"]), stride)
    y = _bit_norm_relu(y, _under(p, "c/group_norm"))
    return x + _conv(y, _bit_standardize(p["c/standardized_conv2d/kernel"]))


def _bit_norm_relu(x: np.ndarray, p: Weights) -> np.ndarray:
    """GroupNorm with the eps of BiT, ten times that of the hybrids, and ReLU."""
    return _relu(_group_norm(x, p["gamma"], p["beta"], eps=1e-5))


def _bit_standardize(kernel: np.ndarray) -> np.ndarray:
    """Each output channel to mean 0 and variance 1; here eps is added to the variance."""
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    return centred / np.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-10)


# What both ResNets are made of


def _conv(x: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    """VALID convolution of [batch, height, width, in] with a kernel [height, width, in, out]."""
    windows = _windows(x, kernel.shape[:2], stride)
    return np.tensordot(windows, kernel, axes=[(3, 4, 5), (2, 0, 1)])


def _max_pool(x: np.ndarray) -> np.ndarray:
    """The largest of each 3x3 window, at stride 2 and VALID."""
    return _windows(x, (3, 3), stride=2).max(axis=(4, 5))


def _windows(x: np.ndarray, size: tuple[int, int], stride: int) -> np.ndarray:
    """Every window that fits: [batch, row, column, channel, height, width]."""
    return sliding_window_view(x, size, axis=(1, 2))[:, ::stride, ::stride]


def _pad(x: np.ndarray, n: int) -> np.ndarray:
    """Zeros on all four sides, whatever the size of the image."""
    return np.pad(x, [(0, 0), (n, n), (n, n), (0, 0)])


def _pad_same(x: np.ndarray, size: int, stride: int, value: float = 0.0) -> np.ndarray:
    """SAME: just enough for ceil(length / stride) windows, and the odd one goes to the end."""
    lengths = np.array(x.shape[1:3])
    total = np.maximum((-(-lengths // stride) - 1) * stride + size - lengths, 0)
    rows, columns = zip(total // 2, total - total // 2, strict=True)
    return np.pad(x, [(0, 0), rows, columns, (0, 0)], constant_values=value)


def _group_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """Over space and the channels of each of 32 groups."""
    grouped = x.reshape(*x.shape[:-1], 32, -1)
    axes = (1, 2, 4)
    centred = grouped - grouped.mean(axis=axes, keepdims=True)
    normed = centred / np.sqrt(grouped.var(axis=axes, keepdims=True) + eps)
    # Some files hold scale and bias as [1, 1, 1, channel], others as [channel].
    return normed.reshape(x.shape) * scale.reshape(-1) + bias.reshape(-1)


def _relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0.0)
