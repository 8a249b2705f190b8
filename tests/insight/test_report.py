"""The report of runs: one page that carries everything inside, whatever state they are in."""

import json
import re
import shutil

import pytest

from tests.train.small_run import small_config
from vit_jax.cli import dispatch, run_verb
from vit_jax.errors import UsageError
from vit_jax.insight import studies
from vit_jax.insight.report import named_folders, report_page, write_report
from vit_jax.train.config import run_config
from vit_jax.train.loop import train
from vit_jax.weights.convert import convert
from vit_jax.weights.run_folder import RunFolder, read_json, write_json

SECTIONS = (
    "Summary", "Curves", "Few-shot", "Mistakes", "What it learned", "What it sees", "Plan",
    "Config", "Environment",
)  # fmt: skip
PICTURES = (
    "Confusion matrix", "Worst classes", "Most confident mistakes", "Filters", "Positions",
    "Attention distance", "Attention rollout", "Heads of the last layer", "Patch features",
    "The first batch",
)  # fmt: skip


def alts(html):
    return re.findall(r'<img alt="([^"]*)"', html)


def said(html):
    """The sentences about what is missing."""
    return " ".join(re.findall(r'<p class="missing">([^<]*)</p>', html))


def data_of(html):
    return json.loads(re.search(r'id="chart-data">(.*?)</script>', html, re.S)[1])


def test_a_report_carries_everything_inside(evaluated):
    _, html = evaluated
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", html) == list(SECTIONS)
    assert alts(html) == ["Few-shot accuracy against shots", *PICTURES]
    assert "digits/accuracy" in html and "few/2_shot" in html
    titles = [panel["title"] for panel in data_of(html)["panels"]]
    assert {"Loss", "Accuracy", "Learning rate", "Gradient norm", "Speed", "Data wait",
            "Goodput"} < set(titles)  # fmt: skip
    assert said(html).startswith("None was made: vit-jax plan")
    assert len(html) < 5e6
    # Nothing from elsewhere.
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)
    assert not re.findall(r"url\(|@import|<link(?! rel=.icon. href=.data:)", html)


def test_its_pictures_lie_in_the_run_and_are_drawn_once(evaluated, monkeypatch):
    path, html = evaluated
    assert len(list((path / "plots").glob("*.png"))) == len(PICTURES)
    assert list((path / "tensorboard" / "pictures").iterdir())
    monkeypatch.setattr(studies, "STUDIES", [s._replace(draw=None) for s in studies.STUDIES])
    assert report_page([path]) == html


def test_new_weights_are_drawn_anew(run, monkeypatch):
    write_report([run])
    index = run / "plots" / "inspection.json"
    write_json(index, read_json(index) | {"step": 1})  # as if it had gone on since
    drawn = []
    report_page([run], note=drawn.append)
    assert drawn == ["run: drawing what it learned ..."]


def test_several_runs_share_one_report(evaluated, run, tmp_path, capsys):
    out = tmp_path / "both.html"
    assert run_verb(dispatch, ["report", str(evaluated[0]), str(run), f"--out={out}"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    html = out.read_text()
    assert [r["name"] for r in data_of(html)["runs"]] == ["evaluated", "run"]
    assert {s["run"] for s in data_of(html)["panels"][0]["series"]} == {0, 1}
    assert alts(html).count("Filters") == 2
    differs = html[html.index("What differs") :]
    assert "<td>total</td><td>4 steps</td><td>3 steps</td>" in differs
    assert "<td>batch_size</td>" not in differs
    assert "run has no evaluations." in said(html)


def test_runs_of_one_name_are_told_apart(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other" / "run")
    assert list(named_folders([run, other, run])) == [f"{tmp_path.name}/run", "other/run"]


# ---- runs that something is missing of


def test_a_run_of_one_step(tmp_path):
    config = small_config(total="1 steps", log_every="1 steps")
    config.optimizer.warmup = "0 steps"
    train(run_config(config), tmp_path / "short")
    html = write_report([tmp_path / "short"]).read_text()
    assert data_of(html)["runs"][0]["x"]["step"] == [1] and set(alts(html)) == set(PICTURES)


def test_a_run_that_crashed(run):
    (run / "summary.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "train/lo')
    html = write_report([run]).read_text()
    assert "run has not finished: step 3 of 3 steps." in said(html)
    assert data_of(html)["panels"] and set(alts(html)) == set(PICTURES)


def test_a_run_that_crashed_before_its_first_checkpoint(run):
    (run / "summary.json").unlink()
    (run / "metrics.jsonl").unlink()
    shutil.rmtree(run / "checkpoints")
    html = write_report([run]).read_text()
    assert "run has logged nothing yet." in said(html)
    assert "There is no picture of its mistakes" in said(html)
    assert "There is no picture of what it learned" in said(html)
    assert "has no checkpoint" in said(html)
    assert alts(html) == ["The first batch"]
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", html) == list(SECTIONS)


def test_a_run_whose_data_is_gone(run):
    config = read_json(run / "config.json")
    config["data"]["name"] = "/gone/images"
    write_json(run / "config.json", config)
    html = write_report([run]).read_text()
    assert said(html).count("no such folder: /gone/images") == 3
    assert alts(html) == ["Filters", "Positions"]  # which are of the weights alone

    config["data"]["name"] = "digits"  # there again
    write_json(run / "config.json", config)
    assert set(alts(report_page([run]))) == set(PICTURES)


def test_a_run_with_broken_files(run):
    for name in ("environment.json", "metrics.jsonl", "summary.json", "plan.json"):
        (run / name).write_text("{\n")
    html = write_report([run]).read_text()
    assert "summary.json is broken" in html and "plan.json of run cannot be read" in said(html)
    assert "How run was started is not known" in said(html)


def test_converted_weights(run, tmp_path):
    weights = tmp_path / "weights"
    convert(run, tmp_path / "w.npz")
    convert(tmp_path / "w.npz", weights)
    html = write_report([weights]).read_text()
    assert "holds converted weights, and no data" in said(html)
    assert "weights has no environment.json" in said(html)
    assert alts(html) == ["Filters", "Positions"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is no run folder"):
        write_report([tmp_path])


def test_a_run_that_is_only_to_be_looked_at(run, monkeypatch):
    def refuse(*arguments):
        raise PermissionError("not yours")

    monkeypatch.setattr(studies, "keep", refuse)
    assert set(alts(report_page([run]))) == set(PICTURES)
    assert not (run / "plots").exists()


# ---- what users choose


def test_names_are_escaped(run):
    hostile = '<img src=x onerror="alert(1)">'
    config = read_json(run / "config.json")
    config["class_names"] = [hostile, *config["class_names"][1:]]
    config["init"] = hostile
    write_json(run / "config.json", config)
    named = run.rename(run.with_name("<b>bold & brash"))
    html = write_report([named]).read_text()
    assert hostile not in html and "<b>bold" not in html
    assert "&lt;b&gt;bold &amp; brash" in html


def test_a_plan_is_kept_for_the_report(run, capsys):
    arguments = ["plan", "--config=configs/demo.py", "--topology=v5litepod-4"]
    assert run_verb(dispatch, [*arguments, f"--workdir={run}", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert read_json(RunFolder(run).plan) == printed
    html = report_page([run], compute=False)
    plan = html[html.index('id="plan"') : html.index('id="config"')]
    assert "<td>Pico/8</td>" in plan and "v5litepod-4, 4 chips" in plan
    told_by = "the TPU compiler" if printed["is_compiled"] else "an estimate"
    assert f"<td>told by</td><td>{told_by}</td>" in plan


def test_the_command_is_one_that_can_be_typed(run):
    environment = read_json(run / "environment.json")
    command = ["/somewhere/.venv/bin/vit-jax", "train", "--config=a.py", "--config.total=3 steps"]
    write_json(run / "environment.json", environment | {"command": command})
    assert (
        "<pre>vit-jax train --config=a.py &#x27;--config.total=3 steps&#x27;</pre>"
        in report_page([run], compute=False)
    )
