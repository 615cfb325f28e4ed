"""The common tree of 12 sections, 250 leaves and three unions, as the classes of each side.

All trees are written from one table, so that none can drift from the others.
"""

from __future__ import annotations

from typing import Any

SECTIONS = 12
LEAVES = 250
WITH_UNION = (1, 5, 9)
"""The sections that hold a union; with its tag and two values each adds three leaves."""

# Twenty fields: name, type, default, range, help.
FIELDS = (
    ("width", "int", "64", "ge=1", "Units in one layer."),
    ("depth", "int", "4", "ge=1, le=1000", "Layers, one after the other."),
    ("heads", "int", "8", "ge=1", "Groups that the units are split into."),
    ("count", "int", "0", "ge=0", "Items to look at; 0 for none."),
    ("offset", "int", "0", "", "Where to begin, counted from the start."),
    ("rate", "float", "0.1", "gt=0, lt=1", "Share of what is kept."),
    ("decay", "float", "0.01", "ge=0", "How fast old values lose their weight."),
    ("scale", "float", "1.0", "gt=0", "Factor on the result."),
    ("epsilon", "float", "1e-8", "gt=0", "Added below a fraction line."),
    ("active", "bool", "True", "", "Whether the section does anything."),
    ("verbose", "bool", "False", "", "Whether it says what it does."),
    ("title", "str", "'section'", "", "Name for people."),
    ("prefix", "str", "''", "", "Put before each name."),
    ("kind", 'Literal["first", "second", "third"]', "'first'", "", "Which method is used."),
    ("mode", 'Literal["fast", "exact"]', "'fast'", "", "What to favour."),
    ("limit", "float | None", "None", "", "Upper limit; null for none."),
    ("seed", "int | None", "None", "", "Start of the random numbers; null draws one."),
    ("betas", "tuple[float, float]", "(0.9, 0.95)", "item_ge=0, item_lt=1", "Two averages."),
    ("sizes", "tuple[int, ...]", "(1, 2, 4)", "item_ge=1", "Sizes, smallest first."),
    ("names", "tuple[str, ...]", "()", "", "Names of what is included."),
)
SIZE, STEP = ("size", "int", "4", "ge=1", "Items."), ("step", "int", "1", "ge=1", "Stride.")
VARIANTS = {
    "plain": (SIZE, STEP),
    "scaled": (SIZE, ("factor", "float", "1.0", "gt=0", "Factor on each item.")),
    "random": (SIZE, ("spread", "float", "0.5", "ge=0, le=1", "Share of the range.")),
}

# What the file sets in each section: five values, sixty in all; and in one a variant of its union.
FILE = {"width": 128, "rate": 0.25, "active": False, "kind": "second", "sizes": [3, 5]}
ITEM = {"type": "scaled", "size": 16, "factor": 1.5}
FLAGS = {
    "s0.width": 256, "s1.depth": 6, "s2.rate": 0.5, "s3.title": "other", "s4.mode": "exact",
    "s1.item.size": 12, "s6.limit": 2.5, "s7.count": 7, "s8.scale": 3.0, "name": "trial",
}  # fmt: skip
FORK = {"s0.width": 512, "s4.rate": 0.75, "s8.title": "fork"}
MISTAKES = {"key": ("s2.widht", 8), "type": ("s3.depth", "wide"), "range": ("s4.rate", 7.0)}

HEADS = {
    "setpoint": "from setpoint.config import Config, field\n",
    "pydantic": "from pydantic import BaseModel, ConfigDict, Field\n",
    "msgspec": "from msgspec import Meta, Struct, field\n",
    "chz": """\
import chz
from chz import validators

def each(*checks):
    def run(self, name):
        for number, item in enumerate(getattr(self, name)):
            for check in checks:
                check(type("", (), {name: item})(), name)
    return run
""",
    "omegaconf": "from dataclasses import dataclass, field\nfrom omegaconf import MISSING\n",
}


def module(side: str, sections: int = SECTIONS) -> str:
    """The source of a module with the class `Tree`."""
    text = "from typing import Annotated, Any, Literal\n" + HEADS[side]
    fields = [_field(side, "name", "str", "'run'", "", "What it is called.")]
    for number in range(sections):
        own = [_field(side, *entry) for entry in FIELDS]
        if number in WITH_UNION:
            if side in ("setpoint", "chz"):
                text += _class(side, f"Item{number}", ["pass"], "What is worked on.")
            for tag, entries in VARIANTS.items():
                inside = [_field(side, *entry) for entry in entries]
                text += _class(side, f"{tag.capitalize()}{number}", inside, tag, tag, number)
            own.append(_union(side, number))
        text += _class(side, f"Section{number}", own, f"Section {number}.")
        fields.append(_section(side, f"s{number}", f"Section{number}"))
    return text + _class(side, "Tree", fields, "All sections.")


def _class(
    side: str, name: str, fields: list[str], help: str, tag: str = "", number: int = 0
) -> str:
    tags = {
        "pydantic": [f"type: Literal[{tag!r}] = {tag!r}"],
        "omegaconf": [f"type: str = {tag!r}"],
    }
    options = f"Struct, forbid_unknown_fields=True, frozen=True, kw_only=True{{}}, tag={tag!r}"
    base = {
        "setpoint": f"Item{number}, type={tag!r}" if tag else "Config",
        "pydantic": "BaseModel",
        "msgspec": options.format(", tag_field='type'") if tag else options.partition("{")[0],
        "chz": f"Item{number}" if tag else "",
        "omegaconf": "",
    }[side]
    above = {"chz": "@chz.chz(typecheck=True)\n", "omegaconf": "@dataclass(kw_only=True)\n"}
    first = ['model_config = ConfigDict(extra="forbid", frozen=True)'] if side == "pydantic" else []
    body = "".join(
        f"    {line}\n" for line in [*first, *(tags.get(side, []) if tag else []), *fields]
    )
    return f'\n{above.get(side, "")}class {name}({base}):\n    """{help}"""\n{body}'


def _field(side: str, name: str, kind: str, default: str, limits: str, help: str) -> str:
    inner = limits.replace("item_", "")
    if side == "setpoint":
        value = f"field(default={default}, {limits})" if limits else default
        return f'{name}: {kind} = {value}\n    """{help}"""'
    if side == "chz":
        checks = ", ".join(f"validators.{limit.replace('=', '(')})" for limit in inner.split(", "))
        checks = f"each({checks})" if "item_" in limits else checks
        more = f", validator=[{checks}]" if limits else ""
        return f"{name}: {kind} = chz.field(default={default}, doc={help!r}{more})"
    if side == "omegaconf":  # it has no ranges and no Literal
        return (
            f'{name}: {"str" if kind.startswith("Literal") else kind} = {default}\n    """{help}"""'
        )
    mark = "Field" if side == "pydantic" else "Meta"
    if "item_" in limits:
        for item in ("int", "float"):
            kind = kind.replace(item, f"Annotated[{item}, {mark}({inner})]")
    elif limits:
        kind = f"Annotated[{kind}, {mark}({limits})]"
    if side == "pydantic":
        return f"{name}: {kind} = Field(default={default}, description={help!r})"
    return f'{name}: {kind} = {default}\n    """{help}"""'


def _section(side: str, name: str, cls: str, annotation: str = "") -> str:
    value = {
        "pydantic": f"Field(default={cls}())",
        "msgspec": f"field(default_factory={cls})",
        "chz": f"chz.field(default_factory={cls})",
    }.get(side, f"field({'factory' if side == 'setpoint' else 'default_factory'}={cls})")
    return f"{name}: {annotation or cls} = {value}"


def _union(side: str, number: int) -> str:
    if side == "omegaconf":  # a config group fills the field
        return "item: Any = MISSING"
    names = " | ".join(f"{tag.capitalize()}{number}" for tag in VARIANTS)
    kind = {"msgspec": names, "pydantic": f"Annotated[{names}, Field(discriminator='type')]"}
    return _section(side, "item", f"Plain{number}", kind.get(side, f"Item{number}"))


def file_values() -> dict[str, Any]:
    """The sixty values of the file. Three of them stand in a union, to choose a variant."""
    values: dict[str, Any] = {f"s{number}": dict(FILE) for number in range(SECTIONS)}
    values["s1"] = {"width": 128, "rate": 0.25, "item": dict(ITEM)}
    return values


def merged() -> dict[str, Any]:
    """File and flags merged, as peers that validate plain data take them."""
    data = file_values()
    for path, value in FLAGS.items():
        put(data, path, value)
    return data


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path."""
    *above, last = path.split(".")
    for part in above:
        data = data.setdefault(part, {})
    data[last] = value


def expected() -> dict[str, Any]:
    """The whole tree as every side must have read it, computed without any of them."""
    tree = default_values()
    _lay_over(tree, merged())
    return tree


def default_values() -> dict[str, Any]:
    """The whole tree at its defaults, with lists for tuples."""
    tree: dict[str, Any] = {"name": "run"}
    for number in range(SECTIONS):
        tree[f"s{number}"] = _defaults(FIELDS)
        if number in WITH_UNION:
            tree[f"s{number}"]["item"] = variant("plain")
    return tree


def variant(tag: str) -> dict[str, Any]:
    """One variant at its defaults."""
    return {"type": tag, **_defaults(VARIANTS[tag])}


def _defaults(entries: tuple[tuple[str, str, str, str, str], ...]) -> dict[str, Any]:
    values = {name: eval(default) for name, _, default, _, _ in entries}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _lay_over(tree: dict[str, Any], data: dict[str, Any]) -> None:
    for key, value in data.items():
        if key == "item" and value.get("type", tree[key]["type"]) != tree[key]["type"]:
            tree[key] = variant(value["type"])
        if isinstance(value, dict):
            _lay_over(tree[key], value)
        else:
            tree[key] = value


def count_leaves(tree: Any) -> int:
    """The number of values; a list is one."""
    return sum(map(count_leaves, tree.values())) if isinstance(tree, dict) else 1
