import errno
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from setpoint.config import resolve
from setpoint.config.resolving.checks import verify
from setpoint.data.reading import documents_of
from setpoint.data.sources import texts
from setpoint.data.sources.config import Text
from setpoint.data.sources.texts import TextSource, text_files
from setpoint.data.tokenizer import ByteTokenizer

from ...support.snapshots import refused


def names(*paths: str, separator: str | None = None) -> list[str]:
    config = Text(paths=paths, separator=separator)
    return [document.name for document in TextSource(config).documents()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.txt", "a.txt", "notes.md", "sub/c.txt", "sub/deep/d.txt", "we[i]rd.txt"):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_glob_is_sorted_and_named_from_its_first_wildcard(folder: Path) -> None:
    assert names("corpus/*.txt") == ["text/a.txt", "text/b.txt", "text/we[i]rd.txt"]
    assert names("corpus/**/*.txt") == [
        "text/a.txt",
        "text/b.txt",
        "text/sub/c.txt",
        "text/sub/deep/d.txt",
        "text/we[i]rd.txt",
    ]
    assert names("*/sub/*.txt") == ["text/corpus/sub/c.txt"]
    assert names("corpus/we[i]rd.txt") == ["text/we[i]rd.txt"]  # first a name
    assert names("corpus") == names("corpus/**/*")


def test_names_do_not_depend_on_how_the_folder_is_reached(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relative = names("corpus/**/*.txt")
    assert names(f"{folder}/corpus/**/*.txt") == relative
    assert names("corpus/../corpus/**/*.txt") == relative
    monkeypatch.setenv("HOME", str(folder))
    assert names("~/corpus/**/*.txt") == relative
    monkeypatch.chdir(folder / "corpus" / "sub")
    assert names("../**/*.txt") == relative


def test_a_separator_that_never_occurs(folder: Path) -> None:
    with refused():
        names("corpus/*.txt", separator="---")
    with refused():
        names("corpus/a.txt", separator="\\n\\n")
    assert len(names("corpus/*.txt", separator="of b")) == 4


def test_a_file_reached_twice_counts_once(folder: Path) -> None:
    assert names("corpus/*.txt", "corpus/a.txt", "corpus/**/b.txt") == [
        "text/a.txt",
        "text/b.txt",
        "text/we[i]rd.txt",
    ]
    assert names("corpus/sub/*.txt", "corpus/**/c.txt") == ["text/c.txt"]


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "a.txt").write_text("another")
    with refused():
        names("corpus/a.txt", "other/a.txt")


def test_a_separator_divides_files_into_numbered_documents(folder: Path) -> None:
    (folder / "poems.txt").write_text("one\n\ntwo\n\nthree", encoding="utf-8")
    config = Text(paths=("poems.txt",), separator="\n\n", name="poems")
    assert [(d.name, d.data) for d in TextSource(config).documents()] == [
        ("poems/poems.txt#000000", b"one"),
        ("poems/poems.txt#000001", b"two"),
        ("poems/poems.txt#000002", b"three"),
    ]


@pytest.mark.parametrize(
    "data",
    [b"caf\xe9 au lait", "ok ok ok \u00e9".encode()[:-1], b"x" * 100_000 + b"\x80"],
    ids=["Latin-1", "cut character", "late"],
)
def test_what_is_not_utf8_is_named_with_its_offset(folder: Path, data: bytes) -> None:
    (folder / "bad.txt").write_bytes(data)
    with refused():
        names("bad.txt")


@pytest.mark.parametrize(
    "path",
    [
        "corpus/none.txt",
        "corpus/*.rst",
        "~nobody-of-this-name/a.txt",
        "x" * 300,
        "a\0b",
        "none/**/*.txt",
        "empty",
    ],
    ids=["file", "glob", "user", "long", "null byte", "folders", "empty folder"],
)
def test_a_path_that_gives_nothing_is_refused_with_what_there_is(folder: Path, path: str) -> None:
    with refused():
        names(path)


def deny(path: Path, mode: str) -> bytes:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_an_unreadable_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(), monkeypatch.context() as patch:
        patch.setattr(Path, "open", deny)
        names("corpus/a.txt")


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    errors = text_files(Text(paths=("notes.txt", "*.md", str(tmp_path))), "paths").errors
    words = ("working directory", "working directory", "contains no files")
    assert [where.rpartition(".")[2] for where in errors] == ["0", "1", "2"]
    assert all(word in str(error) for word, error in zip(words, errors.values(), strict=True))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n', None),
        ("a.txt", b'{"text": "a"}\n{"text": "b"}\n', "a.txt contains JSON Lines: its braces"),
        ("a.txt", b"{braces} are text, too\n", None),
    ],
)
def test_files_that_hold_records(tmp_path: Path, name: str, data: bytes, words: str | None) -> None:
    (tmp_path / name).write_bytes(data)
    found = verify(resolve(Text(paths=(str(tmp_path / name),))), ("files",)).cautions
    assert [each.code for each in found] == ["text-files-hold-records"] * (words is not None)
    assert words is None or words in found[0].message
    said = Text(paths=(str(tmp_path / name),), format="text")
    assert not verify(resolve(said), ("files",)).cautions


@pytest.mark.parametrize("field", ["text", "chosen"])
def test_a_text_beside_a_preference_pair_is_noted(tmp_path: Path, field: str) -> None:
    row = '{"text": "a", "chosen": "b", "rejected": "c"}\n'
    (tmp_path / "rows.jsonl").write_text(row)
    section = resolve(Text(paths=(str(tmp_path / "rows.jsonl"),), field=field))
    codes = [caution.code for caution in verify(section, ("files",)).cautions]
    assert codes == ["preference-pairs-as-text"] * (field == "text")


def test_a_character_that_is_cut_at_a_separator(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("setpoint.data.sources.texts.BLOCK", 3)
    (folder / "bad.txt").write_bytes("12345€".encode()[:-1] + b"--more")
    with refused():
        names("bad.txt", separator="--")


def test_text_and_records_in_one_folder_are_told_apart(folder: Path) -> None:
    (folder / "corpus" / "rows.jsonl").write_text('{"text": "a row"}\n')
    with refused():
        names("corpus")
    found = TextSource(Text(paths=("corpus",), format="jsonl")).documents()
    assert [d.name for d in found] == ["text/rows.jsonl#000000"]
    found = TextSource(Text(paths=("corpus",), format="text")).documents()
    assert "text/rows.jsonl" not in [d.name for d in found]
    assert names("corpus/a.txt", "corpus/rows.jsonl") == ["text/a.txt", "text/rows.jsonl#000000"]


@given(
    data=st.text("abé\n", max_size=60),
    separator=st.sampled_from(["a", "aa", "aab", "abab", "\n\n"]),
    block=st.integers(1, 9),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_separators_are_found_wherever_blocks_of_the_file_end(
    data: str, separator: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "BLOCK", block)
    file = tmp_path / "a.txt"
    file.write_bytes(data.encode())
    section = Text(paths=(str(file),), separator=separator)
    expected = data.encode().split(separator.encode())
    if len(expected) > 1:
        assert [each.data for each in TextSource(section).documents()] == expected


def test_utf_16_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("text\n".encode("utf-16"))
    for separator in (None, "\n"):
        section = Text(paths=(f"{tmp_path}/a.txt",), separator=separator)
        with refused():
            list(TextSource(section).documents())


def test_texts_that_are_seldom_meant_are_cautions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16-le"))
    (tmp_path / "b.txt").write_text(" \n\t")
    (tmp_path / "c.txt").write_text("text")
    notes: list[str] = []
    section = resolve(Text(paths=(f"{tmp_path}/*.txt",)))
    list(documents_of(section, "data.sources.0", ByteTokenizer(), notes))
    assert notes == [
        "caution: text: 1 of 3 documents with NUL bytes, as in UTF-16 read as UTF-8: text/a.txt",
        "caution: text: 1 of 3 documents with only whitespace: text/b.txt",
    ]
