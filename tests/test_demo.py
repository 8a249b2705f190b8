"""The demo from end to end, cut down to a few steps."""

import pytest

from tests.browser import check_alone, check_pictures, opened
from tests.insight.test_report import PICTURES, SECTIONS
from vit_jax import demo as demo_module
from vit_jax.demo import demo
from vit_jax.errors import UsageError
from vit_jax.train.flags import load_config
from vit_jax.weights.run_folder import read_json


@pytest.fixture(scope="module")
def short_demo(tmp_path_factory):
    def load_short_config(location):
        config = load_config(location)
        config.update(total="4 steps", batch_size=16, checkpoint_every="4 steps")
        config.image_size //= 2
        config.optimizer.warmup = "0 steps"
        if "glyphs" in config.evaluators:
            del config.evaluators["glyphs"]  # 4,600 images
        return config

    workdir = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_module, "load_config", load_short_config)
        demo(workdir)
    return workdir


def test_its_summary_holds_all_that_was_run(short_demo):
    summary = read_json(short_demo / "summary.json")
    assert summary["pretrain"]["steps"] == 4
    for key in ("finetune", "finetune_from_scratch"):
        assert 0 <= summary[key]["metrics"]["digits/accuracy"] <= 1
    for kind in ("pretrained", "random"):
        shots = summary["fewshot"][kind]
        assert list(shots) == ["1", "5", "10", "25"]
        assert all(0 < v["mean"] < 1 and v["std"] > 0 for v in shots.values())


def test_its_report_shows_all_of_it_in_a_browser(short_demo):
    with opened((short_demo / "report.html").as_uri()) as page:
        found = check_pictures(page)
        assert found[0] == "Few-shot accuracy against shots"
        assert sorted(found[1:]) == sorted(3 * PICTURES)
        assert page.locator("h2").all_inner_texts() == list(SECTIONS)
        charts = page.locator(".chart h3").all_inner_texts()
        assert {"Loss", "Accuracy", "Learning rate", "Goodput"} < set(charts)
        assert page.evaluate("charts[0].series.length") > 3  # three runs, over each other
        assert "10-shot" in page.locator("main table").first.inner_text()  # the demo's own
        assert "v5litepod-4" in page.locator("#plan ~ .wide").first.inner_text()
        missing = page.locator(".missing").all_inner_texts()
        assert missing == ["pretrain has no evaluations."]  # they were left out above
        check_alone(page)
    assert (short_demo / "report.html").stat().st_size < 5e6


def test_a_second_demo_finds_its_work_done(short_demo, capsys):
    before = (short_demo / "summary.json").read_text()
    demo(short_demo)
    out = capsys.readouterr().out
    assert "done already" in out and "10-shot" in out
    assert (short_demo / "summary.json").read_text() == before


def test_starting_over_deletes_only_what_a_demo_made(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds more than a demo \(thesis.tex\)"):
        demo(tmp_path, fresh=True)
    assert (tmp_path / "thesis.tex").exists()
