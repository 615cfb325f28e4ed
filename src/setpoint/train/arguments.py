"""Arguments of `train` in Python: a job in any form, and data and callbacks as objects."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from setpoint.config import (
    PROGRAM,
    Composition,
    Origin,
    SetpointError,
    can_be_path,
    chain_of,
    compose,
    for_error,
    is_record,
    read_record,
)
from setpoint.config.values.node import is_frozen
from setpoint.data.sources.config import PAIR, Conversations, SourceConfig, Text
from setpoint.data.sources.files import IN_MEMORY
from setpoint.hub.fetch import open_file_system
from setpoint.parallel.rank import launched, require_launch
from setpoint.resilience.signals import StopRequest
from setpoint.track.config import ENVIRONMENT
from setpoint.train.config import Job

if TYPE_CHECKING:
    from setpoint.train.loop import Callback

CONVERSATION_KEYS = (
    "messages",
    "conversations",
    "prompt",
    "instruction",
    "input_ids",
    "segments",
)
"""Keys by which a row is a conversation; see `setpoint.data.sources.conversations`."""
VALID_DATA = (
    "Valid: a list of str; rows with the key text, or of conversations, with the key messages, "
    "prompt and completion, or instruction and output; a datasets.Dataset or DataFrame of these"
)


class HasDirectory(Protocol):
    """A run, as returned by `train` and `load_run`."""

    @property
    def directory(self) -> Path:
        """The run directory."""
        ...


Source = Job | Composition[Job] | str | os.PathLike[str] | HasDirectory
Overrides = Sequence[str] | Mapping[str, object]


def job_of(
    source: Source,
    overrides: Overrides = (),
    data: Iterable[Any] | None = None,
    *,
    world_size: int | None = None,
    caller: str = "train",
) -> tuple[Job, Path | None]:
    """Resolve the argument of `train`, with its overrides and data; see `composed`.

    Returns:
        the resolved job, and the run directory if the source is a run.

    Raises:
        SetpointError: as for `composed`; `ConfigError` with all problems of the configuration.
    """
    is_complete = data is None and not (overrides or world_size)
    if is_complete and isinstance(source, Job) and is_frozen(source):
        return source, None
    merged, given = composed(source, overrides, data, world_size=world_size, caller=caller)
    require_launch()
    if launched() > 1 and not chain_of(merged.draft.parallel, "world_size"):
        origin = Origin(PROGRAM, "WORLD_SIZE")
        merged.draft.parallel.set_field("world_size", launched(), origin)
    return merged.resolve(), given


def composed(
    source: Source,
    overrides: Overrides = (),
    data: Iterable[Any] | None = None,
    *,
    world_size: int | None = None,
    caller: str = "train",
) -> tuple[Composition[Job], Path | None]:
    """Merge the argument of `train` with overrides and data.

    Arguments:
        overrides: words as on the command line, or values by dotted path.
        data: documents in memory, which replace `data.sources`.
        world_size: the number of ranks; None: as in the launcher or the job.
        caller: the name of the function for messages.

    Returns:
        the composition, and the run directory if the source is a run.

    Raises:
        SetpointError: the source is not a job or cannot be read, or the data is invalid.
    """
    given = None
    composition: Composition[Job]
    source = directory_of(source) or source
    if isinstance(source, Composition):
        composition = source
    elif isinstance(source, Job):
        composition = Composition(source, type(source).__name__, [], [])
    elif isinstance(source, str | os.PathLike):
        given, composition = _opened(os.fspath(source))
    else:
        raise _no_job(source, caller)
    if not isinstance(composition.draft, Job):
        raise _no_job(composition.draft, caller)
    words, values = words_and_values(overrides, caller)
    if world_size is not None:
        values["parallel.world_size"] = world_size
    merged = compose(Job, composition.draft)
    is_renamed = _renames_columns(words, values)
    paths = None if data is None else _set_data(merged.draft, data, is_renamed)
    if words or values:
        merged = compose(Job, merged.draft, flags=words, program=values)
    given_sources = merged.draft.data.sources
    if paths is not None and [getattr(section, "paths", None) for section in given_sources] != [
        paths
    ]:
        raise SetpointError(
            "train: data replaces data.sources, but overrides give other sources or "
            "paths.\nValid: one of the two; options of the source, such as data.sources.0.field."
        )
    merged.problems[:0] = composition.problems
    merged.sweep, merged.label = composition.sweep, composition.label
    return merged, given


def directory_of(source: object) -> Path | None:
    """The directory of a run returned by `train` or `load_run`; None for anything else."""
    directory = getattr(source, "directory", None)
    return directory if isinstance(directory, Path) else None


def words_and_values(overrides: Overrides, caller: str) -> tuple[list[str], dict[str, object]]:
    """Split overrides into command-line words, and values by dotted path.

    Raises:
        SetpointError: the overrides are neither words nor values.
    """
    words = () if isinstance(overrides, Mapping) else overrides
    values = dict(overrides) if isinstance(overrides, Mapping) else {}
    if (
        isinstance(words, str)
        or not isinstance(words, Sequence)
        or not all(isinstance(word, str) for word in [*words, *values])
    ):
        raise SetpointError(
            f"{caller}: overrides must be a list of str, as in ['parallel.device=cpu'], or a "
            f"mapping, as in {{'parallel.device': 'cpu'}}; got {as_text(overrides)}"
        )
    return list(words), values


def _opened(source: str) -> tuple[Path | None, Composition[Job]]:
    """Open a preset, a file, a run directory or `module:function`, as on the command line."""
    if can_be_path(source) and os.path.isdir(source) and is_record(source):
        draft, _ = read_record(Job, source)
        # The record of a point of a sweep, or of a checkpoint, is only a configuration.
        is_run = os.path.isfile(os.path.join(source, ENVIRONMENT))
        return Path(source) if is_run else None, Composition(draft, source, [], [])
    return None, compose(Job, source)


def as_text(value: object) -> str:
    """Describe an invalid argument, for a message."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    has_text = isinstance(value, os.PathLike) or type(value).__module__ == "builtins"
    return for_error(value) if has_text else f"a {type(value).__name__}"


def _no_job(value: object, caller: str) -> SetpointError:
    return SetpointError(
        f"{caller}: source = {as_text(value)}\nValid: a Job, a composition of one, the name of a "
        f"preset, a file or a run directory"
    )


def check_arguments(directory: object, until: object, stop: object, accept: object) -> None:
    """Check the types of the other arguments of `train`.

    Raises:
        SetpointError: names the argument and its valid values.
    """
    if directory is not None and not isinstance(directory, str | Path):
        raise SetpointError(f"train: directory must be a path or None; got {directory!r}")
    if until is not None and (type(until) is not int or until < 1):
        raise SetpointError(f"train: until must be a step, at least 1, or None; got {until!r}")
    if stop is not None and not isinstance(stop, StopRequest):
        raise SetpointError(f"train: stop must be a StopRequest or None; got {stop!r}")
    if not isinstance(accept, str) and (
        not isinstance(accept, Sequence) or not all(isinstance(path, str) for path in accept)
    ):
        raise SetpointError(f"train: accept must be a list of fields or sections; got {accept!r}")


def callbacks_of(callbacks: Iterable[Callback]) -> list[Callback]:
    """Check callbacks passed as objects.

    Raises:
        SetpointError: an object is not a callback.
    """
    from setpoint.train.loop import Callback  # imports torch

    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise SetpointError(
            f"train: callbacks must be a list of callbacks; got {as_text(callbacks)}"
        )
    checked = list(callbacks)
    for index, callback in enumerate(checked):
        if not isinstance(callback, Callback):
            raise SetpointError(
                f"train: callbacks[{index}] is {as_text(callback)}.\nValid: an instance of "
                f"setpoint.train.loop.Callback"
            )
    return checked


def named(callback: Callback) -> str:
    """Class name of a callback, for the record."""
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _renames_columns(words: Sequence[str], values: Mapping[str, object]) -> bool:
    """True if overrides name the columns of conversations."""
    source = values.get("data.sources.0")
    if isinstance(source, Mapping) and cast(Mapping[str, object], source).get("columns"):
        return True
    is_named = any("data.sources.0" in word and "columns" in word for word in words)
    return is_named or any(name.startswith("data.sources.0.columns") for name in values)


def _set_data(draft: Job, data: Iterable[Any], is_renamed: bool) -> tuple[str, ...]:
    """Replace the sources with in-memory data.

    Arguments:
        is_renamed: whether overrides name the columns of conversations.

    Returns:
        the paths of the source.
    """
    sources: Sequence[SourceConfig] = draft.data.sources
    if len(sources) == 1 and isinstance(sources[0], Conversations):
        is_renamed = is_renamed or sources[0].columns is not None
    built = memory_source(data, "train: data", is_renamed)
    source = sources[0] if len(sources) == 1 and type(sources[0]) is type(built) else built
    origin = Origin(PROGRAM, "train(data=...)")
    source.set_field("paths", built.paths, origin)
    draft.data.set_field("sources", (source,), origin)
    return built.paths


def memory_source(data: Iterable[Any], name: str, is_renamed: bool = False) -> Text | Conversations:
    """A source of in-memory documents, with a path that depends on their content.

    The rows are written as JSON Lines to fsspec's in-memory file system, where file sources read
    them like any others. The digest of the content is in the path, and thus in the fingerprint.

    Arguments:
        name: the function and its argument, for messages.
        is_renamed: whether rows are conversations in columns of other names.

    Raises:
        SetpointError: the data is invalid, or has rows of different kinds. A missing text is found
            by the reader of the rows, which knows the field.
    """
    cls: type[Text] | type[Conversations] | None = None
    lines: list[bytes] = []
    for index, row in enumerate(_rows(data, name)):
        place = f"{name}[{index}]"
        values = {"text": row} if isinstance(row, str) else row
        if isinstance(values, list | tuple):
            values = {"messages": values}
        if not isinstance(values, Mapping):
            raise SetpointError(f"{place} is {as_text(row)}.\n{VALID_DATA}")
        if {*PAIR} <= values.keys() and "text" in values:
            raise SetpointError(
                f"{place} has a text and a preference pair ({', '.join(PAIR)}), and only the text "
                f"would be trained on.\n{VALID_DATA}"
            )
        is_chat = any(values.get(key) is not None for key in CONVERSATION_KEYS) or (
            is_renamed and not isinstance(row, str)
        )
        kind = Conversations if is_chat else Text
        if cls is not None and kind is not cls:
            raise SetpointError(
                f"{place}: expected {_plural_of(cls)}, like the rows before it, got "
                f"{_plural_of(kind)}.\n{VALID_DATA}"
            )
        cls = kind
        lines.append(row_line(values, place, VALID_DATA))
    if cls is None:
        raise SetpointError(f"{name} has no rows.\n{VALID_DATA}")
    content = b"".join(lines)
    url = f"{IN_MEMORY}{hashlib.sha256(content).hexdigest()[:32]}/data.jsonl"
    system, path = open_file_system(url)
    if not system.exists(path):
        system.pipe_file(path, content)
    return cls(paths=(url,))


def _rows(data: Any, name: str) -> Iterator[Any]:
    """The rows of a list, an iterable, a `datasets.Dataset`, a DataFrame or a map-style dataset."""
    if isinstance(data, str | bytes | Mapping):
        form = f"keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else "one text"
        raise SetpointError(f"{name} is a {type(data).__name__} ({form}).\n{VALID_DATA}")
    if hasattr(data, "to_dict") and hasattr(data, "columns") and hasattr(data, "iloc"):
        return iter(data.to_dict("records"))
    if isinstance(data, Set):
        raise SetpointError(f"{name} is a {type(data).__name__}, without order.\n{VALID_DATA}")
    if isinstance(data, Iterable):
        return iter(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return (data[index] for index in range(len(data)))
    raise SetpointError(f"{name} is {as_text(data)}.\n{VALID_DATA}")


def _plural_of(cls: type[SourceConfig]) -> str:
    return "texts" if cls is Text else "conversations"


def row_line(row: Mapping[str, Any], place: str, valid: str) -> bytes:
    """A row as a line of JSON.

    Arguments:
        place: the argument with its index, for messages.
        valid: the last line of messages.

    Raises:
        SetpointError: JSON cannot hold the row.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        # numpy, pandas and torch have their own types of values, arrays and tensors.
        for method in ("tolist", "item"):
            if hasattr(value, method):
                return getattr(value, method)()
        raise TypeError(type(value).__name__)

    try:
        return json.dumps(row, default=plain, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        reason = f"{error.object[error.start]!r} is a surrogate, not a character"
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"it cannot be written as JSON: {error}"
    raise SetpointError(f"{place}: {reason}.\n{valid}")
