"""Answers to the configuration keys of four training systems, and what keeps them true.

The dialects of these systems say which field a key becomes by itself, and why there is no such
thing. `answers.toml` has a line for each key, in a table for each capability, with what they do not
say, one of

    fields = ["model.dim", "checkpoint.mode=async", "inference:batch.micro_size"]
    values = { silu = "model.activation=swiglu", npu = "no: REASON" }
    commands = ["setpoint export --dtype"]
    fixed = "the value of the key that always holds"

A field without a value takes the key's own values, by the type and default in `takes`, which is the
dialect's unless it has a default of no plain type. `values` has
each of the documented `choices`. `tests` show it, and name the field or its value; `note` says what
differs. Keys that were found in a system's code alone have `documented = false`; `kind` is
`section` for one that an inference job takes over whole, `computed` for what can only be read.
"""

import ast
import functools
import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.cli.main import COMMANDS, command_of
from setpoint.config import Config, Invalid, Origin, SetpointError
from setpoint.config.schema.class_info import all_fields
from setpoint.config.schema.field import FieldInfo
from setpoint.config.values.origin import COMMAND_LINE
from setpoint.config.words.plain_data import PlainScalar
from setpoint.infer.config import Inference
from setpoint.interop.dialect import Dialect, Key, dialect_named
from setpoint.train.config import Job

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = ROOT / "docs" / "coverage"
ROOTS: dict[str, type[Config]] = {"": Job, "inference": Inference}
SAMPLES = {"int": "2", "float": "0.5", "bool": "true", "str": "a", "path": "a", "list": "[a]"}
"""Values of types whose keys have no default."""
INDEX = """# Coverage

Setpoint's equivalents of the configuration keys of four training systems: DanLing, d9d,
KempnerForge and xorl. Generated from the dialects in `setpoint/interop/` and from
`tests/coverage/answers.toml` by `python -m tests.coverage.make`; tests verify each field, value,
command and named test.

*Answered*: a field or command has the same meaning, and a test shows it ([list](keys.md)). *Fixed*:
Setpoint always uses one value. *Refused*: not supported, with the reason. The
[weaknesses](weaknesses.md) of the four systems have their own list. Keys with a star are
undocumented and were found in code.

`tests/recipes/` has whole recipes of the four: each passes `check` at its number of ranks, and in
small form trains on 2 or 4 ranks with the same results as on one.

"""
WEAKNESSES = """# Weaknesses of other systems

Generated ([index](README.md)). Faults of the four systems, and the test that shows that Setpoint
does not have them.

| | fault | in Setpoint | shown by |
| --- | --- | --- | --- |
"""
STATES = ("answered", "fixed", "refused")


class Row(NamedTuple):
    """What is said of a key, or of a weakness; see above.

    Arguments:
        about: what a weakness is.
    """

    capability: str
    name: str
    kind: str = "key"
    documented: bool = True
    takes: str = ""
    choices: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()
    fixed: str = ""
    refused: str = ""
    note: str = ""
    tests: tuple[str, ...] = ()
    about: str = ""
    how: str = ""

    @property
    def state(self) -> str:
        """One of `STATES`."""
        return next((each for each in STATES[1:] if getattr(self, each)), "answered")

    @property
    def settings(self) -> list[str]:
        """Fields, with the values that are named."""
        given = [text for _, text in self.values if not text.startswith("no: ")]
        return list(dict.fromkeys([*self.fields, *given]))


def rows(file: str = "answers.toml") -> list[Row]:
    """All rows of a file."""
    tables = tomllib.loads((HERE / file).read_text(encoding="utf-8"))
    return [_row(table, name, parts) for table, of in tables.items() for name, parts in of.items()]


def _row(capability: str, name: str, parts: dict[str, Any]) -> Row:
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in parts.items()}
    plain["values"] = tuple(parts.get("values", {}).items())
    key = dialect_key(name)
    if key is not None and not {"takes", "choices"} & {*parts}:
        plain["takes"] = _takes_of(key)
    if key is not None and not {*parts} & {"fields", "values", "commands", "fixed"}:
        plain |= {"fields": (key.path,)} if key.path else {"refused": key.refused or key.idle}
    return Row(capability, name, **plain)


def _takes_of(key: Key) -> str:
    """The type and default of a key with a plain default."""
    names = {bool: "bool", int: "int", float: "float", str: "str"}
    kind, default = names.get(type(key.default)), key.default
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    return f"{kind} = {shown}" if kind else ""


def dialect_key(name: str) -> Key | None:
    """The declaration of a key in the dialect of its system; None for one inside a list."""
    system, _, key = name.partition(" ")
    return _dialects()[system].keys.get(key) if system in _dialects() else None


@functools.cache
def _dialects() -> dict[str, Dialect]:
    dialects = map(dialect_named, ("danling", "d9d", "kempnerforge", "xorl"))
    return {dialect.name: dialect for dialect in dialects}


def problems_of(row: Row) -> Iterator[str]:
    """Find what a row lacks, and what of it is not so."""
    said = [name for name in ("commands", "fixed", "refused") if getattr(row, name)]
    said += ["fields"] if row.fields or row.values else []
    if len(said) != 1:
        yield f"says {' and '.join(said) or 'nothing'}; one of these is needed"
    if row.state == "answered" and not row.tests:
        yield "no test shows it"
    if row.state == "fixed" and not row.note:
        yield "does not say why it is fixed"
    if row.values and {name for name, _ in row.values} != {*row.choices}:
        yield f"values are not the choices of the key, {', '.join(row.choices)}"
    if row.choices and row.fields and not row.values:
        yield "has choices, and no values"
    for setting in row.settings:
        yield from _setting_problems(setting, row)
    for command in row.commands:
        yield from _command_problems(command)
    texts = [_text_of(test) for test in row.tests]
    yield from (f"{test}: there is no such test" for test, text in
                zip(row.tests, texts, strict=True) if text is None)  # fmt: skip
    whole = "\n".join(text or "" for text in texts)
    for setting in row.fields:
        _, path, _, value = split(setting)
        words = (path.rpartition(".")[2], *re.findall(r"\w+", value))
        if texts and not any(re.search(rf"(?<!\w){re.escape(w)}(?!\w)", whole) for w in words):
            yield f"no test of it names {setting}"


@functools.cache
def _infos(root: str) -> dict[str, list[FieldInfo]]:
    found: dict[str, list[FieldInfo]] = {}
    for path, info in all_fields(ROOTS[root]):
        found.setdefault(path, []).append(info)
    return found


def _setting_problems(setting: str, row: Row) -> Iterator[str]:
    root, path, equals, value = split(setting)
    infos = _infos(root).get(path, [])
    if not infos:
        yield f"there is no field {path}"
        return
    if row.kind == "key" and not equals:
        value = sample(row.takes)
        if not value:
            return  # a key of any value
    elif not equals:
        return  # a section is taken over, and a computed value is shown
    if not any(_takes(info, value) for info in infos):
        kinds = " or ".join(info.type.describe() for info in infos)
        yield f"{path} takes no {value!r}: {kinds}" + ("" if equals else "; name its value")


def split(setting: str) -> tuple[str, str, str, str]:
    """Root, path, = and value."""
    root, colon, rest = setting.partition(":")
    root, rest = (root, rest) if colon and root in ROOTS else ("", setting)
    return root, *rest.partition("=")


def _takes(info: FieldInfo, text: str) -> bool:
    words = {word for kind in (info.type, *info.type.parts) for word in kind.candidates()}
    if text in words:
        return True
    try:
        info.read(PlainScalar(text), Origin(COMMAND_LINE))
    except (Invalid, SetpointError):
        return False
    return True


def sample(takes: str) -> str:
    """A value of a key, from `TYPE = DEFAULT`."""
    kind, _, default = takes.partition(" = ")
    if default and default[0] not in "<='" and default not in ("null", "", "[]", "{}"):
        return default.replace('"', "")
    first = re.split(r"\W", kind)[0]
    return SAMPLES.get(first, default)


def _command_problems(command: str) -> Iterator[str]:
    _, *words = command.split()
    names = [word for word in words if not word.startswith("--")]
    options = [word for word in words if word.startswith("--")]
    name = " ".join(names)
    if name not in COMMANDS:
        yield f"there is no command {command}"
        return
    known = {option.name for option in command_of(name).options}
    yield from (f"{command}: there is no option {each}" for each in options if each not in known)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _texts(path: Path) -> frozenset[str]:
    """All names and texts of a file and of those beside it that it imports."""
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            beside = path.with_name(f"{node.module}.py")
            found |= _texts(beside) if beside.is_file() else set()
        elif isinstance(node, ast.Constant):
            found.add(str(node.value))
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return frozenset(found)


def _text_of(test: str) -> str | None:
    """The source of a test with all that it uses of its file.

    Arguments:
        test: `FILE::NAME`, with `[CASE]` where one case of several is meant.

    Returns:
        None where there is no such test.
    """
    place, _, rest = test.partition("::")
    name, _, case = rest.partition("[")
    path = ROOT / "tests" / place
    if case and name == "test_the_field_has_an_effect":
        effect = _effects(place).get(case[:-1])
        return effect and " ".join((case, effect.change, *effect.base))
    source = _source(path, name) if path.is_file() and name.startswith("test_") else None
    if source is None or not case:
        return source
    has_case = "parametrize" in source and _made_of(case[:-1], _texts(path))
    return f"{source}\n{case}" if has_case else None


@functools.cache
def _effects(place: str) -> dict[str, Any]:
    """The table of effects of a test file."""
    module = place.removesuffix(".py").replace("/", ".")
    return importlib.import_module(f"..{module}", __package__).EFFECTS


@functools.cache
def _source(path: Path, name: str) -> str | None:
    nodes: dict[str, ast.stmt] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            nodes |= {n.id: node for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    if name not in nodes:
        return None
    used, queue = dict[str, str](), [name]
    while queue:
        each = queue.pop()
        used[each] = ast.unparse(nodes[each])
        names = {n.id for n in ast.walk(nodes[each]) if isinstance(n, ast.Name)}
        names |= {n.arg for n in ast.walk(nodes[each]) if isinstance(n, ast.arg)}  # fixtures
        queue += [n for n in names if n in nodes and n not in used and n not in queue]
    return "\n".join(used.values())


def _made_of(case: str, texts: frozenset[str]) -> bool:
    """Whether an id is one of the texts, or several of them with hyphens between."""
    return case in texts or any(
        case[:at] in texts and _made_of(case[at + 1 :], texts)
        for at, sign in enumerate(case)
        if sign == "-"
    )


# The pages.


def pages() -> dict[str, str]:
    """The texts of docs/coverage by file name, as the answers say."""
    known = rows()
    lines = [INDEX, "| capability | keys | answered | fixed | refused |\n"]
    lines.append("| --- | --: | --: | --: | --: |\n")
    by_capability: dict[str, list[Row]] = {}
    for row in known:
        by_capability.setdefault(row.capability, []).append(row)
    for name, some in {**by_capability, "**all**": known}.items():
        counts = Counter(row.state for row in some)
        lines.append(_cells(name, str(len(some)), *(str(counts[state]) for state in STATES)))
    for state, title in (("fixed", "Fixed"), ("refused", "Refused")):
        lines.append(f"\n## {title}\n\n| key | {'value | ' * (state == 'fixed')}why |\n")
        lines.append(f"| --- | {'--- | ' * (state == 'fixed')}--- |\n")
        for row in (each for each in known if each.state == state):
            reason = (row.fixed, row.note) if state == "fixed" else (getattr(row, state),)
            lines.append(_cells(_key(row), *reason))
    keys = ["# Keys that are answered\n\nGenerated ([index](README.md)). *: found in code alone.\n"]
    for name, some in by_capability.items():
        keys.append(f"\n## {name}\n\n| Setpoint | keys | note | shown by |\n")
        keys.append("| --- | --- | --- | --- |\n")
        merged: dict[tuple[str, ...], list[Row]] = {}
        for row in (each for each in some if each.state == "answered"):
            merged.setdefault((*row.settings, *row.commands), []).append(row)
        for does, alike in merged.items():
            keys.append(_cells(
                ", ".join(f"`{each}`" for each in does), ", ".join(map(_key, alike)),
                " ".join(dict.fromkeys(row.note for row in alike if row.note)),
                "<br>".join(dict.fromkeys(f"`{t}`" for row in alike for t in row.tests)),
            ))  # fmt: skip
    weak = [WEAKNESSES]
    weak += [_cells(f"`{row.name}`", row.about, row.how or row.refused,
                    "<br>".join(f"`{test}`" for test in row.tests))
             for row in rows("weaknesses.toml")]  # fmt: skip
    return {"README.md": "".join(lines), "keys.md": "".join(keys), "weaknesses.md": "".join(weak)}


def _key(row: Row) -> str:
    return f"`{row.name}`" + ("" if row.documented else "*")


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def outdated() -> dict[str, str]:
    """Pages that do not hold what they have to, by file name; empty for those to be removed."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    wanted |= dict.fromkeys(there.keys() - wanted.keys(), "")
    return {name: text for name, text in wanted.items() if there.get(name) != text}
