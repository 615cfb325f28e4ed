"""Finding, opening and decoding files."""

import os
import pickle
import subprocess
import sys

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse_bytes, read_file
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
def test_suffix_says_the_format(folder, name, text, format, mark):
    (folder / name).write_text(mark + text, encoding="utf-8")
    document = read_file(name)
    assert (document.name, document.format, document.text) == (name, format, text)
    assert document.data == {"a": "é"}
    assert document.locate(("a",)) == (1, 2 if format == "json" else 1)


def test_suffix_is_checked_first(folder):
    expected = "expected a file that ends in .toml, .yaml, .yml, .json"
    assert refusal("x.ini") == f"x.ini: {expected}"
    assert refusal("x") == f"x: {expected}"


def test_missing_file(folder):
    (folder / "expirement.toml").touch()
    (folder / "sub").mkdir()
    (folder / "sub" / "base.yaml").touch()
    assert refusal("experiment.toml") == (
        "experiment.toml: no such file; did you mean 'expirement.toml'?"
    )
    assert refusal("sub/base.yml") == "sub/base.yml: no such file; did you mean 'sub/base.yaml'?"
    assert refusal("other.json") == "other.json: no such file"
    assert refusal("none/x.toml") == "none/x.toml: no such file; there is no directory 'none'"


def test_what_is_not_a_plain_file(folder):
    (folder / "d.toml").mkdir()
    os.mkfifo(folder / "p.toml")
    assert refusal("d.toml") == "d.toml: expected a file; this is a directory"
    assert refusal("p.toml") == "p.toml: expected a file; this is not a regular file"
    assert refusal("d.toml/x.toml") == "d.toml/x.toml: no such file"
    assert refusal("\0.toml") == "'\\x00.toml': not a valid file name"
    assert refusal("x" * 300 + ".toml").endswith(": cannot be read: File name too long")


def test_a_file_below_a_file(folder):
    (folder / "f.toml").touch()
    assert refusal("f.toml/x.toml") == "f.toml/x.toml: cannot be read: Not a directory"


def test_unreadable(folder, monkeypatch):
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


def test_size(folder):
    (folder / "a.toml").write_bytes(b"#" * (2 * 1024 * 1024 + 1))
    too_large = "a.toml: the file holds 2097153 bytes; at most 1 MiB of TOML are read"
    assert refusal("a.toml") == too_large
    for text in ("#" * 2097153, "é" * 1048576 + "#"):
        with pytest.raises(FileError) as caught:
            parse_bytes(text.encode(), "toml", "a.toml")
        assert str(caught.value) == too_large


@pytest.mark.parametrize("format", ["toml", "yaml", "json"])
def test_a_byte_order_mark_alone_is_an_empty_file(format):
    assert parse_bytes(b"\xef\xbb\xbf", format, "f").data == {}


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(FileError("f", 2, 3, "wrong")))
    assert (str(error), error.name, error.line, error.column) == ("f:2:3: wrong", "f", 2, 3)


def test_each_format_imports_only_its_own(folder):
    (folder / "a.toml").write_text("a = 1")
    (folder / "a.json").write_text('{"a": 1}')
    code = (
        "import sys\n"
        "from setpoint.config.files.read import read_file\n"
        "had = set(sys.modules)\n"
        "read_file({!r}).locate(('a',))\n"
        "print(sorted({{'json', 'tomllib', 'ruamel.yaml', 'difflib'}} & (set(sys.modules) - had)))"
    )
    for name, expected in (("a.toml", "['tomllib']"), ("a.json", "['json']")):
        run = [sys.executable, "-c", code.format(name)]
        result = subprocess.run(run, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == expected


def test_a_link_to_nothing(folder):
    (folder / "exp.toml").symlink_to("gone.toml")
    with pytest.raises(SetpointError) as caught:
        read_file("exp.toml")
    assert str(caught.value) == (
        "exp.toml: no such file: it is a link to 'gone.toml', where there is nothing"
    )
