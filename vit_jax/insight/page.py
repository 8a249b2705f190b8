"""One self-contained HTML page from headings, tables, text, pictures and charts.

Every function here escapes what it is given, and returns HTML.
"""

import base64
import html
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from PIL import Image

from vit_jax.insight.curves import as_json

_HERE = pathlib.Path(__file__).parent
_UPLOT = _HERE / "vendor" / "uplot"
_SHARPNESS = 1.5  # pixels of a picture to one of the page
_BROAD = 640  # pixels of the page: a picture that is given its whole width
_BROAD_CLASS = ' class="broad"'
_SMALL = 60_000  # bytes that are not worth a loss


class Section(NamedTuple):
    """A heading, what stands under it, and the name that links lead to."""

    anchor: str
    title: str
    parts: Sequence[str]


def page(
    title: str, top: Sequence[str], sections: Sequence[Section] = (), *, live: bool = False
) -> str:
    """A whole document, with links to its sections. `live`: charts ask the server for news."""
    links = "".join(f'<a href="#{s.anchor}">{html.escape(s.title)}</a>' for s in sections)
    body = [*top, *(part for s in sections for part in (_heading(s), *s.parts))]
    has_charts = any('id="charts"' in part for part in body)
    style = _file(_UPLOT / "uPlot.min.css") if has_charts else ""
    script = _file(_UPLOT / "uPlot.iife.min.js") + _file(_HERE / "charts.js") if has_charts else ""
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',  # none, and nothing asked for
        f"<title>{html.escape(title)}</title>",
        f"<style>{style}{_file(_HERE / 'page.css')}</style>\n</head>",
        f"<body{' data-live=1' if live else ''}>\n<header><h1>{html.escape(title)}</h1>",
        f'<nav aria-label="sections">{links}</nav></header>\n<main>',
        *body,
        "</main>",
        f"<script>{script}</script>" if script else "",
        "</body>\n</html>\n",
    ]
    return "\n".join(lines)


def paragraph(text: str) -> str:
    """Running text."""
    return f"<p>{html.escape(text)}</p>"


def missing(text: str) -> str:
    """What is not there, and why."""
    return f'<p class="missing">{html.escape(text)}</p>'


def subheading(text: str) -> str:
    """A part of a section."""
    return f"<h3>{html.escape(text)}</h3>"


def code(text: str) -> str:
    """Text as it is, in a box."""
    return f"<pre>{html.escape(text)}</pre>"


def folded(title: str, part: str) -> str:
    """Opened by who wants to see it."""
    return f"<details><summary>{html.escape(title)}</summary>{part}</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells of text; the first column names the row."""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def cards(parts: Sequence[str]) -> str:
    """Side by side where there is room; after them the broad ones."""
    broad = [part for part in parts if part.startswith(f"<figure{_BROAD_CLASS}")]
    others = [part for part in parts if part not in broad]
    return "".join(f'<div class="cards">{"".join(side)}</div>' for side in (others, broad) if side)


def picture(png: bytes, title: str, text: str = "", most_bytes: int = 250_000) -> str:
    """A PNG, carried inside the page, with what it shows."""
    with Image.open(io.BytesIO(png)) as image:
        kind, data = _encoded(png, image, most_bytes)
        width, height = (round(side / _SHARPNESS) for side in image.size)
    broad = _BROAD_CLASS if width > _BROAD else ""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f"<figure{broad}><figcaption><b>{html.escape(title)}</b>{html.escape(text)}</figcaption>"
        f'<div class="wide" tabindex="0"><img alt="{html.escape(title)}" width="{width}" '
        f'height="{height}" src="{source}"></div></figure>'
    )


def charts(data: Mapping[str, Any]) -> str:
    """Curves that are drawn by the page itself, and a switch for their x-axis."""
    names = {key: label.partition(",")[0] for key, label in data["axes"].items()}  # without units
    options = "".join(
        f'<label><input type="radio" name="axis" value="{key}"'
        f"{' checked' if key == 'step' else ''}>{html.escape(name)}</label>"
        for key, name in names.items()
    )
    return (
        f"<fieldset><legend>x-axis</legend>{options}</fieldset>"
        f'<p id="news" role="status"></p><div id="charts"></div>'
        f'<script type="application/json" id="chart-data">{as_json(data)}</script>'
    )


def _heading(section: Section) -> str:
    return f'<h2 id="{section.anchor}">{html.escape(section.title)}</h2>'


def _encoded(png: bytes, image: Image.Image, most: int) -> tuple[str, bytes]:
    """(kind, bytes): drawings as they are; photographs as WebP, as good as there is room for."""
    if len(png) <= min(most, _SMALL):
        return "png", png
    for quality, smaller in ((88, 1), (70, 1), (60, 2), (40, 3)):
        buffer = io.BytesIO()
        image.reduce(smaller).save(buffer, "WEBP", quality=quality, method=4)
        if buffer.tell() <= most:
            break
    return "webp", buffer.getvalue()


def _file(path: pathlib.Path) -> str:
    return path.read_text()
