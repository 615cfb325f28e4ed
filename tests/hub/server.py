"""A hub of data sets on this machine: what huggingface_hub asks for to push and to download.

Files are uploaded as git LFS has it; Xet, which the real hub prefers, is switched off.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_of_the_tests"


@dataclass
class Dataset:
    """A data set: commits by branch, each its files by path."""

    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {branch}".encode()).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        return sha

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches.get(revision, revision)]


class Hub:
    """What the server has.

    Arguments:
        uploads: the objects that were sent, in order.
        fail_after: uploads after which it refuses more; None: never.
    """

    def __init__(self) -> None:
        self.datasets: dict[str, Dataset] = {}
        self.objects: dict[str, bytes] = {}
        self.uploads: list[str] = []
        self.fail_after: int | None = None
        self.url = ""

    def use(self, patch: pytest.MonkeyPatch, cache: Path) -> None:
        """Let huggingface_hub ask this hub, with a cache of its own; it reads variables once."""
        from huggingface_hub import constants

        settings = {
            "ENDPOINT": self.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
        }
        for name, value in settings.items():
            patch.setattr(constants, name, value)
        patch.setenv("HF_TOKEN", TOKEN)


class Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    """Answers of the hub."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        try:
            if not path.startswith("/objects/"):
                given = self.headers.get("Authorization")
                if given != f"Bearer {TOKEN}":
                    raise Refused(401, "RepoNotFound", "Invalid credentials")
            for pattern, method in ROUTES:
                match = re.fullmatch(pattern, f"{self.command} {path}")
                if match:
                    method(self, **match.groupdict())
                    return
            raise Refused(404, "EntryNotFound", path)
        except Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": str(refused)}
            self._send(b"{}", refused.status, headers)

    def _send(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

    def _dataset(self, name: str) -> Dataset:
        if name not in self.hub.datasets:
            raise Refused(404, "RepoNotFound", "Repository not found")
        return self.hub.datasets[name]

    def _files(self, name: str, revision: str) -> tuple[str, dict[str, bytes]]:
        dataset = self._dataset(name)
        sha = dataset.branches.get(revision, revision)
        if sha not in dataset.commits:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, dataset.commits[sha]

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] == "not-mine":
            raise Refused(403, "", "You have no rights to create a data set there")
        there = name in self.hub.datasets
        if not there:
            private = asked.get("visibility") == "private" or bool(asked.get("private"))
            made = self.hub.datasets[name] = Dataset(private)
            made.commit("main", {".gitattributes": b"*.npy filter=lfs\n"})
        self._json({"url": f"{self.hub.url}/datasets/{name}"}, 409 if there else 200)

    def branch(self, name: str, revision: str) -> None:
        dataset = self._dataset(name)
        there = revision in dataset.branches
        dataset.branches.setdefault(revision, dataset.branches["main"])
        self._json({}, 409 if there else 200)

    def info(self, name: str, revision: str = "main") -> None:
        sha, files = self._files(name, revision)
        siblings = [{"rfilename": path} for path in files]
        private = self._dataset(name).private
        self._json({"id": name, "sha": sha, "private": private, "siblings": siblings})

    def tree(self, name: str, revision: str) -> None:
        files = self._files(name, revision)[1]
        entries = [{"type": "file", "path": path, "size": len(data), "oid": _oid(data)}
                   for path, data in files.items()]  # fmt: skip
        self._json(entries)

    def preupload(self, name: str, revision: str) -> None:
        files = self._files(name, revision)[1]
        found: list[dict[str, Any]] = []
        for each in json.loads(self.body)["files"]:
            path = each["path"]
            large = path.endswith((".npy", ".names"))
            hashed = (lambda data: hashlib.sha256(data).hexdigest()) if large else _oid
            found.append({
                "path": path,
                "shouldIgnore": False,
                "uploadMode": "lfs" if large else "regular",
                "oid": hashed(files[path]) if path in files else None,
            })  # fmt: skip
        self._json({"files": found})

    def batch(self, name: str) -> None:
        self._dataset(name)
        found = []
        for each in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.hub.url}/objects/{each['oid']}"}}
            found.append(each if each["oid"] in self.hub.objects else {**each, "actions": upload})
        self._json({"objects": found})

    def upload(self, oid: str) -> None:
        limit = self.hub.fail_after
        if limit is not None and len(self.hub.uploads) >= limit:
            raise Refused(403, "", "no more space")
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.objects[oid] = self.body
        self.hub.uploads.append(oid)
        self._json({})

    def validate(self) -> None:
        self._json({"errors": [], "warnings": []})

    def commit(self, name: str, revision: str) -> None:
        dataset = self._dataset(name)
        files = dict(self._files(name, revision)[1])
        for line in self.body.splitlines():
            key, value = (json.loads(line)[part] for part in ("key", "value"))
            if key == "header" and value.get("parentCommit") != dataset.branches[revision]:
                raise Refused(412, "", "A commit has happened since")
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        sha = dataset.commit(revision, files)
        self._json({"commitUrl": f"{self.hub.url}/datasets/{name}/commit/{sha}", "commitOid": sha})

    def resolve(self, name: str, revision: str, path: str) -> None:
        sha, files = self._files(name, revision)
        if path not in files:
            raise Refused(404, "EntryNotFound", path)
        self._send(files[path], 200, {"ETag": f'"{_oid(files[path])}"', "X-Repo-Commit": sha})


def _oid(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


NAME = r"(?P<name>[^/]+/[^/]+)"
REVISION = r"(?P<revision>[^/]+)"
ROUTES = (
    (r"POST /api/repos/create", Handler.create),
    (r"POST /api/validate-yaml", Handler.validate),
    (rf"POST /api/datasets/{NAME}/branch/{REVISION}", Handler.branch),
    (rf"POST /api/datasets/{NAME}/preupload/{REVISION}", Handler.preupload),
    (rf"POST /api/datasets/{NAME}/commit/{REVISION}", Handler.commit),
    (rf"POST /datasets/{NAME}\.git/info/lfs/objects/batch", Handler.batch),
    (r"PUT /objects/(?P<oid>\w+)", Handler.upload),
    (rf"GET /api/datasets/{NAME}", Handler.info),
    (rf"GET /api/datasets/{NAME}/revision/{REVISION}", Handler.info),
    (rf"GET /api/datasets/{NAME}/tree/{REVISION}", Handler.tree),
    (rf"(GET|HEAD) /datasets/{NAME}/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
)


@contextmanager
def local_hub() -> Iterator[Hub]:
    """A hub that answers as long as the context lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
