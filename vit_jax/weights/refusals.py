"""Why a network has no place in another library's layout, said before anything is written."""

from vit_jax.errors import UsageError
from vit_jax.models.config import NetworkConfig, ViTConfig

LIBRARIES = {"hf": "transformers' ViT", "timm": "timm's VisionTransformer"}

# Stems that timm has a model for, and its name.
TIMM_STEMS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def check_fits(network: NetworkConfig, layout: str) -> None:
    """Raises where the layout, hf or timm, cannot hold the network."""
    if reason := _reason(network, layout):
        raise UsageError(
            f"{network.name} does not fit {LIBRARIES[layout]}: {reason}; --to=npz holds any network"
        )


def _reason(network: NetworkConfig, layout: str) -> str:
    if not isinstance(network, ViTConfig):
        return "it is a ResNet"
    reasons = {
        "its attention is axial": network.axial,
        f"its positions are {network.positions}, there they are a table of tokens (1d)": (
            network.positions != "1d"
        ),
        f"its positions are added at {network.positions_at}, there before the first block": (
            network.positions_at != "stem"
        ),
        "it has registers": bool(network.registers),
        "it scales its branches (layer_scale)": bool(network.layer_scale),
        "it normalises queries and keys without a bias (qk_norm)": network.qk_norm,
        "it predicts patches: fine-tune it first": bool(network.patch_outputs),
    }
    of_layout = _hf_reasons(network) if layout == "hf" else _timm_reasons(network)
    return next((text for text, applies in (reasons | of_layout).items() if applies), "")


def _hf_reasons(network: ViTConfig) -> dict[str, bool]:
    return {
        f"it pools by {network.pooling}, ViTForImageClassification reads the class token only; "
        f"--to=timm holds it": network.pooling != "token",
        "transformers has no hybrids any more; --to=timm holds those that timm has": (
            network.stem_stages is not None
        ),
        "ViTForImageClassification has no tanh layer (representation_size) before its head": (
            bool(network.representation_size and network.num_classes)
        ),
    }


def _timm_reasons(network: ViTConfig) -> dict[str, bool]:
    return {
        "it has no tanh layer (representation_size) before the head": (
            bool(network.representation_size)
        ),
        f"its norms have an epsilon of {network.norm_epsilon:g}, there it is 1e-06": (
            network.norm_epsilon != 1e-6
        ),
        f"it has no ResNet stem of stages {network.stem_stages} and width {network.stem_width}": (
            network.stem_stages is not None
            and (network.stem_stages not in TIMM_STEMS or network.stem_width != 64)
        ),
    }
