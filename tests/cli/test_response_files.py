"""Response files: how they are split, found and bounded."""

import os
from pathlib import Path

import pytest

from setpoint.cli.response_files import expand_response_files, split
from setpoint.config.composition import compose
from setpoint.config.layers.flags import Word
from setpoint.config.words.errors import SetpointError

from ..config.helpers import problems_of
from ..config.sample import Job


def test_the_preset_of_a_section_is_no_response_file() -> None:
    takes = {"--model"}.__contains__
    assert expand_response_files(["--model", "@big", "--x"], takes) == ["--model", "@big", "--x"]
    with pytest.raises(SetpointError, match="no such response file"):
        expand_response_files(["--model=a", "@big"], takes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(*words: str) -> str:
    with pytest.raises(SetpointError) as caught:
        expand_response_files(words)
    return str(caught.value)


def test_words_as_in_a_shell_with_their_lines() -> None:
    text = (
        "# not 'this\n--a 1\n--name 'a b' \"c\\\"d\\n\" run#3\\\r\n  # nor this\n"
        " e\\ f '' \"$x `y`\" *~ # \"nor' this\n'g # h' i\\\\\n"
    )
    words = split(text, "f")
    assert words == ["--a", "1", "--name", "a b", 'c"d\\n', "run#3", "e f", "", "$x `y`", "*~",
                     "g # h", "i\\"]  # fmt: skip
    lines = [int(word.place.removeprefix("f:")) for word in words]
    assert lines == [2, 2, 3, 3, 3, 3, 5, 5, 5, 5, 6, 6]
    with pytest.raises(SetpointError, match="f:1: a word cannot continue on the next line"):
        split("--a=fo\\\no", "f")


def test_origins_say_the_file_and_the_line(folder: Path) -> None:
    (folder / "args.txt").write_text("# faster\n--optimizer.lr 1e-2\nseed=x")
    words = expand_response_files(["--deterministic", "@args.txt"])
    (problem,) = problems_of(lambda: compose(Job, flags=words).resolve())
    assert problem.origin == "command line seed (args.txt:3)"
    (folder / "args.txt").write_text("--seed=2 --optimizer.lr=1e-2")
    job = compose(
        Job, flags=expand_response_files(["--seed=1", "@args.txt", "--optimizer.lr=1"])
    ).resolve()
    assert (job.optimizer.lr, job.seed) == (1, 2)


def test_files_are_found_beside_the_file_that_names_them(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("x @b.txt z=@b.txt")
    (folder / "sub" / "b.txt").write_bytes(b"\xef\xbb\xbfy")
    words = expand_response_files(["@sub/a.txt", "w=@no"])
    assert words == ["x", "y", "z=@b.txt", "w=@no"]
    assert [word.place for word in words if isinstance(word, Word)] == [
        os.path.join("sub", "a.txt") + ":1", os.path.join("sub", "b.txt") + ":1",
        os.path.join("sub", "a.txt") + ":1",
    ]  # fmt: skip


def test_what_cannot_be_read(folder: Path) -> None:
    (folder / "loop.txt").write_text("a\n@loop.txt")
    (folder / "open.txt").write_text("a\n 'b\n\n")
    (folder / "bytes.txt").write_bytes(b"\xff")
    (folder / "large.txt").write_bytes(b" " * (1024 * 1024 + 1))
    os.mkfifo(folder / "pipe.txt")
    assert refusal("@loop.txt") == (
        "loop.txt:2: response files can be nested at most 8 levels deep; does one include itself?"
    )
    assert refusal("@open.txt") == "open.txt:2: no closing quotation"
    assert refusal("@bytes.txt") == "bytes.txt: not UTF-8: invalid start byte"
    assert refusal("@large.txt").endswith("may have at most 1048576 bytes in total")
    assert refusal("@pipe.txt") == "pipe.txt: expected a file; this is not a regular file"
    assert refusal("@none") == (
        "none: there is no such response file; write a value that begins with '@' after an equals "
        "sign, as in --section.field=@none"
    )
    assert refusal("@") == "'@' is not followed by a file name; expected @FILE"
    assert refusal("@.").endswith("this is a directory")
