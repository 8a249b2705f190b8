"""A report that is looked at while its runs go on: served to this machine only."""

import contextlib
import http.server
import pathlib
from collections.abc import Callable, Sequence

from vit_jax.errors import UsageError
from vit_jax.insight.curves import as_json
from vit_jax.insight.report import curves_of, named_folders, report_page
from vit_jax.insight.results import read_run

HOST = "127.0.0.1"


def serve(
    paths: Sequence[pathlib.Path], port: int, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Until Ctrl-C. `ready` is told the address; port 0 is any that is free."""
    named_folders(paths)  # what is no run is told now
    handler = type("Handler", (_Handler,), {"paths": tuple(paths)})
    try:
        server = http.server.ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--port={port} cannot be used ({error}): try another, or 0 for any that is free"
        ) from error
    with server:
        ready(f"http://{HOST}:{server.server_port}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _Handler(http.server.BaseHTTPRequestHandler):
    """`/` is the report as it stands, `/curves.json` what its charts ask for every few seconds."""

    paths: tuple[pathlib.Path, ...] = ()

    def do_GET(self) -> None:
        if self.path == "/":
            # Nothing is computed: the machine is busy with the run.
            page = report_page(self.paths, compute=False, live=True)
            self._answer("text/html; charset=utf-8", page)
        elif self.path == "/curves.json":
            folders = named_folders(self.paths)
            runs = {name: read_run(folder.path) for name, folder in folders.items()}
            self._answer("application/json", as_json(curves_of(folders, runs)))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who asked has gone
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads along."""
