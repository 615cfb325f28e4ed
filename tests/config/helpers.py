"""One value given through each kind of layer, so that all of them can be compared."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from setpoint.config import Config, ConfigError, Problem
from setpoint.config.composition import compose
from setpoint.config.record.record import record_files

from .sample import Job

LAYERS = ("toml", "yaml", "json", "flag", "environment", "program")


def nested(path: str, value: object) -> dict[str, object]:
    """`{"a": {"b": value}}` for the path `a.b`."""
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def text_of(value: object) -> str:
    """A value as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def resolve_through(
    layer: str, values: Mapping[str, object], folder: Path, root: type[Config] = Job
) -> Config:
    """Resolve the values, by dotted path, as one layer over the defaults."""
    if layer == "flag":
        flags = [f"--{path}={text_of(value)}" for path, value in values.items()]
        return compose(root, flags=flags).resolve()
    if layer == "environment":
        names = {f"SETPOINT__{path.upper().replace('.', '__')}": path for path in values}
        environ = {name: text_of(values[path]) for name, path in names.items()}
        return compose(root, environ=environ).resolve()
    if layer == "program":
        return compose(root, program=values).resolve()
    file = folder / f"exp.{layer}"
    lines = [f"{path} = {toml(value)}" for path, value in values.items()]
    if layer == "toml":
        file.write_text("\n".join(lines) + "\n")
    else:
        # JSON is YAML as well.
        merged: dict[str, object] = {}
        for path, value in values.items():
            _merge(merged, nested(path, value))
        file.write_text(json.dumps(merged))
    return compose(root, str(file)).resolve()


def toml(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps("null" if value is None else value)


def _merge(into: dict[str, object], values: Mapping[str, object]) -> None:
    for key, value in values.items():
        inner = into.setdefault(key, value)
        if inner is not value and isinstance(inner, dict) and isinstance(value, dict):
            _merge(inner, value)


def write_record(config: Config, folder: Path) -> Path:
    """Write the record of a config into a folder, which is made."""
    folder.mkdir(exist_ok=True)
    for name, text in record_files(config).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def problems_of(action: Callable[[], object]) -> tuple[Problem, ...]:
    """The problems that a call reports."""
    with pytest.raises(ConfigError) as caught:
        action()
    return caught.value.problems


def flag_problems(*flags: str) -> dict[str, Problem]:
    """The problems of flags over the defaults, by path."""
    problems = problems_of(lambda: compose(Job, flags=flags).resolve())
    assert len({problem.path for problem in problems}) == len(problems)
    return {problem.path: problem for problem in problems}


def resolved(*flags: str) -> Job:
    """The sample job with flags."""
    return compose(Job, flags=flags).resolve()


def placeless(text: str) -> str:
    """A report without the folders and lines of this repository, which change."""
    return re.sub(r"[^\s(]*?(\w+\.py):\d+", r"\1:LINE", text)
