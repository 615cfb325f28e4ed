import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from setpoint.config import SetpointError, resolve
from setpoint.config.resolving.checks import verify
from setpoint.data.sources.config import Text
from setpoint.data.sources.texts import TextSource

from ...support.snapshots import refused
from ..row_files import write_rows

ROWS = [{"text": f'the text, "number"\n{n} €', "meta": {"body": f"b{n}"}} for n in range(700)]


FORMATS = ("jsonl", "json", "csv", "parquet", "arrow", "feather")


def read(*paths: Path, **fields: Any) -> list[tuple[str, str]]:
    source = Text(paths=tuple(map(str, paths)), **fields)
    return [(d.name, d.data.decode()) for d in TextSource(source).documents()]


def refusal(path: Path, **fields: Any) -> str:
    with pytest.raises(SetpointError) as caught:
        read(path, **fields)
    return str(caught.value)


def test_tab_separated(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('id\ttext\n1\tone, two\n2\t"three\nfour"\n')
    assert [text for _, text in read(tmp_path / "a.tsv")] == ["one, two", "three\nfour"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_suffix_says_the_format(tmp_path: Path, suffix: str) -> None:
    name = f"a.{suffix}"
    write_rows(tmp_path / name, ROWS)
    wanted = [(f"text/{name}#{n:06d}", row["text"]) for n, row in enumerate(ROWS)]
    assert read(tmp_path / name) == wanted
    # The format can be said where the suffix does not.
    (tmp_path / name).rename(tmp_path / "data.bin")
    kind = {"feather": "arrow", "json": "jsonl"}.get(suffix, suffix)
    assert [text for _, text in read(tmp_path / "data.bin", format=kind)] == [t for _, t in wanted]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
def test_a_dotted_field_is_nested(tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name, ROWS[:3])
    assert [text for _, text in read(tmp_path / name, field="meta.body")] == ["b0", "b1", "b2"]
    with refused():
        read(tmp_path / name, field="meta.bdy")


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", lambda data: pa.compress(data, codec="zstd", asbytes=True)),
    ],
)
def test_compressed_files(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "c.txt").write_text("plain")
    for name in ("a.jsonl", "b.csv", "c.txt"):
        if name != "c.txt":
            write_rows(tmp_path / name, ROWS)
        (tmp_path / f"{name}{suffix}").write_bytes(compress((tmp_path / name).read_bytes()))
        whole = [text for _, text in read(tmp_path / name)]
        assert [text for _, text in read(tmp_path / f"{name}{suffix}")] == whole
    data = compress(b"".join(b'{"text": "%d"}\n' % n for n in range(9999)))
    (tmp_path / f"cut.jsonl{suffix}").write_bytes(data[: len(data) // 2])
    assert f"cannot read {tmp_path}/cut.jsonl{suffix}: " in refusal(tmp_path / f"cut.jsonl{suffix}")


def rows_with(number: int, row: Any) -> list[Any]:
    rows: list[Any] = [{"text": "fine"}] * 1_400
    rows[number] = row
    return rows


@pytest.mark.parametrize(
    "row",
    [{"txt": "a"}, {"text": None}, {"text": "\ud800x"}, [1]],
    ids=["other field", "null", "surrogate", "list"],
)
def test_a_bad_row_is_named(tmp_path: Path, row: Any) -> None:
    write_rows(tmp_path / "a.jsonl", rows_with(1_300, row))
    with refused():
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow"])
def test_bytes_that_are_not_utf8_are_named_by_their_row(tmp_path: Path, name: str) -> None:
    texts = [b"fine"] * 1000
    texts[700] = b"caf\xe9"
    data = pa.array(texts, pa.binary())
    table = pa.table({"text": data})
    if name == "a.csv":
        (tmp_path / name).write_bytes(b"text\n" + b"\n".join(texts) + b"\n")
    else:
        text = pa.StringArray.from_buffers(1000, *data.buffers()[1:])
        table = pa.table({"text": text})
        if name == "a.parquet":
            parquet.write_table(table, tmp_path / name)
        else:
            with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
                writer.write_table(table)
    with refused():
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b"", "has no rows"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 is not JSON: Expecting value"),
        ("a.jsonl", b'{"text": "a"}\n{"te', "Unterminated string starting at character 2"),
        ("a.json", b'[{"text": "a"} {"text": "b"}]', "row 2 is not JSON: , or ] is missing"),
        ("a.json", b'[{"text": "a"}] more', "a.json is not JSON: text follows the end"),
        ("a.json", b'[{"text": "\xff"}]', "row 1 is not UTF-8: byte 0xff at offset 11"),
        ("a.json", b'{\n"text": "a"}', "line 1 is not JSON(.|\n)*format = 'text'"),
        ("a.json", b"[[]]", "row 1 is a list, not a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "line 2 is not UTF-8: byte 0xff at"),
        ("a.jsonl", b"[" * 99_999, "row 1 is not JSON: its values are nested too deeply"),
        ("a.csv", b"", "the first row of text/a.csv is empty"),
        ("a.csv", b"id,text\n", "has no rows"),
        (
            "a.csv",
            b"id,txt\n1,a\n",
            r"\.field: .* no column 'text'; its columns are id, txt.\nValid: txt",
        ),
        ("a.csv", b"id;txt\n1;a\n", "a.csv separates columns by ';': id;txt"),
        ("a.csv", b"text,text\n1,a\n", "names the column 'text' twice"),
        ("a.csv", b"id,text\n1,a\n2\n", "row 2 cannot be read: 2 columns are named, but it has 1"),
        ("a.parquet", b"PAR1" + b"x" * 99, "cannot read .*a.parquet: "),
        ("a.parquet.gz", b"", "the file without the compression around it"),
        ("a.arrow", b"nonsense", "cannot read .*a.arrow: "),
        ("a.jsonl.gz", b"nonsense", "cannot read .*a.jsonl.gz: Not a gzipped file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SetpointError, match=words):
        read(tmp_path / name)


def test_a_file_cut_short(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "a.feather"):
        write_rows(tmp_path / name, ROWS)
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
        assert f"cannot read {tmp_path}/{name}: " in refusal(tmp_path / name)


@pytest.mark.parametrize(
    ("path", "given", "field"),
    [
        ("a.txt", {"field": "body"}, "field"),
        ("a", {"format": "text", "field": "body"}, "field"),
        ("a.jsonl", {"separator": "x"}, "separator"),
    ],
)
def test_a_field_without_effect_is_refused(path: str, given: dict[str, str], field: str) -> None:
    with pytest.raises(SetpointError, match=field):
        resolve(Text(paths=(path,), **given))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "a.parquet", ROWS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with refused():
        read(tmp_path / "a.parquet")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = verify(resolve(Text(paths=(str(tmp_path / "a.parquet"),))), ("files",)).problems
    assert "needs the package 'pyarrow'" in problem.message and "setpoint[data]" in problem.hint


def test_a_long_row_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setpoint.data.sources.records.LONGEST", 3000)
    texts = [f"{n}" if n != 60 else "long\n" * 400 for n in range(99)]
    (tmp_path / "a.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    assert [text for _, text in read(tmp_path / "a.csv")] == texts
    (tmp_path / "a.csv").write_text("text\n" + "fine\n" * 300 + '"never closed\n' + "x\n" * 9999)
    assert "a.csv, row 301 cannot be read: field larger than field limit (3000)" in refusal(
        tmp_path / "a.csv"
    )


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    """What is held at a time is a part of the file, whatever its size."""
    rows = [{"text": f"{n} " + "word " * 600} for n in range(5000)]
    write_rows(tmp_path / name, rows)
    del rows
    size = (tmp_path / name).stat().st_size
    source = TextSource(Text(paths=(str(tmp_path / name),)))
    tracemalloc.start()
    before, most, held = pa.total_allocated_bytes(), 0, 0
    for number, document in enumerate(source.documents()):
        held += len(document.data)
        if number % 100 == 0:
            most = max(
                most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0]
            )
    tracemalloc.stop()
    assert held > 14e6 and most < 9e6, (size, most)


@pytest.mark.parametrize(
    ("suffix", "fields", "path"),
    [(".md", {"field": "body"}, "field"), (".jsonl", {"separator": "x"}, "separator")],
)
def test_a_folder_whose_files_leave_a_field_without_effect(
    tmp_path: Path, suffix: str, fields: Any, path: str
) -> None:
    (tmp_path / f"a{suffix}").write_text('{"text": "a"}')
    (problem,) = verify(resolve(Text(paths=(str(tmp_path),), **fields)), ("files",)).problems
    assert problem.path == path and "has no effect" in problem.message


@pytest.mark.parametrize(
    ("option", "field", "message"),
    [("score", "text", "not a finite number"), ("field", "hard", "not a str")],
)
def test_check_reads_the_fields_of_the_first_row(
    tmp_path: Path, option: str, field: str, message: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "hard": 1}\n')
    fields: Any = {"score": "hard", option: field}
    config = resolve(Text(paths=(str(tmp_path / "a.jsonl"),), **fields))
    (problem,) = verify(config, ("files",)).problems
    assert problem.path == option and message in problem.message
