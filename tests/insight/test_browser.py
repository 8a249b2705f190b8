"""The report in a real browser."""

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from tests.browser import check_alone, check_pictures, opened
from tests.insight.test_report import PICTURES
from vit_jax.insight.report import write_report
from vit_jax.weights.run_folder import RunFolder

AXES = (("examples", "examples seen"), ("time", "time, "), ("core_hours", "core-hours"))


@pytest.fixture(scope="module")
def address(evaluated, trained_run, tmp_path_factory):
    """Of a report on two runs."""
    folder = tmp_path_factory.mktemp("report")
    run = shutil.copytree(trained_run, folder / "run")
    return write_report([evaluated[0], run], folder / "report.html").as_uri()


def chosen(page):
    return page.evaluate("document.querySelector('input[name=axis]:checked').value")


def x_of_first(page):
    return page.evaluate("charts[0].data[0]")


def test_every_picture_is_there_and_nothing_comes_from_elsewhere(address):
    with opened(address) as page:
        found = check_pictures(page)
        mistakes, learned, batch = PICTURES[:3], PICTURES[3:-1], PICTURES[-1:]
        both = [*mistakes, *mistakes, *learned, *learned, *batch, *batch]
        assert found == ["Few-shot accuracy against shots", *both]
        check_alone(page)


def test_charts_are_drawn_and_their_axes_labelled(address):
    with opened(address) as page:
        labels = page.evaluate("charts.map((c) => c.axes.map((axis) => axis.label))")
        assert ["step", "loss"] in labels and ["step", "images per second"] in labels
        assert all(x and y for x, y in labels)
        titles = page.locator(".chart h3").all_inner_texts()
        assert len(titles) == len(labels) and titles[0] == "Loss"
        named = page.locator(".chart").first.get_attribute("aria-label")
        assert named == "Loss: loss against step"
        inks = page.evaluate(
            """charts.map((c) => {
                const {width, height} = c.ctx.canvas;
                const pixels = c.ctx.getImageData(0, 0, width, height).data;
                return pixels.filter((value, k) => k % 4 === 3 && value > 0).length;
            })"""
        )
        assert min(inks) > 1000
        # A line for each run that logged it, in its own colour.
        assert page.evaluate("new Set(charts[0].series.slice(1).map((s) => s._stroke)).size") == 2


def test_the_axis_is_switched_by_keyboard(address):
    with opened(address) as page:
        for _ in range(40):  # from the top of the page, as somebody without a mouse
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.name") == "axis":
                break
        assert chosen(page) == "step"
        steps = x_of_first(page)
        for axis, label in AXES:
            page.keyboard.press("ArrowRight")
            assert chosen(page) == axis
            assert page.evaluate("charts[0].axes[0].label").startswith(label)
            assert x_of_first(page) != steps
            if axis == "examples":
                assert x_of_first(page) == [16 * step for step in steps]
        page.keyboard.press("ArrowRight")
        assert x_of_first(page) == steps
        check_alone(page)


def test_a_line_is_hidden_by_keyboard(address):
    with opened(address) as page:
        entry = page.locator(".u-series th").nth(1)
        entry.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("charts[0].series[1].show") is False


def screenshot(page):
    with PIL.Image.open(io.BytesIO(page.screenshot(full_page=True))) as image:
        return np.asarray(image.convert("L"), np.float32)


def test_light_and_dark(address):
    with opened(address) as page:
        light = screenshot(page)
        page.emulate_media(color_scheme="dark")  # while it is open
        dark = screenshot(page)
        ink = page.evaluate("charts[0].axes[0]._stroke ?? charts[0].axes[0].stroke()")
        assert light.mean() > 180 and dark.mean() < 80
    with opened(address, scheme="dark") as page:
        assert np.abs(screenshot(page).mean() - dark.mean()) < 3
        assert page.evaluate("charts[0].axes[0]._stroke ?? charts[0].axes[0].stroke()") == ink


def test_on_a_phone_nothing_is_wider_than_the_page(address):
    with opened(address, width=390) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        widths = page.evaluate("charts.map((c) => c.width)")
        assert all(200 <= width <= 390 for width in widths)
        # What is too broad can be moved inside of its own frame.
        outside = page.evaluate(
            """[...document.querySelectorAll("main *")].filter((e) =>
                e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".wide, pre"))
                .map((e) => e.outerHTML.slice(0, 80))"""
        )
        assert outside == []
        page.set_viewport_size({"width": 1000, "height": 700})
        page.wait_for_function("charts[0].width > 390")


def test_a_run_that_logged_nothing(run):
    (run / "metrics.jsonl").unlink()
    with opened(write_report([run]).as_uri()) as page:
        check_pictures(page)
        check_alone(page)
        assert "run has logged nothing yet." in page.locator("main").inner_text()


@pytest.fixture
def live(run):
    """The address of a report that is served."""
    command = [sys.executable, "-m", "vit_jax.cli", "report", "--serve", str(run), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().split()[0]
        process.kill()


def log(run, **record):
    with RunFolder(run).metrics.open("a") as file:
        file.write(json.dumps(record) + "\n")


def test_a_live_report_gets_news_and_keeps_its_axis(run, live):
    with opened(live) as page:
        page.locator("input[value=examples]").check()
        log(run, **{"step": 50, "train/loss": 0.25})
        page.wait_for_function("charts[0].data[1].at(-1) === 0.25", timeout=60_000)
        assert x_of_first(page)[-1] == 50 * 16 and chosen(page) == "examples"
        assert "run: " in page.locator("#news").inner_text()
        assert page.problems == []
        assert {request.split("/")[-1] for request in page.requests} == {"", "curves.json"}


def test_a_live_report_of_a_run_that_has_just_begun(run, live):
    RunFolder(run).metrics.unlink()
    with opened(live) as page:
        assert page.locator(".chart").count() == 0
        log(run, **{"step": 1, "train/loss": 2.5, "train/seconds": 3.0, "train/core_hours": 0.1})
        page.wait_for_function("charts.length === 1", timeout=60_000)
        page.locator("input[value=time]").check()
        assert (
            x_of_first(page) == [3] and page.evaluate("charts[0].axes[0].label") == "time, seconds"
        )
        assert page.problems == []


def test_names_are_no_markup(run):
    named = run.rename(run.with_name("<b>bold & brash"))
    with opened(write_report([named]).as_uri()) as page:
        assert "<b>bold & brash" in page.locator(".u-legend").first.inner_text()
        assert page.locator(".u-legend b, h1 b, td b").count() == 0
        check_alone(page)
