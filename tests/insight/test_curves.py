"""What the charts of a report are given."""

import json
import math

import pytest

from vit_jax.insight.curves import Run, as_json, chart_data


def run(records, name="mine", batch_size=4):
    return Run(name, records, batch_size)


def by_title(data):
    return {panel["title"]: panel for panel in data["panels"]}


def test_every_record_has_its_place_on_every_axis():
    records = [
        {"step": 10, "train/loss": 3.0, "train/seconds": 60.0, "train/core_hours": 1.0},
        {"step": 15, "test/loss": 2.5},  # an evaluation comes without a clock
        {"step": 20, "train/loss": 2.0, "train/seconds": 180.0, "train/core_hours": 3.0},
    ]
    data = chart_data([run(records)])
    assert data["axes"]["time"] == "time, minutes"
    assert data["runs"][0]["x"] == {
        "step": [10, 15, 20],
        "examples": [40, 60, 80],
        "time": [1, 2, 3],
        "core_hours": [1, 2, 3],
    }
    train, test = by_title(data)["Loss"]["series"]
    assert (train["name"], train["y"]) == ("train", [3, None, 2])
    assert (test["name"], test["y"]) == ("test", [None, 2.5, None])


def test_panels_are_those_that_somebody_logged_in_percent_where_they_are_shares():
    data = chart_data(
        [
            run([{"step": 1, "train/accuracy": 0.5, "train/goodput": 0.25}], "a"),
            run([{"step": 1, "digits/accuracy": 0.75, "digits/10_shot": 0.5}], "b"),
        ]
    )
    panels = by_title(data)
    assert list(panels) == ["Accuracy", "Few-shot accuracy", "Goodput"]
    assert [(s["run"], s["name"], s["y"]) for s in panels["Accuracy"]["series"]] == [
        (0, "train", [50]), (1, "digits", [75]),
    ]  # fmt: skip
    assert panels["Goodput"]["series"][0]["y"] == [25]
    assert "%" in panels["Goodput"]["label"]
    assert data["runs"][0]["colour"] != data["runs"][1]["colour"]


def test_there_are_no_clocks_where_nobody_looked_at_one():
    records = [{"step": 1, "train/loss": 1.0}]
    assert list(chart_data([run(records)], clocks=False)["axes"]) == ["step", "examples"]
    assert chart_data([run(records)])["runs"][0]["x"]["time"] == [None]
    empty = chart_data([run([])])
    assert empty["panels"] == [] and empty["runs"][0]["x"]["step"] == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_gap(value):
    data = chart_data([run([{"step": 1, "train/loss": value}, {"step": 2, "train/loss": 1.0}])])
    assert by_title(data)["Loss"]["series"][0]["y"] == [None, 1]
    assert json.loads(as_json(data)) == data


def test_long_runs_are_thinned_but_for_their_evaluations():
    records = [{"step": step, "train/loss": 1.0} for step in range(1, 20_001)]
    records[6]["test/loss"] = 2.0
    (shown,) = chart_data([run(records)])["runs"]
    assert len(shown["x"]["step"]) <= 802
    assert 7 in shown["x"]["step"] and shown["x"]["step"][-1] == 20_000


def test_names_cannot_leave_the_script():
    text = as_json(chart_data([run([], "</script><script>alert(1)</script>")]))
    assert "<" not in text and json.loads(text)["runs"][0]["name"].startswith("</script>")
