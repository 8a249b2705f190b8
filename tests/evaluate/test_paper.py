"""The paper's figures agree with each other where it gives them twice."""

import pytest

from vit_jax.data.vtab import TASKS
from vit_jax.evaluate import paper
from vit_jax.evaluate.paper import IMAGENET, IMAGENET_21K, JFT, data_set, fine_tuned, five_shot
from vit_jax.models.variants import canonical_name


def test_tasks_are_those_of_the_data():
    assert tuple(TASKS) == paper.TABLE_9_TASKS


@pytest.mark.parametrize("column", paper.TABLE_9)
def test_means_of_vtab(column):
    mean = sum(paper.TABLE_9[column]) / 19
    assert round(mean, 1) == paper.TABLE_9_MEAN[column]
    assert mean == pytest.approx(paper.TABLE_2[column]["vtab"][0], abs=0.02)


@pytest.mark.parametrize("group", ["natural", "specialized", "structured"])
def test_groups_of_vtab(group):
    row = dict(zip(paper.TABLE_9_TASKS, paper.TABLE_9["H/14", JFT], strict=True))
    values = [value for task, value in row.items() if TASKS[task].group == group]
    assert sum(values) / len(values) == pytest.approx(paper.FIGURE_2["H/14"][group], abs=0.06)


@pytest.mark.parametrize("model", ["B/32", "B/16", "L/32", "L/16"])
def test_tables_5_and_6_share_what_was_pretrained_on_jft(model):
    """Not so for H/14, whose figures differ in the paper."""
    for data in ("imagenet", "imagenet_real", "cifar10", "cifar100", "pets", "flowers102"):
        figures = [f for f in fine_tuned(model, data) if f.pretraining == JFT]
        (five,) = (f.percent for f in figures if f.table == "Table 5")
        *_, six = (f.percent for f in figures if f.table == "Table 6")
        assert five == six


def test_models_are_called_as_here():
    models = {model for model, _, _ in paper.TABLE_6} | {model for model, _ in paper.TABLE_2}
    models |= {*paper.TABLE_5_MODELS, *paper.FIGURE_4, *paper.FIGURE_13, *paper.FIGURE_2}
    assert {canonical_name(model) for model in models} == models


def test_what_the_paper_has_for_a_run():
    found = {f.pretraining: f.percent for f in fine_tuned("B/16", "cifar10")}
    assert found == {IMAGENET: 98.13, IMAGENET_21K: 98.95, JFT: 99.00}
    assert {f.pretraining for f in fine_tuned("H/14", "imagenet")} == {IMAGENET_21K, JFT}
    (svhn,) = (f for f in fine_tuned("L/16", "vtab:svhn") if f.pretraining == IMAGENET_21K)
    assert (svhn.table, svhn.percent) == ("Table 9", 80.9)
    assert [f.percent for f in five_shot("B/32", "imagenet")] == [55.2, 56.4]
    assert not fine_tuned("Ti/16", "cifar10") and not fine_tuned("B/16", "digits")


@pytest.mark.parametrize(
    ("name", "classes", "data"),
    [
        ("tfds:cifar10", 10, "cifar10"),
        ("tfds:cifar100:3.*.*", 100, "cifar100"),
        ("tfds:oxford_iiit_pet", 37, "pets"),
        ("/data/Oxford-Flowers102/", 102, "flowers102"),
        ("gs://bucket/imagenet2012", 1000, "imagenet"),
        ("/my/flowers", 5, None),
        ("/my/cifar10/subset", 10, None),
        ("digits", 10, None),
    ],
)
def test_data_sets_by_their_names(name, classes, data):
    assert data_set(name, classes) == data
