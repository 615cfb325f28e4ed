import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from setpoint.config import SetpointError, resolve
from setpoint.config.resolving.checks import verify
from setpoint.data.sources.config import Text
from setpoint.data.sources.texts import TextSource


def read(*paths: str, **fields: str) -> list[tuple[str, str]]:
    source = Text(paths=paths, **fields)
    return [(d.name, d.data.decode()) for d in TextSource(source).documents()]


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    files.pipe("/bucket/a.txt", b"text a")
    files.pipe("/bucket/sub/b.txt", b"text b")
    files.pipe("/bucket/rows/c.jsonl", b'{"text": "row c"}\n')
    files.pipe("/bucket/.hidden", b"\xff")
    yield files
    files.rm("/bucket", recursive=True)


def test_files_folders_and_globs_of_memory(memory: fsspec.AbstractFileSystem) -> None:
    assert read("memory://bucket/a.txt") == [("text/a.txt", "text a")]
    assert read("memory://bucket/**/*.txt") == [
        ("text/a.txt", "text a"),
        ("text/sub/b.txt", "text b"),
    ]
    assert read("memory://bucket/sub") == [("text/b.txt", "text b")]
    assert read("memory://bucket/rows/*.jsonl") == [("text/c.jsonl#000000", "row c")]
    assert read("memory://bucket", format="text") == read("memory://bucket/**/*.txt")


@pytest.mark.parametrize("path", ["memory://bucket/none.txt", "memory://nowhere/*.txt"])
def test_a_url_that_leads_nowhere(memory: fsspec.AbstractFileSystem, path: str) -> None:
    with pytest.raises(SetpointError, match=r"data\.sources\.paths\.0: '.*' matches no file"):
        read(path)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_files_of_a_server(tmp_path: Path, server: str) -> None:
    (tmp_path / "a.txt").write_text("text a")
    (tmp_path / "b.txt").write_text("text b")
    parquet.write_table(pa.table({"text": ["row"]}), tmp_path / "c.parquet")
    assert read(f"{server}/a.txt") == [("text/a.txt", "text a")]
    assert read(f"{server}/a.txt?download=true") == [("text/a.txt", "text a")]
    assert read(f"{server}/*.txt") == [("text/a.txt", "text a"), ("text/b.txt", "text b")]
    assert read(f"{server}/c.parquet") == [("text/c.parquet#000000", "row")]
    with pytest.raises(SetpointError, match="matches no file"):
        read(f"{server}/none.txt")


def test_a_server_that_does_not_answer() -> None:
    pytest.importorskip("aiohttp")
    with pytest.raises(SetpointError, match=r"a\.txt' cannot be listed: .*127\.0\.0\.1:9"):
        read("http://127.0.0.1:9/a.txt")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gs://bucket/a.txt", "needs the package 'gcsfs'"),
        ("abfs://bucket/a.txt", "needs the package 'adlfs'"),
        ("nonsense://bucket/a.txt", "unknown protocol, nonsense"),
    ],
)
def test_a_missing_package_is_found_by_check(path: str, words: str) -> None:
    (problem,) = verify(resolve(Text(paths=(path,))), ("files",)).problems
    assert problem.path == "paths.0" and words in problem.message
    with pytest.raises(SetpointError, match=words):
        read(path)


def test_check_asks_nobody() -> None:
    pytest.importorskip("aiohttp")
    source = resolve(Text(paths=("http://127.0.0.1:9/a.txt", "memory://none/*.txt")))
    assert not verify(source, ("files",)).problems
    assert source.most_tokens() is None
