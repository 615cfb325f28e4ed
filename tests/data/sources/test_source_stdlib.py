import errno
import sysconfig
from pathlib import Path

import pytest

from setpoint.data.sources.config import Stdlib
from setpoint.data.sources.texts import StdlibSource

from ...support.snapshots import refused


def write(root: Path, name: str, data: bytes = b"x = 1\n") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for name in (
        "abc.py",
        "json/decoder.py",
        "json.py",
        "idlelib/help.py",
        # and what must not be read:
        "test/test_abc.py",
        "unittest/test/test_case.py",
        "lib2to3/tests/pytree.py",
        "idlelib/idle_test/mock.py",
        "site-packages/numpy/core.py",
        "dist-packages/apt.py",
        "__pycache__/abc.py",
        "lib-dynload/_json.so",
    ):
        write(tmp_path, name)
    write(tmp_path, "latin.py", b"# caf\xe9\n")
    return tmp_path


def test_only_sources_of_the_library_sorted_by_path(library: Path) -> None:
    names = [d.name for d in StdlibSource(Stdlib(), root=library).documents()]
    assert names == [
        "stdlib/abc.py",
        "stdlib/idlelib/help.py",
        "stdlib/json.py",
        "stdlib/json/decoder.py",
    ]


def test_include_chooses(library: Path) -> None:
    for include, names in (
        (("json/*",), ["json/decoder.py"]),
        (("json*",), ["json.py", "json/decoder.py"]),
        (("abc.py", "idlelib/*"), ["abc.py", "idlelib/help.py"]),
    ):
        assert StdlibSource(Stdlib(include=include), root=library).paths() == names


def test_nothing_included_is_refused(library: Path) -> None:
    with refused():
        StdlibSource(Stdlib(include=("jsn/*",)), where="data.sources.0", root=library).paths()


def test_a_library_without_sources_is_refused(tmp_path: Path) -> None:
    with refused():
        StdlibSource(Stdlib(), root=tmp_path).paths()


def test_an_unreadable_file_is_named(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", deny)
    with refused():
        list(StdlibSource(Stdlib(), root=library).documents())


def test_the_running_python_has_megabytes_of_it_and_the_same_each_time() -> None:
    source = StdlibSource(Stdlib())
    documents = list(source.documents())
    assert documents == list(source.documents())
    names = [d.name for d in documents]
    assert len(names) > 500
    assert sum(len(d.data) for d in documents) > 8_000_000
    root = Path(sysconfig.get_path("stdlib"))
    by_name = {d.name: d.data for d in documents}
    assert by_name["stdlib/json/__init__.py"] == (root / "json/__init__.py").read_bytes()
    assert not [name for name in names if "/test/" in name or "site-packages" in name]
