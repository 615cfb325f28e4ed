"""Finding, opening and decoding files."""

import os
import pickle
import socket

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse_bytes, read_file, read_plain_file
from setpoint.config.words.errors import SetpointError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(path):
    with pytest.raises(FileError) as caught:
        read_file(path)
    assert isinstance(caught.value, SetpointError)
    return str(caught.value)


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
    assert refusal("experiment.toml") == (
        "experiment.toml: no such file. Did you mean expirement.toml?"
    )
    assert refusal("sub/base.yml") == "sub/base.yml: no such file. Did you mean sub/base.yaml?"
    for name in ("exp.toml", "exp.yaml", "sub/job.toml.bak", "sub/job.md"):
        (folder / name).touch()
    assert refusal("exq.json").endswith("Did you mean exp.toml?")
    (folder / "stars.json").write_text(' [{"messages": []}]')  # data, no configuration
    assert refusal("start.toml") == "start.toml: no such file"
    (folder / "stars.json").write_text(' {"seed": 1}')
    assert refusal("start.toml").endswith("Did you mean stars.json?")
    assert refusal("sub/jobb.toml") == "sub/jobb.toml: no such file"
    assert refusal("other.json") == "other.json: no such file"
    assert refusal("none/x.toml") == "none/x.toml: no such file; there is no directory 'none'"
    assert refusal("x.ini") == "x.ini: expected a file name ending in .toml, .yaml, .yml, .json"
    assert refusal("\0.toml") == "'\\x00.toml': not a valid file name"
    assert refusal("x" * 300 + ".toml").endswith(": cannot be read: File name too long")


def test_an_unreadable_file_is_refused(folder, monkeypatch):
    (folder / "a.toml").touch()

    def refuse(*_, **__):  # a file mode would not stop root, whom tests in containers run as
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert refusal("a.toml") == "a.toml: cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"a = 1\nb = '\xc3\xa9\xff'",
            "a.toml:2:7: the byte 0xff at offset 13 is not UTF-8; save the file as UTF-8",
        ),
        (
            b"\xef\xbb\xbfa = '\xe9'",
            "a.toml:1:6: the byte 0xe9 at offset 8 is not UTF-8; save the file as UTF-8",
        ),
        ("a = 1".encode("utf-16"), "a.toml:1:1: the file is UTF-16; save it as UTF-8"),
    ],
)
def test_bytes_that_are_not_utf_8(folder, data, message):
    (folder / "a.toml").write_bytes(data)
    assert refusal("a.toml") == message


def test_files_beyond_the_limit_of_bytes_are_refused(folder):
    (folder / "a.toml").write_bytes(b"#" * (2 * 1024 * 1024 + 1))
    too_large = "a.toml: the file holds 2097153 bytes; at most 1 MiB of TOML are read"
    assert refusal("a.toml") == too_large
    for text in ("#" * 2097153, "é" * 1048576 + "#"):
        with pytest.raises(FileError) as caught:
            parse_bytes(text.encode(), "toml", "a.toml")
        assert str(caught.value) == too_large


def test_file_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(FileError("f", 2, 3, "wrong")))
    assert (str(error), error.name, error.line, error.column) == ("f:2:3: wrong", "f", 2, 3)


def test_a_link_to_nothing(folder):
    (folder / "exp.toml").symlink_to("gone.toml")
    with pytest.raises(SetpointError) as caught:
        read_file("exp.toml")
    assert str(caught.value) == ("exp.toml: no such file: it is a broken link to 'gone.toml'")


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
        with pytest.raises(FileError, match="is too large for a floating-point number"):
            read(text)


# Only plain files are opened, and reading one never waits.


def plain_refusal(path, limit=10):
    with pytest.raises(FileError) as caught:
        read_plain_file(str(path), limit, lambda size: f"{size} bytes", lambda path: "not there")
    return caught.value.message


def test_a_plain_file_up_to_its_limit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert read_plain_file(str(path), 10, str, str) == b"0123456789"
    assert plain_refusal(path, 9) == "10 bytes"
    (tmp_path / "link").symlink_to(path)
    assert read_plain_file(str(tmp_path / "link"), 10, str, str) == b"0123456789"


def test_folders_pipes_and_devices_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    assert plain_refusal(tmp_path) == "expected a file; this is a directory"
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    for path in ("pipe", "socket", "/dev/zero", "/dev/null"):
        assert plain_refusal(path) == "expected a file; this is not a regular file", path
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(FileError, match="not a regular file"):
        read_file("zero.toml")
    assert plain_refusal("none") == "not there"
    os.symlink("loop", "loop")
    assert plain_refusal("loop") == "cannot be read: Too many levels of symbolic links"


def test_a_pipe_that_takes_the_place_of_the_file_is_seen(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    before = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda name: before)
    assert plain_refusal(path) == "expected a file; this is not a regular file"


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="needs the kernel's log")
def test_a_file_of_the_kernel_does_not_wait():
    for _ in range(2):  # the second time nothing is left in it
        try:
            data = read_plain_file("/proc/kmsg", 10**8, str, str)
        except FileError as error:
            assert error.message.startswith("cannot be read")
        else:
            assert isinstance(data, bytes)


def test_devices_get_a_hint():
    with pytest.raises(FileError, match="--config-from-stdin reads standard input"):
        read_file("/dev/stdin")
