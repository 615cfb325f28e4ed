"""What every preset comes to, kept as files, so that no default changes unseen.

    python -m tests.goldens      (`make golden`) shows what has changed, and rewrites the files

`fields.txt` holds the default of every field of every class that a job can hold, so a new field
with a default is one new line there. `PRESET.txt` holds the fingerprint of a preset and the values
in which it differs from those defaults, derived ones included; `tiny+MODIFIER.txt` those of the
preset `tiny` with a modifier. Together they say every value of every preset.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config import Config
from setpoint.config.composition import compose
from setpoint.config.draft.walk import leaves, sections
from setpoint.config.layers.presets import modifiers, presets
from setpoint.config.record.record import fingerprint
from setpoint.config.schema.class_info import section_classes
from setpoint.config.schema.field import FieldInfo
from setpoint.config.values.node import value_or_missing
from setpoint.config.words.names import dotted
from setpoint.config.words.plain_data import MISSING, plain
from setpoint.train.config import Job

FOLDER = Path(__file__).parent / "golden"
FIELDS = "fields.txt"


def change_default(patch: Any, cls: type[Config], name: str, value: object) -> None:
    """Give a field of a class another default.

    Arguments:
        patch: the `monkeypatch` of pytest.
    """
    patch.setattr(cls.__setpoint__.fields[name], "written", value)


def goldens() -> dict[str, str]:
    """What the files have to hold, going by today's code.

    Returns:
        texts by file name.
    """
    found = {FIELDS: "".join(f"{line}\n" for line in _fields())}
    for name in _ours(presets):
        found[f"{name}.txt"] = resolved(name)
    for name in _ours(modifiers):
        found[f"tiny+{name}.txt"] = resolved("tiny", name)
    return found


def resolved(source: str, *with_modifiers: str) -> str:
    """The values of a configuration that its classes do not say, below its fingerprint.

    Arguments:
        source: a preset.
        with_modifiers: modifiers by name.

    Returns:
        lines in order of declaration.
    """
    config = compose(Job, source, modifiers=with_modifiers).resolve()
    return "\n".join([f"fingerprint {fingerprint(config)}", "", *differing(config)]) + "\n"


def differing(config: Config) -> Iterator[str]:
    """The values of a configuration that are not the defaults of the classes they stand in.

    Arguments:
        config: a resolved configuration.

    Yields:
        `path = value  # role`, and `path: Class` where another section, or another number of them,
        stands than the default of the field that holds it.
    """
    owners = dict(sections(config))
    for path, section in owners.items():
        for name, info in type(section).__setpoint__.fields.items():
            shape = _shape(value_or_missing(section, name))
            if shape is not None and shape != _shape(info.initial()):
                yield f"{dotted((*path, name))}: {_shown(shape)}"
    for leaf in leaves(config):
        owner = max((path for path in owners if path == leaf.path[: len(path)]), key=len)
        rest = leaf.path[len(owner) :]
        fields = type(owners[owner]).__setpoint__.fields
        if rest in {(), ("type",)} and "type" not in fields:
            continue  # the section itself, which its class names
        if len(rest) == 1 and _unset(fields[str(rest[0])]) == json.dumps(plain(leaf.value)):
            continue
        yield f"{leaf.key} = {json.dumps(plain(leaf.value))}  # {leaf.role.name}"


def drift(name: str, wanted: str) -> list[str]:
    """How today's code differs from a file.

    Arguments:
        name: the file.
        wanted: what today's code makes of it; the empty text if it should not be there.

    Returns:
        the lines that went (`-`) and came (`+`); empty if nothing has changed.
    """
    path = FOLDER / name
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = unified_diff(before.splitlines(), wanted.splitlines(), lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def all_drift() -> dict[str, list[str]]:
    """How today's code differs from the files.

    Returns:
        changed lines by file name; files of what is gone are named as well.
    """
    texts = goldens()
    gone = {path.name: "" for path in FOLDER.glob("*.txt") if path.name not in texts}
    found = {name: drift(name, text) for name, text in {**texts, **gone}.items()}
    return {name: lines for name, lines in found.items() if lines}


def rewrite() -> None:
    """Make the files what today's code says."""
    texts = goldens()
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _ours(table: Mapping[str, object]) -> list[str]:
    """The presets or modifiers that Setpoint brings and that need no parameters."""
    return sorted(
        name
        for name, function in table.items()
        if str(getattr(function, "__module__", "")).startswith("setpoint.")
        and all(
            each.default is not Parameter.empty or each.annotation in (Job, "Job")
            for each in signature(function).parameters.values()  # type: ignore[arg-type]
        )
    )


def classes() -> list[type[Config]]:
    """Every class of Setpoint's whose instances a job can hold, those of all variants included.

    Returns:
        the classes, in order of declaration, each once.
    """
    found: dict[type[Config], None] = {}
    waiting: list[type[Config]] = [Job]
    while waiting:
        cls = waiting.pop(0)
        if cls in found or not cls.__module__.startswith("setpoint."):
            continue
        found[cls] = None
        waiting += [
            inner
            for info in cls.__setpoint__.fields.values()
            for inner in section_classes(info.type)
        ]
    return list(found)


def _name(cls: type) -> str:
    """A class by its package, as in `optim.AdamW`."""
    package = cls.__module__.removeprefix("setpoint.").removesuffix(".config")
    return f"{package}.{cls.__name__}"


def _fields() -> Iterator[str]:
    for cls in classes():
        if cls.__setpoint__.tag is not None:
            yield f'{_name(cls)} is "{cls.__setpoint__.tag}"'
        for name, info in cls.__setpoint__.fields.items():
            role = info.role.name if info.role else cls.__setpoint__.role.name
            yield f"{_name(cls)}.{name} = {_unset(info)}  # {role}"


def _unset(info: FieldInfo) -> str:
    if info.derived:
        return "(derived)"
    value = info.initial()
    if value is MISSING:
        return "(required)"
    shape = _shape(value)
    if shape is None:
        return json.dumps(plain(info.type.dump(value)))
    # What the default sets in the sections that it holds; the rest is what their classes say.
    lines = [line for each in _held(value) for line in differing(each)]
    return "; ".join([_shown(shape), *(line.partition("  # ")[0] for line in lines)])


def _held(value: object) -> list[Config]:
    if isinstance(value, Config):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return list(items)  # type: ignore[arg-type]


def _shape(value: object) -> object:
    """The classes of the sections in the value of a field; None if it holds none."""
    if isinstance(value, Config):
        return _name(type(value))
    if isinstance(value, dict):
        shapes = {key: _shape(item) for key, item in value.items()}
        return shapes if any(shapes.values()) else None
    if isinstance(value, list | tuple):
        shapes = [_shape(item) for item in value]
        return shapes if any(shapes) else None
    return None


def _shown(shape: object) -> str:
    return json.dumps(shape).replace('"', "")


def main() -> int:
    """Show the drift and rewrite the files.

    Returns:
        the exit status.
    """
    for name in [name for name in os.environ if name.startswith("SETPOINT__")]:
        del os.environ[name]
    changes = all_drift()
    for name, lines in changes.items():
        print(f"tests/golden/{name}")
        print("\n".join(f"  {line}" for line in lines))
    rewrite()
    count = len(changes)
    print(f"{count} golden file{'s' * (count != 1)} rewritten" if count else "nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
