"""One function for each kind of input; each takes any bytes, and raises only where we are wrong."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import pkgutil
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import setpoint.config
import setpoint.presets
from setpoint.cli.response_files import expand_response_files, split
from setpoint.config.composition import compose
from setpoint.config.files.file_document import FileDocument, FileError
from setpoint.config.files.read import decode, parse, parse_bytes
from setpoint.config.layers.presets import call_modifier, load_plugins
from setpoint.config.migrations import migrated
from setpoint.config.record.record import fingerprint, minimal_toml, read_record, record_files
from setpoint.config.values.reference import Reference
from setpoint.config.words.errors import SetpointError
from setpoint.config.words.text import parse_flow, parse_list
from setpoint.sweep.points import read_command_line
from setpoint.train.config import Job as TrainingJob

from ...config.history import Job as Old
from ...config.sample import Job
from .guard import guarded
from .oracles import agree, may_refuse

if TYPE_CHECKING:
    from setpoint.config.files.file_document import Format

CORPUS = Path(__file__).resolve().parent / "corpus"
SMALL = 4000  # characters; the oracles are slower than what they judge


def _text(data: bytes) -> str:
    """As the command line and the environment have it: bytes that are not text are kept."""
    return data.decode("utf-8", "surrogateescape").replace("\0", "")


def _words(error: SetpointError) -> None:
    text = str(error)
    assert text.strip(), "an error without words"
    assert text.isprintable() or all(sign.isprintable() or sign == "\n" for sign in text), text


def _locate_all(document: FileDocument, value: object, path: tuple[str | int, ...]) -> None:
    children = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[call-overload]
    lines = document.text.split("\n")
    for key, child in children:
        place = document.locate((*path, key))
        assert place is not None
        line, column = place
        assert 1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]) + 1
        if isinstance(key, str) and document.format != "yaml" and "\\" not in document.text:
            assert key in document.text.split("\n", line - 1)[-1][column - 1 :]
        if isinstance(child, dict | list):
            _locate_all(document, child, (*path, key))


def _file(data: bytes, format: Format) -> None:
    try:
        document = parse_bytes(data, format, "f")
    except FileError as error:
        assert str(error).startswith("f") and "\n" not in str(error)
        _words(error)
        if len(data) < SMALL:
            try:
                may_refuse(decode(data, format, "f"), format, error)
            except FileError:
                return  # it was not text
        return
    if len(data) < SMALL:
        agree(document)
        _locate_all(document, document.data, ())


def toml(data: bytes) -> None:
    """A TOML file."""
    _file(data, "toml")


def yaml(data: bytes) -> None:
    """A YAML file."""
    _file(data, "yaml")


def json(data: bytes) -> None:
    """A JSON file."""
    _file(data, "json")


def config(data: bytes) -> None:
    """A TOML file as a layer: resolved, recorded, read again, and the same."""
    try:
        document = parse_bytes(data, "toml", "f")
    except FileError:
        return
    document.data.pop("extends", None)  # which names other files
    job = compose(Job, files=[document]).resolve()
    again = compose(Job, files=[parse(minimal_toml(job), "toml", "g")]).resolve()
    assert fingerprint(job) == fingerprint(again)


def flags(data: bytes) -> None:
    """Overrides, one a line."""
    compose(Job, flags=_text(data).split("\n")).resolve()


def environment(data: bytes) -> None:
    """Environment variables, one a line, written without their prefix."""
    pairs = (line.partition("=") for line in _text(data).split("\n"))
    environ = {f"SETPOINT_{name}": value for name, equals, value in pairs if equals}
    compose(Job, environ=environ).resolve()


def flow(data: bytes) -> None:
    """A list or mapping in one text."""
    for read in (parse_flow, parse_list):
        try:
            read(_text(data))
        except SetpointError as error:
            _words(error)


def reference(data: bytes) -> None:
    """A reference, over fields that are all 3, and one that is as large as a field can be."""
    text = _text(data)
    Reference(text if "${" in text else "${" + text + "}").evaluate(
        lambda path: 2**14000 if path == ("big",) else 3
    )


def modifier(data: bytes) -> None:
    """A modifier with its parameters; what is named as module:function is meant to be imported."""
    text = _text(data)
    if ":" not in text.partition("(")[0]:
        call_modifier(text, TrainingJob())


def response(data: bytes) -> None:
    """A response file; those that it names are looked for in an empty folder."""
    words = split(_text(data), "f")
    lines = _text(data).count("\n") + 1
    assert all(1 <= int(word.place.rpartition(":")[2]) <= lines for word in words)
    expand_response_files([word for word in words if not word.startswith("@")])


def sweep(data: bytes) -> None:
    """Overrides of `setpoint sweep`, one a line, where a comma separates points."""
    read_command_line(Job, "tiny", [], _text(data).split("\n"))


def migration(data: bytes) -> None:
    """A file of an old schema, taken to today's."""
    try:
        document = parse_bytes(data, "toml", "f")
    except FileError:
        return
    document, _ = migrated(Old, document)
    document.data.pop("extends", None)
    compose(Old, files=[document]).resolve()


def record(data: bytes) -> None:
    """A record: `config.json`, then a form feed, then `origins.json`; what is empty stays right."""
    first, _, second = data.partition(b"\f")
    for name, text in zip(("config.json", "origins.json"), (first, second), strict=True):
        (_FOLDER / name).write_bytes(text or _RIGHT[name].encode())
    draft, _ = read_record(Job, str(_FOLDER))
    compose(Job, draft).resolve()


_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_RIGHT = record_files(compose(Job, flags=["--seed=7", "--user.a=1"]).resolve())
TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        *(toml, yaml, json, config, flags, environment, flow, reference, modifier, response),
        *(sweep, migration, record),
    )
}


@functools.cache
def _warm_up(name: str) -> None:
    """Let the seeds import what is imported when it is first used, and look for plugins once."""
    load_plugins()
    for module in pkgutil.walk_packages(setpoint.config.__path__, "setpoint.config."):
        importlib.import_module(module.name)
    for seed in sorted((CORPUS / name).glob("seed-*")):
        with contextlib.suppress(SetpointError):
            TARGETS[name](seed.read_bytes())


def run(name: str, data: bytes) -> None:
    """Give an input to a target.

    Arguments:
        name: one of `TARGETS`.
        data: the input.

    Raises:
        BaseException: anything but an error in words: a traceback, a hang, a breach.
    """
    _warm_up(name)
    try:
        with guarded(str(_FOLDER) if name == "record" else None):
            TARGETS[name](data)
    except SetpointError as error:
        _words(error)
