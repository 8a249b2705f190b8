"""One network has one name here, whatever other places call it."""

import dataclasses

import pytest

from vit_jax.errors import UsageError
from vit_jax.models.network import parameter_count
from vit_jax.models.variants import (
    SHAPES,
    canonical_name,
    list_models,
    listed_image_size,
    model_config,
)

ALIASES = {
    "B/16": (
        "ViT-B/16",
        "ViT-B_16",
        "vit_b16",
        "B16",
        " B/16 ",
        "vit_base_patch16_224",
        "vit_base_patch16_224.augreg_in21k_ft_in1k",
        "google/vit-base-patch16-224",
        "google/vit-base-patch16-224-in21k",
    ),
    "H/14": ("ViT-H_14", "google/vit-huge-patch14-224-in21k"),
    "So400m/14": ("so400m_14", "vit_so400m_patch14_224"),
    "22B/14": ("22b/14", "ViT-22B/14"),
    "g/14": ("ViT-g/14", "vit_g14", "vit_giant_patch14_224"),
    "G/14": ("ViT-G/14", "vit_G14", "vit_gigantic_patch14_224"),
    "R50+B/16": (
        "R50+ViT-B_16",
        "R50x1+B/16",
        "r50+b/16",
        "R050+B/16",
        "vit_base_r50_s16_384",
        "vit_base_r50_s16_384.orig_in21k_ft_in1k",
        "google/vit-hybrid-base-bit-384",
    ),
    "R26+S/32": ("R26_S_32", "vit_small_r26_s32_224"),
    "R+Ti/16": ("R_Ti_16", "vit_tiny_r_s16_p8_224"),
    "BiT-R50x1": (
        "BiT-M-R50x1",
        "R50x1",
        "R50",
        "resnetv2_50x1_bit.goog_in21k",
        "google/bit-50",
    ),
    "BiT-R152x4": ("BiT-L-R152x4", "R152x4", "resnetv2_152x4_bit.goog_in21k_ft_in1k"),
    "Axial-B/16": ("AxialViT-B/16", "AxialViT-B_16"),
    "AxialResNet50": ("AxialResNet-50", "Axial-R50"),
}


@pytest.mark.parametrize(
    ("alias", "name"), [(alias, name) for name, aliases in ALIASES.items() for alias in aliases]
)
def test_names_of_other_places_lead_to_the_same_network(alias, name):
    assert canonical_name(alias) == name
    by_alias, by_name = model_config(alias, image_size=448), model_config(name, image_size=448)
    assert by_alias.name == name
    assert by_alias == by_name


@pytest.mark.parametrize("name", list_models())
def test_listed_names_stand_for_themselves(name):
    assert model_config(name).name == name
    assert canonical_name(name) == name
    # The name that a network gets by its shape is the same one.
    assert model_config(name, image_size=listed_image_size(name)).name == name


def test_listed_names_stand_for_different_networks():
    anonymous = {dataclasses.replace(model_config(name), name="") for name in list_models()}
    assert len(anonymous) == len(list_models())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("patch", [14, 16, 32])
def test_any_shape_goes_with_any_patch(shape, patch):
    config = model_config(f"{shape}/{patch}")
    assert config.name == f"{shape}/{patch}"
    assert config.patch_size == (patch, patch)
    assert (config.width, config.depth, config.mlp_dim, config.heads) == SHAPES[shape]
    assert config.grid == (224 // patch, 224 // patch)


def test_small_g_and_capital_g_are_two_networks():
    giant, gigantic = model_config("g/14"), model_config("G/14")
    assert giant.depth == 40
    assert gigantic.depth == 48
    assert parameter_count(giant) < parameter_count(gigantic)


@pytest.mark.parametrize(
    ("alias", "pixels"),
    [
        ("vit_base_patch16_384", 384),
        ("vit_large_r50_s32_384.augreg_in21k_ft_in1k", 384),
        ("google/vit-base-patch32-384", 384),
        ("google/vit-hybrid-base-bit-384", 384),
        ("vit_tiny_r_s16_p8_384", 384),
        ("vit_base_patch16_224", 224),
        ("B/16", 224),
    ],
)
def test_a_resolution_in_a_name_counts_unless_another_is_asked_for(alias, pixels):
    assert model_config(alias).image_size == (pixels, pixels)
    assert model_config(alias, image_size=(64, 96)).image_size == (64, 96)


def test_hybrids_of_stride_16_put_stage_4_into_stage_3():
    hybrid = model_config("R50+B/16")
    assert hybrid.stem_stages == (3, 4, 9)
    assert hybrid.grid == (14, 14)
    assert model_config("R50+B/32").stem_stages == (3, 4, 6, 3)
    assert model_config("R50+B/32").grid == (7, 7)
    assert hybrid.patch_size == (1, 1)


def test_the_hybrid_of_a_root_alone_has_a_stride_of_32_despite_its_name():
    hybrid = model_config("R+Ti/16")
    assert hybrid.stem_stages == ()
    assert hybrid.patch_size == (8, 8)
    assert hybrid.grid == (7, 7)


def test_a_wider_resnet_keeps_its_factor():
    assert model_config("R50x2+B/32").name == "R50x2+B/32"
    assert model_config("R50x2+B/32").stem_width == 128
    assert model_config("BiT-R152x4").width == 256


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("B//16", "B/16"),
        ("LL/16", "L/16"),
        ("B/16@384", "B/16"),
        ("g//14", "g/14"),
        ("G//14", "G/14"),
        ("R50-B/16", "R50+B/16"),
        ("R51+B/16", "R50+B/16"),
        ("R+Ti/32", "R+Ti/16"),
        ("BiT-50x1", "BiT-R50x1"),
        ("BiT-R151x4", "BiT-R152x4"),
        ("Axial-Q/16", "Axial-B/16"),
        ("AxialResNet51", "AxialResNet50"),
    ],
)
def test_a_typo_gets_one_line_that_names_the_closest(name, meant):
    with pytest.raises(UsageError) as error:
        model_config(name)
    assert f"unknown model {name!r}. Did you mean {meant}? " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "B/", "B/0", "convnext", "BiT-R50x0", "R50x0+B/16", "B\n16"])
def test_what_is_near_nothing_still_gets_one_line_that_says_what_is_expected(name):
    with pytest.raises(UsageError) as error:
        model_config(name)
    assert "Expected SHAPE/PATCH, as in B/16" in str(error.value)
    assert "\n" not in str(error.value)
