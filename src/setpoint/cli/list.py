"""`setpoint list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from setpoint.cli.command import JSON, Arguments, Command
from setpoint.cli.misspelt import refuse_misspelt_options
from setpoint.cli.style import bold, dim, table, wrapped
from setpoint.cli.value import plain
from setpoint.config import SetpointError
from setpoint.config.docs import class_help, field_help
from setpoint.config.field import FieldInfo
from setpoint.config.registry import modifiers, presets, summary
from setpoint.config.suggest import nearest, schema, section_classes
from setpoint.config.types.scalars import plain_text
from setpoint.train.config import Job

KINDS = ("presets", "modifiers", "variants", "fields")
COMMAND = Command(
    "list",
    "[presets | modifiers | variants | fields [SECTION]]",
    "Print what there is to choose from: presets and modifiers with what they are for, the\n"
    "variants of each section that has several, and every field with its type, default, range,\n"
    "role and meaning. Without an argument: everything but the fields.",
    [JSON],
    [
        ("setpoint list", "presets, modifiers and variants"),
        ("setpoint list fields optimizer", "the fields of one section, of all its variants"),
    ],
    positional=(0, 2),
)


def run(arguments: Arguments) -> int:
    """Print the asked-for lists.

    Arguments:
        arguments: of the call.

    Returns:
        the exit status.
    """
    import setpoint.presets  # noqa: F401 - registers the presets and modifiers by name

    refuse_misspelt_options(arguments, ())
    words = [*arguments.positional, *arguments.overrides]
    kind = words[0] if words else None
    if kind is not None and kind not in KINDS:
        close = nearest(kind, KINDS)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise SetpointError(f"cannot list {kind!r}.{meant} One of: {', '.join(KINDS)}")
    if len(words) > (2 if kind == "fields" else 1):
        raise SetpointError(f"unexpected argument {words[-1]!r}")
    section = words[1] if len(words) > 1 else ""
    wanted = [kind] if kind else list(KINDS[:3])
    found = {name: list(_rows(name, section)) for name in wanted}
    if kind == "fields" and not found["fields"]:
        raise SetpointError(f"there is no section or field {section!r}. {_meant(section)}")
    if arguments.has("--json"):
        import json

        print(json.dumps(found, indent=2))
        return 0
    for index, (name, rows) in enumerate(found.items()):
        if kind is None:
            print(("\n" if index else "") + bold(name.capitalize()))
        print(_fields(rows) if name == "fields" else table([list(row.values()) for row in rows]))
    return 0


def _meant(section: str) -> str:
    from setpoint.config.suggest import place_of

    sections = [name for name, info in Job.__setpoint__.fields.items() if info.type.nested]
    hint = place_of(Job, section.rpartition(".")[2], section)
    return f"{hint} Sections: {', '.join(sections)}".strip()


def _rows(kind: str, section: str) -> Iterator[dict[str, Any]]:
    if kind in ("presets", "modifiers"):
        for name, function in sorted((presets if kind == "presets" else modifiers).items()):
            yield {"name": name, "help": summary(function)}
    elif kind == "variants":
        for path, info in schema(Job):
            classes = section_classes(info.type) if info.type.nested else []
            for cls in classes:
                tag = cls.__setpoint__.tag
                if tag is not None:
                    yield {"field": path, "type": tag, "help": class_help(cls)}
    else:
        wanted = section.replace("-", "_")
        for path, info in schema(Job):
            if not wanted or path == wanted or path.startswith(f"{wanted}."):
                yield _field(path, info)


def _field(path: str, info: FieldInfo) -> dict[str, Any]:
    row: dict[str, Any] = {"path": path, "type": info.type.describe()}
    owner = info.owner.__setpoint__
    if owner.tag is not None:
        row["variant"] = owner.tag
    if info.derived:
        row["derived"] = True
    elif info.required:
        row["required"] = True
    elif not info.type.nested:
        row["default"] = plain(info.type.dump(info.initial()))
    for bounds in (info.bounds, info.item_bounds):
        if bounds:
            row["range"] = bounds.describe() + (" each" if bounds is info.item_bounds else "")
    row["role"] = info.role.name if info.role else "identity"
    row["help"] = field_help(info.owner, info.name)
    return row


def _default(value: object) -> str:
    return ", ".join(map(plain_text, value)) if isinstance(value, list) else plain_text(value)


def _fields(rows: list[dict[str, Any]]) -> str:
    blocks: list[str] = []
    for row in rows:
        title = bold(row["path"]) + (f"  ({row['variant']})" if "variant" in row else "")
        facts = [row["type"], *(word for word in ("required", "derived") if word in row)]
        if "range" in row:
            facts.append(row["range"])
        if "default" in row:
            facts.append(f"default {_default(row['default'])}")
        facts.append(row["role"])
        blocks.append(f"{title}\n    {'; '.join(facts)}\n{dim(wrapped(row['help'], '    '))}")
    return "\n".join(blocks)
