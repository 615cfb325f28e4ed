"""Finding, opening and decoding files."""

import os
import pickle
import socket

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse_bytes, read_file, read_plain_file

from ...support.snapshots import refused


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("a.toml", 'a = "é"', "toml"),
        ("a.yaml", "a: é", "yaml"),
        ("a.yml", "a: é", "yaml"),
        ("a.JSON", '{"a": "é"}', "json"),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_suffix_says_the_format(folder, name, text, format, mark):
    (folder / name).write_text(mark + text, encoding="utf-8")
    document = read_file(name)
    assert (document.name, document.format, document.text) == (name, format, text)
    assert document.data == {"a": "é"}
    assert document.locate(("a",)) == (1, 2 if format == "json" else 1)


def test_a_missing_file_is_named_with_similar_ones(folder):
    (folder / "expirement.toml").touch()
    (folder / "sub").mkdir()
    (folder / "sub" / "base.yaml").touch()

    def refuse(*names):
        for name in names:
            with refused(FileError):
                read_file(name)

    refuse("experiment.toml", "sub/base.yml")
    for name in ("exp.toml", "exp.yaml", "sub/job.toml.bak", "sub/job.md"):
        (folder / name).touch()
    (folder / "stars.json").write_text(' [{"messages": []}]')  # data, no configuration
    refuse("exq.json", "start.toml")
    (folder / "stars.json").write_text(' {"seed": 1}')
    refuse("start.toml", "sub/jobb.toml", "other.json", "none/x.toml", "x.ini", "\0.toml")
    refuse("x" * 300 + ".toml")
    (folder / "link.toml").symlink_to("gone.toml")
    refuse("link.toml")


def test_an_unreadable_file_is_refused(folder, monkeypatch):
    (folder / "a.toml").touch()

    def refuse(*_, **__):  # a file mode would not stop root, whom tests in containers run as
        raise PermissionError(13, "Permission denied")

    with refused(FileError), monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        read_file("a.toml")


@pytest.mark.parametrize(
    "data",
    [
        b"a = 1\nb = '\xc3\xa9\xff'",
        b"\xef\xbb\xbfa = '\xe9'",
        "a = 1".encode("utf-16"),
    ],
)
def test_bytes_that_are_not_utf_8(folder, data):
    (folder / "a.toml").write_bytes(data)
    with refused(FileError):
        read_file("a.toml")


def test_files_beyond_the_limit_of_bytes_are_refused(folder):
    (folder / "a.toml").write_bytes(b"#" * (2 * 1024 * 1024 + 1))
    with refused(FileError):
        read_file("a.toml")
    for text in ("#" * 2097153, "é" * 1048576 + "#"):
        with refused(FileError):
            parse_bytes(text.encode(), "toml", "a.toml")


def test_file_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(FileError("f", 2, 3, "wrong")))
    assert (str(error), error.name, error.line, error.column) == ("f:2:3: wrong", "f", 2, 3)


@pytest.mark.parametrize("format", ["toml", "yaml", "json"])
def test_an_empty_file_sets_nothing(format):
    texts = ["", "{}"] if format == "json" else ["", "# only a comment", "\n"]
    for text in (*texts, *(["---\n", "--- # x\n...\n"] if format == "yaml" else [])):
        document = parse_bytes(b"\xef\xbb\xbf" + text.encode(), format, "f")
        assert document.data == {} and document.locate(("a",)) is None


@pytest.mark.parametrize("format", ["toml", "json"])
def test_numbers_of_too_many_digits_are_refused(format):
    def read(text):
        return parse_bytes(
            f'{{"a": {text}}}'.encode() if format == "json" else f"a = {text}".encode(), format, "f"
        ).data["a"]

    assert read("1" * 4300) == int("1" * 4300)
    for text in ("1e999", "[1, -1e999]", "1" + "0" * 400 + ".5"):
        with refused(FileError):
            read(text)


# Only plain files are opened, and reading one never waits.


def refuse_plain(path, limit=10):
    with refused(FileError):
        read_plain_file(str(path), limit, lambda size: f"{size} bytes", lambda path: "not there")


def test_a_plain_file_up_to_its_limit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert read_plain_file(str(path), 10, str, str) == b"0123456789"
    refuse_plain(path, 9)
    (tmp_path / "link").symlink_to(path)
    assert read_plain_file(str(tmp_path / "link"), 10, str, str) == b"0123456789"


def test_folders_pipes_and_devices_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    refuse_plain(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    os.symlink("loop", "loop")
    for path in ("pipe", "socket", "/dev/zero", "/dev/null", "none", "loop"):
        refuse_plain(path)
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for name in ("zero.toml", "/dev/stdin"):
        with refused(FileError):
            read_file(name)


def test_a_pipe_that_takes_the_place_of_the_file_is_seen(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    before = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    with refused(FileError), monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda name: before)
        read_plain_file(str(path), 10, str, str)


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="needs the kernel's log")
def test_a_file_of_the_kernel_does_not_wait():
    for _ in range(2):  # the second time nothing is left in it
        try:
            data = read_plain_file("/proc/kmsg", 10**8, str, str)
        except FileError as error:
            assert error.message.startswith("cannot be read")
        else:
            assert isinstance(data, bytes)
