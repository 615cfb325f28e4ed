"""Snapshots of texts that users read.

- `refused()` expects an error and compares its whole message with the one stored for the running
  test in `snapshots/messages/`, one file per test module.
- `compare(name, text)` compares a text with `snapshots/NAME.txt` byte for byte: output of commands.
  Without such a file, it compares the facts in `snapshots/AREA.facts.json`: paths, flags, places in
  files, numbers, quoted values and suggestions, paragraph by paragraph. Other wording is no failure
  there; a lost path, number or suggestion is one.

`SETPOINT_UPDATE_SNAPSHOTS=1 pytest` rewrites all three; review the difference like code. To store a
new text whole, create its file, empty, beforehand.
"""

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from setpoint.config import ConfigError, Invalid, SetpointError
from setpoint.config.words.errors import Problem

TESTS = Path(__file__).parents[1]
FOLDER = TESTS / "snapshots"
MESSAGES = FOLDER / "messages"
FACT = re.compile(
    r"""--[A-Za-z][\w.-]*                                   # a flag
    | Did\ you\ mean\ [^?\n]+                               # a suggestion
    | '[^'\n]{1,60}'                                        # a value or a name
    | [A-Za-z_][\w-]*(?:[./][\w-]+)+(?::\d+(?::\d+)?)?      # a path, or a place in a file
    | ^\s*[\w-]+(?=\ =\ )                                   # a field at the top
    | (?<![\w.])-?\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?          # a number
    """,
    re.VERBOSE | re.MULTILINE,
)
# Lists of what is valid grow with each new field.
LISTED = re.compile(r"\b[Vv]alid\b.*")

Facts = list[list[str]]
E = TypeVar("E", bound=BaseException)

HEADING = re.compile(r"^== (test_.*)\n", re.MULTILINE)
# What differs between machines, or with each new field: lines, fingerprints, digests of weights.
VARIES = (
    (re.compile(r"(\b(?:src|tests)/[\w/]+\.py):\d+(?::\d+)?"), r"\1:LINE"),
    (re.compile(r"(\brecord \S+/config\.json):\d+"), r"\1:LINE"),
    (re.compile(r"\bcommit [0-9a-f]{7}\b"), "commit COMMIT"),
    (re.compile(r"(?<=fingerprint )[0-9a-f]{64}|(?<=values give )[0-9a-f]{64}"), "FINGERPRINT"),
    (re.compile(r"(\n +Traceback) \(most recent call last\):(?:\n {6}.*)+"), r"\1"),
    (re.compile(r"(\b(?:runs|HERE)/[\w./-]*?(?<!/step)-|\bsmall-)[0-9a-f]{8}\b"), r"\1FINGERPRINT"),
    (re.compile(r"(?<=BLAKE3 )[0-9a-f]{12}|(?<=, not )[0-9a-f]{12}(?=\.\.)"), "DIGEST"),
)
refusals_of_test: Counter[str] = Counter()
temporary_folders = ""  # the folder of all `tmp_path`, from `conftest.py`


@contextmanager
def refused(
    kind: type[E] | tuple[type[E], ...] = SetpointError,
) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error with the message stored for the running test.

    An `Invalid` is stored with its valid values and advice, each of its parts after its place in
    the value.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    compare_message(_in_full(error) if isinstance(error, Invalid) else str(error))


def compare_message(text: str) -> None:
    """Compare a text, such as what a command prints, with the one stored for the running test.

    Folders of `tmp_path` are stored as HERE, the repository as REPOSITORY, fingerprints of runs as
    FINGERPRINT, and BLAKE3 digests as DIGEST.
    """
    node = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    refusals_of_test[node] += 1
    file, _, test = node.partition("::")
    number = refusals_of_test[node]
    test = test.replace("\n", " ") + (f" {number}" if number > 1 else "")
    path = (MESSAGES / Path(file).relative_to("tests")).with_suffix(".txt")
    message = re.sub(rf"{re.escape(temporary_folders)}/[^/\s'\":,)]+", "HERE", text)
    message = message.replace(str(TESTS.parent), "REPOSITORY")
    for pattern, stand_in in VARIES:
        message = pattern.sub(stand_in, message)
    message = "\n".join(line.rstrip() for line in message.strip("\n").split("\n"))
    message = message.encode("utf-8", "backslashreplace").decode()
    if os.environ.get("SETPOINT_UPDATE_SNAPSHOTS") == "1":
        _store(path, test, message)
        return
    stored = messages(path.read_text(encoding="utf-8") if path.is_file() else "")
    assert test in stored, f"no message is stored for {node}; see {__file__}"
    assert message == stored[test], f"the message of {node} differs from {path}"


def compare_problems(problems: Iterable[Problem]) -> None:
    """Compare the report of problems, of which there is one, with the stored message."""
    compare_message(str(ConfigError([*problems])))


def _in_full(error: Invalid) -> str:
    """The text of an error that reports would show with the path and value of a field."""
    if error.call:
        return str(error)
    places = [".".join(map(str, part.at)) for part in error.parts]
    return "\n".join(
        f"{place}: {part.sentence}" if place else part.sentence
        for place, part in zip(places, error.parts, strict=True)
    )


def messages(text: str) -> dict[str, str]:
    """Messages of a file by test."""
    _, *parts = HEADING.split(text)
    return {test: part.strip("\n") for test, part in zip(parts[::2], parts[1::2], strict=True)}


def _store(path: Path, test: str, message: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        stored = {**messages(file.read()), test: message}
        file.truncate(0)
        file.write("\n".join(f"== {name}\n{stored[name]}\n" for name in sorted(stored)))


def compare(name: str, text: str) -> None:
    """Hold a text against its file, or its facts against those that are kept of it.

    Arguments:
        name: `AREA/NAME`.
        text: what was printed or raised.
    """
    path = FOLDER / f"{name}.txt"
    updating = os.environ.get("SETPOINT_UPDATE_SNAPSHOTS") == "1"
    if not path.is_file():
        kept = FOLDER / f"{name.partition('/')[0]}.facts.json"
        if updating:
            _keep(kept, name, facts(text))
        else:
            known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
            assert name in known, f"nothing is kept of {name}; see {__file__}"
            missing = lost(known[name], text)
            assert not missing, f"{name} no longer says:\n{missing}\n\nIt says:\n{text}"
        return
    data = (text.rstrip("\n") + "\n").encode()
    if updating:
        path.write_bytes(data)
    assert data.decode() == path.read_bytes().decode(), f"differs from the snapshot {path.name}"


def refusals(cases: Mapping[str, Callable[[], object]], folder: Path | None = None) -> str:
    """What is said to each case that is refused; a folder is shown as HERE."""
    told: list[str] = []
    for case, refused in cases.items():
        with pytest.raises(SetpointError) as caught:
            refused()
        told.append(f"{case}:\n{caught.value}\n")
    text = "\n".join(told)
    return text if folder is None else text.replace(str(folder), "HERE")


def facts(text: str) -> Facts:
    """What a text must go on to say, whatever its words are."""
    return [
        sorted({fact.strip() for fact in FACT.findall(LISTED.sub("", paragraph))})
        for paragraph in _paragraphs(text)
    ]


def lost(kept: Facts, text: str) -> str:
    """The facts that a text does not say any more."""
    paragraphs = _paragraphs(text)
    if len(paragraphs) != len(kept):
        return f"  {len(kept)} paragraphs, but {len(paragraphs)}"
    found = [{fact.strip() for fact in FACT.findall(each)} for each in paragraphs]
    return "\n".join(
        f"  paragraph {number}: {', '.join(fact for fact in those if fact not in here)}"
        for number, (those, here) in enumerate(zip(kept, found, strict=True), start=1)
        if not here.issuperset(those)
    )


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def _keep(path: Path, name: str, those: Facts) -> None:
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = {**json.loads(file.read() or "{}"), name: those}
        blocks = [
            f"{json.dumps(key)}: [\n" + ",\n".join(f"  {json.dumps(p)}" for p in known[key]) + "\n]"
            for key in sorted(known)
        ]
        file.truncate(0)
        file.write("{\n" + ",\n".join(blocks) + "\n}\n")
