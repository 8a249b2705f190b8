"""One self-contained HTML page from headings, tables, text and pictures."""

import base64
import html
from collections.abc import Sequence

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #8886; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; background: #fff; border-radius: .4rem; }
pre { overflow-x: auto; padding: .8rem; background: #8882; border-radius: .4rem; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole document; `parts` come from the functions below."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{chr(10).join(parts)}\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """The start of a section."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Running text."""
    return f"<p>{html.escape(text)}</p>"


def code(text: str) -> str:
    """Text as it is, in a box."""
    return f"<pre>{html.escape(text)}</pre>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells of text; the first column names the row."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def picture(png: bytes, alt: str) -> str:
    """A PNG, carried inside the page."""
    data = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'
