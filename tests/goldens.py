"""Resolved configurations of all presets, kept as files, so that no default changes unseen.

    python -m tests.goldens      (`make golden`) shows what has changed, and rewrites the files

`PRESET.txt` holds every value of a preset with its fingerprint, `tiny+MODIFIER.txt` those of the
preset `tiny` with a modifier, and `fields.txt` what every field of a job is unless it is set, in
every variant, chosen by a preset or not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from difflib import unified_diff
from inspect import Parameter, signature
from pathlib import Path

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.compose import compose
from setpoint.config.data import json_value
from setpoint.config.field import MISSING, FieldInfo
from setpoint.config.fingerprint import fingerprint
from setpoint.config.registry import modifiers, presets
from setpoint.config.suggest import schema
from setpoint.config.walk import leaves
from setpoint.train.config import Job

FOLDER = Path(__file__).parent / "golden"
FIELDS = "fields.txt"


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
    """Every value of a configuration, one in a line, below its fingerprint.

    Arguments:
        source: a preset.
        with_modifiers: modifiers by name.

    Returns:
        lines in order of declaration.
    """
    config = compose(Job, source, modifiers=with_modifiers).resolve()
    lines = [f"fingerprint {fingerprint(config)}", ""]
    lines += [
        f"{leaf.key} = {json.dumps(json_value(leaf.value))}  # {leaf.role.name}"
        for leaf in leaves(config)
    ]
    return "\n".join(lines) + "\n"


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


def _ours(table: dict[str, object]) -> list[str]:
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


def _fields() -> Iterator[str]:
    seen: set[str] = set()
    for path, info in schema(Job):
        line = f"{path} = {_unset(info)}  # {info.role.name if info.role else 'identity'}"
        # A field that several variants share is one line for each value that it can have.
        if line not in seen:
            seen.add(line)
            yield line


def _unset(info: FieldInfo) -> str:
    if info.derived:
        return "(derived)"
    value = info.initial()
    if value is MISSING:
        return "(required)"
    return json.dumps(json_value(info.type.dump(value)))


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
