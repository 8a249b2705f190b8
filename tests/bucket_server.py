"""A bucket on loopback: the part of Google Cloud Storage's JSON API that its clients use here.

gcsfs, TensorStore and google-cloud-storage are the real ones and find it by environment variables.
Unlike the emulators on PyPI it keeps preconditions (ifGenerationMatch), which the lock rests on.
"""

import base64
import dataclasses
import datetime
import email
import hashlib
import http.server
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Mapping

import google_crc32c


@dataclasses.dataclass(frozen=True)
class Stored:
    data: bytes
    generation: int
    updated: str


class Refused(Exception):
    """An answer that is no success: its HTTP status."""


class BucketServer:
    """Serves `objects`, by bucket and name, from a thread. A context manager.

    `refuse` may return a status for (method, bucket, name), to be answered in place of success.
    """

    def __init__(self, *buckets: str) -> None:
        self.objects: dict[str, dict[str, Stored]] = {bucket: {} for bucket in buckets}
        self.refuse: Callable[[str, str, str], int | None] = lambda method, bucket, name: None
        self.lock = threading.RLock()
        self._generations = itertools.count(1_000_000)
        self._uploads: dict[str, tuple[str, str, dict[str, str], bytearray]] = {}
        handler = type("Handler", (_Handler,), {"bucket_server": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes the clients come here, of this process or of others."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_CLOUD_PROJECT": "none",
            # Whether a bucket has real folders is asked elsewhere, at an address of Google's.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def __enter__(self) -> "BucketServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        with self.lock:
            return sorted(name for name in self.objects[bucket] if name.startswith(prefix))

    def put(self, bucket: str, name: str, data: bytes, query: Mapping[str, str]) -> dict:
        with self.lock:
            self._check(bucket, name, query)
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            self.objects[bucket][name] = Stored(bytes(data), next(self._generations), now)
            return self.describe(bucket, name)

    def get(self, bucket: str, name: str, query: Mapping[str, str]) -> Stored:
        with self.lock:
            self._check(bucket, name, query)
            if name not in self.objects[bucket]:
                raise Refused(404)
            return self.objects[bucket][name]

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        with self.lock:
            self.get(bucket, name, query)
            del self.objects[bucket][name]

    def describe(self, bucket: str, name: str) -> dict:
        found = self.get(bucket, name, {})
        crc = google_crc32c.Checksum(found.data).digest()
        return {
            "kind": "storage#object", "bucket": bucket, "name": name,
            "size": str(len(found.data)), "generation": str(found.generation),
            "metageneration": "1", "updated": found.updated, "timeCreated": found.updated,
            "contentType": "application/octet-stream", "storageClass": "STANDARD",
            "md5Hash": base64.b64encode(hashlib.md5(found.data).digest()).decode(),
            "crc32c": base64.b64encode(crc).decode(), "etag": str(found.generation),
        }  # fmt: skip

    def list(self, bucket: str, query: Mapping[str, str]) -> dict:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        start, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
        items, prefixes = [], {}
        with self.lock:
            self._check(bucket, "", {})
            for name in self.names(bucket, prefix):
                below, found, _ = name[len(prefix) :].partition(delimiter or "\0")
                if not start <= name < end:
                    continue
                if delimiter and found:
                    prefixes[prefix + below + delimiter] = None
                else:
                    items.append(self.describe(bucket, name))
        return {"kind": "storage#objects", "items": items, "prefixes": list(prefixes)}

    def begin_upload(self, bucket: str, name: str, query: Mapping[str, str]) -> str:
        with self.lock:
            self._check(bucket, name, query)
            number = str(next(self._generations))
            self._uploads[number] = (bucket, name, dict(query), bytearray())
            return number

    def go_on_with_upload(self, number: str, data: bytes, content_range: str) -> dict | int:
        """The object where that was all of it, else how much has come."""
        bucket, name, query, received = self._uploads[number]
        received += data
        total = content_range.rpartition("/")[2]
        if total == "*" or len(received) < int(total or len(received)):
            return len(received)
        return self.put(bucket, name, bytes(self._uploads.pop(number)[3]), query)

    def _check(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        if bucket not in self.objects:
            raise Refused(404)
        found = self.objects[bucket].get(name)
        generation = found.generation if found else 0
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != generation:
            raise Refused(412)
        if "ifGenerationNotMatch" in query and int(query["ifGenerationNotMatch"]) == generation:
            raise Refused(304)


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # TensorStore opens many connections at once

    def handle_error(self, *_: object) -> None:
        """Clients that are killed in the middle of a request are no errors here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bucket_server: BucketServer

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length) if length else self._chunks()
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        match = re.fullmatch(
            r"(?P<upload>/upload|/resumable/upload|/download)?/storage/v1/b(?:/(?P<bucket>[^/]+))?"
            r"(?:/(?P<objects>o)(?:/(?P<name>[^/]+))?)?"
            r"(?:/(?P<verb>rewriteTo|moveTo)(?:/b/(?P<to>[^/]+))?/o/(?P<new>[^/]+))?",
            url.path,
        )
        try:
            if not match:
                raise Refused(501)
            found = {k: urllib.parse.unquote(v) for k, v in match.groupdict().items() if v}
            name = found.get("name", self.query.get("name", ""))
            if status := self.bucket_server.refuse(self.command, found.get("bucket", ""), name):
                raise Refused(status)
            self._route(found)
        except Refused as refused:
            status = refused.args[0]
            text = {"error": {"code": status, "message": f"{self.command} {url.path}: {status}"}}
            self._send(status, b"" if status == 304 else json.dumps(text).encode())

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def _route(self, found: dict[str, str]) -> None:
        server, bucket, name = self.bucket_server, found.get("bucket", ""), found.get("name", "")
        if "upload" in found and self.command in ("POST", "PUT"):
            self._upload(bucket)
        elif found.get("verb"):
            with server.lock:
                data = server.get(bucket, name, {}).data
                made = server.put(found.get("to", bucket), found["new"], data, self.query)
                if found["verb"] == "moveTo":
                    server.delete(bucket, name, {})
            rewritten = {"kind": "storage#rewriteResponse", "done": True, "resource": made}
            self._json(rewritten if found["verb"] == "rewriteTo" else made)
        elif self.command == "DELETE":
            server.delete(bucket, name, self.query)
            self._send(204, b"")
        elif name and self.query.get("alt") == "media":
            self._download(server.get(bucket, name, self.query))
        elif name:
            server.get(bucket, name, self.query)
            self._json(server.describe(bucket, name))
        elif "objects" in found:
            self._json(server.list(bucket, self.query))
        elif bucket in server.objects:
            self._json({"kind": "storage#bucket", "name": bucket, "id": bucket})
        else:
            raise Refused(404)

    def _upload(self, bucket: str) -> None:
        server, kind = self.bucket_server, self.query.get("uploadType")
        if "upload_id" in self.query:
            content_range = self.headers.get("Content-Range", "")
            made = server.go_on_with_upload(self.query["upload_id"], self.body, content_range)
            if isinstance(made, dict):
                self._json(made)
            else:
                self._send(308, b"", {"Range": f"bytes=0-{made - 1}"} if made else {})
        elif kind == "media":
            self._json(server.put(bucket, self.query["name"], self.body, self.query))
        elif kind == "multipart":
            described, data = self._parts()
            name = self.query.get("name") or described["name"]
            self._json(server.put(bucket, name, data, self.query))
        elif kind == "resumable":
            name = self.query.get("name") or json.loads(self.body)["name"]
            number = server.begin_upload(bucket, name, self.query)
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
            self._send(200, b"", {"Location": server.url + path})
        else:
            raise Refused(400)

    def _parts(self) -> tuple[dict, bytes]:
        """What a multipart upload says of the object, and its bytes, untouched."""
        message = email.message_from_string(f"Content-Type: {self.headers['Content-Type']}\n\n")
        boundary = b"--" + message.get_boundary().encode()
        _, described, data, _ = re.split(rb"\r?\n?" + re.escape(boundary), self.body)
        (_, described), (_, data) = (
            re.split(rb"\r?\n\r?\n", part, maxsplit=1) for part in (described, data)
        )
        return json.loads(described), data

    def _download(self, found: Stored) -> None:
        headers = {"x-goog-generation": str(found.generation), "x-goog-metageneration": "1"}
        size = len(found.data)
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return self._send(200, found.data, headers)
        start = int(match[1]) if match[1] else max(0, size - int(match[2]))
        end = min(int(match[2]) + 1, size) if match[1] and match[2] else size
        if start >= size:
            return self._send(416, b"", {"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return self._send(206, found.data[start:end], headers)

    def _json(self, value: dict) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} Answer", f"Content-Length: {len(body)}"]
        lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + body)

    def _chunks(self) -> bytes:
        """A body without a length, as clients send that do not know it before."""
        body = b""
        while self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            size = int(self.rfile.readline(), 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                break
        return body
