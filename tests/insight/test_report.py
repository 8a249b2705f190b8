"""The report of a run: self-contained, whatever state the run is in."""

import re

import pytest

from tests.train.small_run import small_config
from vit_jax.errors import UsageError
from vit_jax.insight.report import write_run_report
from vit_jax.train.config import evaluator, run_config
from vit_jax.train.loop import train


def test_a_report_carries_everything_inside(tmp_path):
    config = small_config(total="4 steps")
    config.evaluators.digits = evaluator("digits", every="50%")
    train(run_config(config), tmp_path)
    html = write_run_report(tmp_path).read_text()
    for alt in ("training curves", "evaluation curves", "sample images of digits"):
        assert f'alt="{alt}"' in html
    assert html.count("data:image/png;base64,") == 3
    assert "digits/accuracy" in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)  # nothing from elsewhere

    (tmp_path / "summary.json").unlink()
    (tmp_path / "metrics.jsonl").unlink()
    unfinished = write_run_report(tmp_path).read_text()
    assert "has not finished" in unfinished and "Nothing was logged yet" in unfinished


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is no run folder"):
        write_run_report(tmp_path)
