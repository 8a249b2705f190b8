"""A real browser without a screen, to look at pages as people do."""

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing of its own on the network: what is asked for there, a page has asked for.
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-sync", "--no-first-run",
    "--no-default-browser-check",
)  # fmt: skip


@contextlib.contextmanager
def opened(address: str, width: int = 1280, scheme: str = "light") -> Iterator["Page"]:  # noqa: F821
    """The page there, in a window of its own; `page.problems` and `page.requests` grow with it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium
        with chromium.launch(executable_path=browser(), args=list(_FLAGS)) as process:
            page = process.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.problems, page.requests = [], []
            page.on("console", lambda message: _note(page, message))
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            page.on("request", lambda request: page.requests.append(request.url))
            page.goto(address)
            page.wait_for_load_state("load")
            yield page


def browser() -> str:
    """Where it is. Without one these tests prove nothing, and say so: in CI, by failing."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found:
        return found
    reason = f"NO BROWSER: none of {', '.join(NAMES)} is on the PATH (apt-get install chromium)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def check_pictures(page) -> list[str]:
    """Asserts that every picture is really there, and returns what they are called."""
    images = page.evaluate("[...document.images].map((i) => [i.alt, i.complete, i.naturalWidth])")
    assert images and all(complete and width > 50 for _, complete, width in images), images
    return [alt for alt, _, _ in images]


def check_alone(page) -> None:
    """Asserts that nothing was asked for but the page itself, and that nothing went wrong in it."""
    assert [url for url in page.requests if not url.startswith("data:")] == [page.url.split("#")[0]]
    assert page.problems == []


def _note(page, message) -> None:
    if message.type in ("error", "warning"):
        page.problems.append(message.text)
