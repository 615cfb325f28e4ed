"""Response files: how they are split, found and bounded."""

import os
from pathlib import Path

import pytest

from setpoint.cli.response_files import expand_response_files, split
from setpoint.config.composition import compose
from setpoint.config.layers.flags import Word

from ..config.helpers import problems_of
from ..config.sample import Job
from ..support.snapshots import refused


def test_the_preset_of_a_section_is_no_response_file() -> None:
    takes = {"--model"}.__contains__
    assert expand_response_files(["--model", "@big", "--x"], takes) == ["--model", "@big", "--x"]
    with refused():
        expand_response_files(["--model=a", "@big"], takes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    with refused():
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
    for name in ("loop.txt", "open.txt", "bytes.txt", "large.txt", "pipe.txt", "none", "", "."):
        with refused():
            expand_response_files([f"@{name}"])
