"""The common tree: 12 sections, 250 leaves, three unions; and groups of it for larger trees.

It is written once, as a module of config classes of Setpoint. `peers.schema` turns those into
neutral words, and the peers' trees are written from these words, so that none can drift.
"""

from __future__ import annotations

from typing import Any

SECTIONS = 12
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
VARIANTS = (
    ("plain", (("size", "int", "4", "ge=1", "Items."), ("step", "int", "1", "ge=1", "Stride."))),
    (
        "scaled",
        (
            ("size", "int", "8", "ge=1", "Items."),
            ("factor", "float", "1.0", "gt=0", "Factor on each item."),
        ),
    ),
    (
        "random",
        (
            ("size", "int", "2", "ge=1", "Items."),
            ("spread", "float", "0.5", "ge=0, le=1", "Share of the range that is used."),
        ),
    ),
)
HEAD = "from typing import Literal\n\nfrom setpoint.config import Config, field\n"
LEAVES = 250


def setpoint_module(groups: int) -> str:
    """The tree as config classes.

    Arguments:
        groups: 1 for the tree itself; more put as many trees side by side under one root, each
            with classes of its own.

    Returns:
        the source of a module with the class `Tree`.
    """
    parts = [HEAD]
    names: list[tuple[str, str, str]] = []
    for group in range(groups):
        name = "Tree" if groups == 1 else f"Group{group}"
        parts.append(_tree(name, "" if groups == 1 else f"G{group}"))
        names.append((f"g{group}", name, f"Group {group}."))
    if groups > 1:
        parts.append(_class("Tree(Config)", "The whole tree.", [_section(*each) for each in names]))
    return "".join(parts)


def _tree(name: str, prefix: str) -> str:
    text = ""
    fields = [_field("name", "str", "'run'", "", "What it is called.")]
    for number in range(SECTIONS):
        own = [_field(*entry) for entry in FIELDS]
        if number in WITH_UNION:
            family = f"{prefix}Item{number}"
            text += _class(f"{family}(Config)", "What is worked on.", ["pass"])
            for tag, entries in VARIANTS:
                title = f"{prefix}{tag.capitalize()}{number}({family}, type={tag!r})"
                text += _class(title, f"Items that are {tag}.", [_field(*e) for e in entries])
            first = f"{prefix}{VARIANTS[0][0].capitalize()}{number}"
            own.append(_section("item", family, "What is worked on.", first))
        text += _class(f"{prefix}Section{number}(Config)", f"Section {number}.", own)
        fields.append(_section(f"s{number}", f"{prefix}Section{number}", f"Section {number}."))
    return text + _class(f"{name}(Config)", "Twelve sections.", fields)


def _class(title: str, help: str, fields: list[str]) -> str:
    body = "\n".join(f"    {line}" for field in fields for line in field.split("\n"))
    return f'\n\nclass {title}:\n    """{help}"""\n\n{body}\n'


def _field(name: str, kind: str, default: str, limits: str, help: str) -> str:
    value = f"field(default={default}, {limits})" if limits else default
    return f'{name}: {kind} = {value}\n"""{help}"""'


def _section(name: str, kind: str, help: str, factory: str = "") -> str:
    return f'{name}: {kind} = field(factory={factory or kind})\n"""{help}"""'


# What the file sets in each section: five values, sixty in all; and in one a variant of its union.
FILE = {"width": 128, "rate": 0.25, "active": False, "kind": "second", "sizes": [3, 5]}
ITEM = {"type": "scaled", "size": 16, "factor": 1.5}
FLAGS = (
    ("s0.width", 256),
    ("s1.depth", 6),
    ("s2.rate", 0.5),
    ("s3.title", "other"),
    ("s4.mode", "exact"),
    ("s1.item.size", 12),
    ("s6.limit", 2.5),
    ("s7.count", 7),
    ("s8.scale", 3.0),
    ("name", "trial"),
)
FORK = (("s0.width", 512), ("s4.rate", 0.75), ("s8.title", "fork"))
"""The three fields that a fork sets."""

MISTAKES = {
    "a misspelt key": ("s2.widht", 8),
    "a wrong type": ("s3.depth", "wide"),
    "out of range": ("s4.rate", 7.0),
}


def file_values(groups: int) -> dict[str, Any]:
    """What the file holds: sixty values, whatever the size of the tree.

    Arguments:
        groups: as for `setpoint_module`; the values lie in the first group.

    Returns:
        nested plain data.
    """
    sections: dict[str, Any] = {f"s{number}": dict(FILE) for number in range(SECTIONS)}
    # Three of the sixty stand in a union, so that a file chooses a variant as well.
    sections["s1"] = {"width": 128, "rate": 0.25, "item": dict(ITEM)}
    return sections if groups == 1 else {"g0": sections}


def flag_values(groups: int) -> list[tuple[str, Any]]:
    """What the ten flags set.

    Arguments:
        groups: as for `setpoint_module`.

    Returns:
        pairs of dotted path and value.
    """
    return [(prefixed(path, groups), value) for path, value in FLAGS]


def prefixed(path: str, groups: int) -> str:
    """A path of the tree, in the first group of a larger one.

    Arguments:
        path: a dotted path.
        groups: as for `setpoint_module`.

    Returns:
        the path in a tree of that size.
    """
    return path if groups == 1 else f"g0.{path}"


def merged(groups: int) -> dict[str, Any]:
    """File and flags merged, as peers that validate plain data take them.

    Arguments:
        groups: as for `setpoint_module`.

    Returns:
        nested plain data of 70 values.
    """
    data = file_values(groups)
    for path, value in flag_values(groups):
        put(data, path, value)
    return data


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set one value in nested data.

    Arguments:
        data: changed in place.
        path: dotted; tables on the way are made.
        value: the value.
    """
    *above, last = path.split(".")
    for part in above:
        data = data.setdefault(part, {})
    data[last] = value


def expected(groups: int) -> dict[str, Any]:
    """The whole tree as every side must have read it, worked out without any of them.

    Arguments:
        groups: as for `setpoint_module`.

    Returns:
        nested plain data, complete, with lists for tuples.
    """
    tree = default_values(groups)
    _lay_over(tree, merged(groups))
    return tree


def default_values(groups: int) -> dict[str, Any]:
    """The whole tree at its defaults.

    Arguments:
        groups: as for `setpoint_module`.

    Returns:
        nested plain data, complete, with lists for tuples.
    """
    if groups == 1:
        return _default_tree()
    return {f"g{number}": _default_tree() for number in range(groups)}


def union_path(group: int, number: int, groups: int) -> str:
    """Where a union stands.

    Arguments:
        group, number: of the group and of the section.
        groups: as for `setpoint_module`.

    Returns:
        a dotted path.
    """
    return f"s{number}.item" if groups == 1 else f"g{group}.s{number}.item"


def variant_name(tag: str, group: int, number: int, groups: int) -> str:
    """The class of a variant.

    Arguments:
        tag: its tag.
        group, number: of the group and of the section.
        groups: as for `setpoint_module`.

    Returns:
        the name, the same for all sides.
    """
    return f"{'' if groups == 1 else f'G{group}'}{tag.capitalize()}{number}"


def _default_tree() -> dict[str, Any]:
    tree: dict[str, Any] = {"name": "run"}
    for number in range(SECTIONS):
        tree[f"s{number}"] = _defaults(FIELDS)
        if number in WITH_UNION:
            tree[f"s{number}"]["item"] = variant("plain")
    return tree


def variant(wanted: str) -> dict[str, Any]:
    """One variant at its defaults.

    Arguments:
        wanted: its tag.

    Returns:
        plain data.
    """
    return {"type": wanted, **_defaults(dict(VARIANTS)[wanted])}


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
    """How many values a tree holds; a list is one.

    Arguments:
        tree: nested plain data.

    Returns:
        the number; a tag counts as one.
    """
    return sum(map(count_leaves, tree.values())) if isinstance(tree, dict) else 1
