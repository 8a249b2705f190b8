"""How many parameters: exactly those of the published networks, row by row and column by column."""

import jax
import pytest

from vit_jax.models.network import abstract_params, parameter_count
from vit_jax.models.variants import SHAPES, model_config

# name: no head, 1000 classes at 224 pixels, the same at 384 (H: 378), the 21,843 classes of
# ImageNet-21k (the AugReg weights), and these behind a tanh layer (the original weights).
VITS = {
    "Ti/16": (5_524_416, 5_717_416, 5_790_376, 9_740_115, 9_777_171),
    "S/32": (22_493_952, 22_878_952, 22_915_432, 30_903_507, 31_051_347),
    "S/16": (21_665_664, 22_050_664, 22_196_584, 30_075_219, 30_223_059),
    "B/32": (87_455_232, 88_224_232, 88_297_192, 104_252_499, 104_843_091),
    "B/16": (85_798_656, 86_567_656, 86_859_496, 102_595_923, 103_186_515),
    "B/8": (85_807_872, 86_576_872, 87_744_232, 102_605_139, 103_195_731),
    "L/32": (305_510_400, 306_535_400, 306_632_680, 327_899_475, 328_949_075),
    "L/16": (303_301_632, 304_326_632, 304_715_752, 325_690_707, 326_740_307),
    "H/14": (630_764_800, 632_045_800, 632_651_240, 658_745_683, 660_385_363),
}

# name: the ResNet alone, 1000 classes at 224 pixels, at 384, 21,843 classes.
HYBRIDS = {
    "R50+B/16": (11_894_848, 98_659_112, 98_950_952, 114_687_379),
    "R50+B/32": (23_508_032, 110_945_832, 111_018_792, None),
    "R50+L/16": (11_894_848, 316_483_624, 316_872_744, None),
    "R50+L/32": (23_508_032, 328_994_856, 329_092_136, 350_358_931),
    "R26+S/32": (13_946_176, 36_431_912, 36_468_392, 44_456_467),
    "R26+B/32": (13_946_176, 101_383_976, 101_456_936, 117_412_243),
    "R+Ti/16": (9_536, 6_337_704, 6_355_944, 10_360_403),
}

# name: no head, 1000 classes, 21,843 classes.
BITS = {
    "BiT-R50x1": (23_500_352, 25_549_352, 68_256_659),
    "BiT-R50x2": (93_891_712, 97_988_712, 183_382_483),
    "BiT-R50x3": (211_174_080, 217_319_080, 345_399_315),
    "BiT-R101x1": (42_492_480, 44_541_480, 87_248_787),
    "BiT-R101x3": (381_789_888, 387_934_888, 516_015_123),
    "BiT-R152x1": (58_136_128, 60_185_128, 102_892_435),
    "BiT-R152x2": (232_238_208, 236_335_208, 321_728_979),
    "BiT-R152x4": (928_340_224, 936_533_224, 1_107_299_923),
    "BiT-R200x3": (562_488_000, 568_633_000, 696_713_235),
}


def count(name, **options):
    return parameter_count(model_config(name, **options))


def size(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", VITS)
def test_vits_have_the_published_number_of_parameters(name):
    headless, imagenet, larger, imagenet21k, original = VITS[name]
    width = SHAPES[name.split("/")[0]].width
    assert count(name, num_classes=0) == headless
    assert count(name) == imagenet
    assert count(name, image_size=378 if name == "H/14" else 384) == larger
    assert count(name, num_classes=21_843) == imagenet21k
    assert count(name, num_classes=21_843, representation_size=width) == original


@pytest.mark.parametrize(
    ("name", "headless", "imagenet"),
    [("g/14", 1_011_202_432, 1_012_611_432), ("G/14", 1_842_775_680, 1_844_440_680)],
)
def test_giants_have_the_published_number_of_parameters(name, headless, imagenet):
    assert count(name, num_classes=0) == headless
    assert count(name) == imagenet


def test_the_blocks_of_22b_have_its_published_number_of_weights():
    blocks = abstract_params(model_config("22B/14"))["encoder"]["blocks"]
    attention, mlp = blocks["attention"], blocks["mlp"]
    kernels = [layer["kernel"] for layer in (*attention.values(), *mlp.values())]
    assert round(size(kernels) / 1e9, 3) == 21.743


@pytest.mark.parametrize(
    ("name", "image_size", "tokens", "parameters"),
    [("L/16", 512, 1025, 305_174_504), ("H/14", 518, 1370, 633_470_440)],
)
def test_the_resolutions_of_table_2_count_too(name, image_size, tokens, parameters):
    config = model_config(name, image_size=image_size)
    assert config.tokens == tokens
    assert parameter_count(config) == parameters


@pytest.mark.parametrize(
    ("representation_size", "parameters"), [(384, 22_122_472), (0, 21_974_632)]
)
def test_the_better_plain_vit_has_neither_class_token_nor_learned_positions(
    representation_size, parameters
):
    options = {"pooling": "gap", "positions": "sincos2d"}
    assert count("S/16", **options, representation_size=representation_size) == parameters


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_have_the_published_number_of_parameters(name):
    resnet, imagenet, larger, imagenet21k = HYBRIDS[name]
    assert size(abstract_params(model_config(name))["embedding"]["stem"]) == resnet
    assert count(name) == imagenet
    assert count(name, image_size=384) == larger
    if imagenet21k:
        assert count(name, num_classes=21_843) == imagenet21k


@pytest.mark.parametrize("name", BITS)
def test_bit_resnets_have_the_published_number_of_parameters(name):
    headless, imagenet, imagenet21k = BITS[name]
    params = abstract_params(model_config(name))
    assert size(params["trunk"]) == headless
    assert size(params) == imagenet
    assert count(name, num_classes=21_843) == imagenet21k


def test_a_resnet_without_classes_is_its_trunk():
    assert count("BiT-R50x1", num_classes=0) == BITS["BiT-R50x1"][0]


@pytest.mark.parametrize(("name", "millions"), [("Axial-B/16", 171.62), ("Axial-B/32", 173.28)])
def test_axial_vits_have_two_blocks_for_each_of_a_vit(name, millions):
    assert round(count(name) / 1e6, 2) == millions
