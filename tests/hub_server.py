"""A Hugging Face hub on loopback: the part of its API that its real client uses here."""

import base64
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves `files`, by repository and name, from a thread. A context manager.

    `created` is what repositories were asked for; files that are pushed appear among the others.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.created: list[dict] = []
        self.refuses_writes = False
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(urllib.parse.unquote(self.path)).path
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        repository, name = match.groups() if match else ("", "")
        if repository not in self.hub.files:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif name not in self.hub.files[repository]:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            data = self.hub.files[repository][name]
            etag = hashlib.sha1(data).hexdigest()
            self._send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.urlsplit(self.path).path
        if self.hub.refuses_writes:
            self._json(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            made = json.loads(body)
            self.hub.created.append(made)
            self._json(200, {"url": f"{self.hub.url}/{made['organization']}/{made['name']}"})
        elif path == "/api/validate-yaml":
            self._json(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names
            ]
            self._json(200, {"files": modes})
        elif match := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.hub.files.setdefault(match[1], {})[line["value"]["path"]] = content
            url = f"{self.hub.url}/{match[1]}/commit/{COMMIT}"
            self._json(200, {"commitUrl": url, "commitOid": COMMIT, "success": True})
        else:
            self._json(404, {"error": path})

    def _json(self, status: int, value: dict) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
