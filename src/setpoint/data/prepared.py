"""Names and keys of prepared data, without reading it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from setpoint.config import to_plain

if TYPE_CHECKING:
    from setpoint.data.sources.config import SourceConfig
    from setpoint.data.tokenizers.tokenizer import Tokenizer


KIND = "setpoint prepared data"
FORMAT = 1
MANIFEST = "manifest.json"


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds prepared data, of any version, whole or damaged."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            return KIND.encode() in file.read(200)
    except OSError:
        return False


class Facts(NamedTuple):
    """What a manifest says that can be compared without reading the data.

    Arguments:
        tokenizer: `Tokenizer.name`.
        sizes: bytes of each file.
    """

    tokenizer: str
    sizes: dict[str, int]


def read_facts(folder: Path) -> Facts | None:
    """The facts of prepared data; None where the manifest is damaged, which reading it says."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes = {str(name): int(size) for name, (size, _) in found["files"].items()}
        return Facts(str(found["tokenizer"]), sizes)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


MIXING = ("weight", "epochs")
"""Fields of a source that say how often it is read, and not what it holds."""


@dataclass(frozen=True, slots=True)
class Request:
    """Corpora that are wanted.

    Arguments:
        side: of the corpus of documents that are not held out.
        where: the path of `sources` in the job, for messages.
        held_out: share of documents that is, or their number.
        mixed: whether each source has a corpus of its own.
        numbers: of the sources in the list that `where` is the path of; empty: all in a row.
        in_place: whether token files are mapped where they lie, and only an index of them is kept.
    """

    side: str
    sources: tuple[SourceConfig, ...]
    where: str
    held_out: float = 0.0
    mixed: bool = False
    numbers: tuple[int, ...] = ()
    in_place: bool = False

    def where_of(self, index: int) -> str:
        """The path of one of the sources in the job."""
        return f"{self.where}.{self.numbers[index] if self.numbers else index}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""
        return tuple(source.name for source in self.sources)

    def described(self) -> dict[str, Any]:
        """What is asked for, but for the content of files."""
        sources = [
            {name: value for name, value in to_plain(source).items() if name not in MIXING}
            for source in self.sources
        ]
        kinds = [type(source).__qualname__ for source in self.sources]
        here: dict[str, Any] = {}
        if self.in_place:  # an index holds paths, which are those of one machine
            paths = (path for source in self.sources for path in getattr(source, "paths", ()))
            here = {"paths": [os.path.abspath(os.path.expanduser(path)) for path in paths]}
        return {
            **here,
            "side": self.side,
            "sources": [
                {"kind": kind, **source} for kind, source in zip(kinds, sources, strict=True)
            ],
            "held_out": self.held_out,
            "mixed": self.mixed,
        }

    def most_tokens(self) -> int | None:
        """Upper bound of the tokens of all sources; None: unknown."""
        sizes = [source.most_tokens() for source in self.sources]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def inputs(self) -> list[str] | None:
        """A line for each file or table that is read, with what changes when its content does.

        Returns:
            None where a source cannot say.
        """
        lines: list[str] = []
        for index, source in enumerate(self.sources):
            built: object = source.build(where=self.where_of(index))
            inputs = getattr(built, "inputs", None)
            if inputs is None:
                return None
            found = cast("Callable[[], Iterable[str] | None]", inputs)()
            if found is None:
                return None
            lines += found
        return lines


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a folder in the cache.

    Arguments:
        request: hash of what is asked for, with the tokenizer.
        inputs: hash of the state of the files.
    """

    request: str
    inputs: str

    @property
    def folder(self) -> str:
        """Name of the folder."""
        return f"{self.request}-{self.inputs}"


def key_of(request: Request, tokenizer: Tokenizer, inputs: Sequence[str]) -> Key:
    """The key of prepared data."""
    chat = getattr(tokenizer, "chat", None)
    facts = [chat.controls, chat.variables, chat.templates] if chat is not None else None
    of_tokenizer = [tokenizer.name, tokenizer.vocab_size, facts]
    asked = json.dumps([FORMAT, of_tokenizer, request.described()], sort_keys=True, default=list)
    state = hashlib.sha256()
    for line in inputs:
        data = line.encode("utf-8", "surrogateescape")
        state.update(f"{len(data)} ".encode() + data)
    return Key(hashlib.sha256(asked.encode()).hexdigest()[:16], state.hexdigest()[:16])


_SIZE = re.compile(r"(?:size=)?(\d+)\b")


def size_of(inputs: Sequence[str]) -> int:
    """Bytes of the files, of those whose size is known."""
    states = (_SIZE.match(line.rpartition("\t")[2]) for line in inputs)
    return sum(int(found[1]) for found in states if found)


def changed_names(
    before: Iterable[str], now: Iterable[str]
) -> tuple[list[str], list[str], list[str]]:
    """Names of inputs that are gone, new and changed."""
    old, new = _states(before), _states(now)
    return (
        [name for name in old if name not in new],
        [name for name in new if name not in old],
        [name for name in new if old.get(name, new[name]) != new[name]],
    )


def _states(lines: Iterable[str]) -> dict[str, str]:
    parts = (line.rpartition("\t") for line in lines)
    return {name: state for name, _, state in parts}


def brief_changes(before: Iterable[str], now: Iterable[str]) -> str:
    """The first few inputs that are new, gone or changed."""
    gone, new, changed = changed_names(before, now)
    found = [f"{name} is new" for name in new] + [f"{name} is gone" for name in gone]
    found += [f"{name} changed" for name in changed]
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
