"""The lists of fields, variants and checks in the pages, written from the classes.

They are lists, since cells that hold sentences make a table hard to read.
A page marks where one belongs, and `python -m tests.docs.make` fills it in:

    <!-- fields: loss precision.float8 -->      sections or fields, with all that is below them
    <!-- fields: model except model.moe -->     without some
    <!-- fields: inference: generation -->      of the inference job
    <!-- variants: optimizer -->                the types of a section
    <!-- rules: job -->                         the checks that span sections of the job
    <!-- conflicts: job -->                     the settings that do not go together
    <!-- end -->
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Formatter
from typing import Any

from setpoint.cli.list import field_rows
from setpoint.config import Config, all_fields
from setpoint.config.schema.field import DeadMark, mark_of
from setpoint.config.types.compound import section_classes
from setpoint.editor_schema.help import class_help
from setpoint.infer.config import Inference
from setpoint.train.config import Job
from setpoint.train.rules import conflicts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LIST = re.compile(
    r"(<!-- (fields|variants|rules|conflicts): ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL
)
ROOTS: dict[str, type[Config]] = {"": Job, "inference": Inference}
# Long descriptions of types that the pages explain once.
SHORT = (
    (r"a duration such as .*?, or a list of them", "duration"),
    (r"a length such as .*? or '5 %'", "length"),
    (r"a period such as .*? or 'never'", "period"),
    (r"a time such as .*? or 'never'", "time limit"),
    (r"a size in bytes such as .*? or 512", "size"),
    (r"an import path such as '.*?'", "import path"),
    (r"a list of values, each ", "list of "),
    (r"a mapping from str to values, each ", "mapping of "),
    (r"any keys with plain values", "mapping"),
    (r"a tuple of \d+: ", ""),
    (r"a section with type = .*?(?=,|$)", "variants"),
    (r"a section \(\w+\)", "section"),
    (r"one of: ", ""),
    (r"\ban? (?=\w)", ""),
    (r", or null", " or null"),
)


@functools.cache
def rows_of(root: str) -> tuple[dict[str, Any], ...]:
    """The fields of a job; of a section that stands in several places the first is meant."""
    first: dict[Any, str] = {}
    for path, info in all_fields(ROOTS[root]):
        first.setdefault(info, path)
    return tuple(row for row in field_rows(ROOTS[root]) if row["path"] in {*first.values()})


def chosen(wanted: str) -> tuple[str, list[dict[str, Any]]]:
    """The rows that a mark asks for, and the root they are of."""
    root, colon, rest = wanted.rpartition(":")
    names, _, without = (rest if colon else wanted).partition(" except ")
    rows = [
        row
        for row in rows_of(root.strip())
        if _under(row["path"], names.split()) and not _under(row["path"], without.split())
    ]
    for name in [*names.split(), *without.split()]:
        assert any(row["path"] == name for row in rows_of(root.strip())), f"no field {name}"
    return root.strip(), rows


def _under(path: str, sections: Iterable[str]) -> bool:
    return any(path == section or path.startswith(f"{section}.") for section in sections)


def fields_list(wanted: str) -> str:
    """A list of fields: name, type, default, range, role and help.

    Variants that differ in a default only share an item.
    """
    merged: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    rows = chosen(wanted)[1]
    roles = {row["role"] for row in rows}
    for row in rows:
        kind = row["type"]
        if kind.startswith("a section (") and "null" not in kind:
            continue  # its fields follow
        for pattern, word in SHORT:
            kind = re.sub(pattern, word, kind)
        limits = _range(row.get("range", ""))
        role = row["role"] if len(roles) > 1 and row["role"] != "identity" else ""
        of = [row["variant"]] if "variant" in row else row.get("variants", [])
        variants, defaults = merged.setdefault(
            (row["path"], kind, limits, role, row["help"], "" if of else "all"), ([], [])
        )
        variants.extend(of)
        default = next((word for word in ("required", "derived") if word in row), "")
        if "default" in row:
            default = _default(row["default"])
        if row["path"].endswith(".name") and default == f"`{row.get('variant')}`":
            default = "the type"
        if default not in defaults:
            defaults.append(default)
    lines = [f"All are {roles.pop()}:", ""] if len(roles) == 1 and "identity" not in roles else []
    for (path, kind, limits, role, text, _), (variants, defaults) in merged.items():
        facts = "; ".join(part for part in (_values(kind, defaults), limits, role) if part)
        lines.append(f"- `{path}`{_which(path, variants)}: {facts}. {text}")
    return "\n".join(lines) + "\n"


def _values(kind: str, defaults: list[str]) -> str:
    """A type with its default; null is the default where it is named first."""
    choices = kind.removesuffix(" or null").split(", ")
    default = " or ".join(filter(None, defaults))
    if default == "null" and kind.endswith(" or null"):
        return f"null or {kind.removesuffix(' or null')}"
    if default in ("required", "derived"):
        return f"{kind}, {default}"
    if default.strip("`") in choices and len(choices) > 1:
        return kind.replace(default.strip("`"), f"{default} (default)", 1)
    return f"{kind} = {default}" if default else kind


def _range(words: str) -> str:
    """The range of a field: an interval where both ends are named; floats are finite."""
    if found := re.fullmatch(r"matching (.*)", words):
        return f"`{found[1]}`"
    words = re.sub(r"(, )?finite", "", words).strip()
    if found := re.fullmatch(r"(>=?) (\S+), (<=?) (\S+)( each)?", words):
        low, high = found[1] == ">=", found[3] == "<="
        first, last = (str(2**63) if float(n) == 2.0**63 else n for n in (found[2], found[4]))
        words = f"{'(['[low]}{first}, {last}{')]'[high]}{found[5] or ''}"
    return words.replace(str(2**63), "2^63")


def _which(path: str, variants: list[str]) -> str:
    """The variants that have a field, in as few words as it takes."""
    family = _tags(path.rpartition(".")[0])
    others = [each for each in family if each not in variants]
    if not variants or (family and not others):
        return ""
    if len(others) < len(variants) < len(family):
        return f" (all but {', '.join(others)})"
    return f" ({', '.join(variants)})"


@functools.cache
def _tags(path: str) -> list[str]:
    """The types that can stand at a path of a job."""
    info = next((info for at, info in all_fields(Job) if at == path), None)
    return [cls.__setpoint__.tag for cls in section_classes(info.type)] if info else []


def _default(value: Any) -> str:
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return str(value) if isinstance(value, int) else f"{value:.7g}"
    return f"`{value}`"


def variants_list(wanted: str) -> str:
    """A list of the types of a section, with the summaries of their classes."""
    info = next(info for path, info in all_fields(Job) if path == wanted)
    rows = [f"- `{cls.__setpoint__.tag}`: {class_help(cls)}" for cls in section_classes(info.type)]
    return "\n".join(rows) + "\n"


def rules_list(_: str) -> str:
    """A list of the rules of a training job: what each refuses, and what it needs."""
    lines: list[str] = []
    known = Job.__setpoint__
    for name in (*known.checks, *known.deads):
        if ":" not in name:
            continue  # a method of the job
        function = getattr(Job, name)
        line = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        mark: Any = mark_of(function)
        if isinstance(mark, DeadMark):
            line += f": `{', '.join(mark.names)}` has no effect"
        elif callable(mark.needs):
            needs = (mark.needs.__doc__ or "").rstrip(".")
            line += f"; needs {needs[:1].lower()}{needs[1:]}"
        elif mark.needs:
            line += f"; needs {' and '.join(mark.needs)}"
        lines.append(f"- {line}")
    return "\n".join(lines) + "\n"


def conflicts_list(_: str) -> str:
    """A list of the settings that do not go together: the source of each condition, and why."""
    text = Path(conflicts.__file__).read_text(encoding="utf-8")
    lambdas = {
        node.lineno: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Lambda)
    }
    lines: list[str] = []
    for row in sorted(conflicts.CONFLICTS, key=lambda row: row.path):
        code = row.applies.__code__
        source = ast.get_source_segment(text, lambdas[code.co_firstlineno].body) or ""
        names = code.co_varnames[1 : code.co_argcount]
        for name, value in zip(names, row.applies.__defaults__ or (), strict=True):
            source = source.replace(f"job[{name}]", value)
            source = re.sub(rf"\b{name}\b", f'"{value}"', source)
        source = re.sub(r"\bjob(\.|, )", "", re.sub(r"\s+", " ", source))
        gpu = " without a GPU" * row.on_cpu
        lines.append(f"- `{row.path}`, if `{source}`{gpu}: {_sentence(row.message)}")
    return "\n".join(lines) + "\n"


def _sentence(template: str) -> str:
    """A message with the names of fields in place of values."""
    parts = Formatter().parse(template.replace("{device}", "there is no GPU"))
    return "".join(text + (f"`{field}`" if field else "") for text, field, _, _ in parts)


def filled(text: str) -> str:
    """A page with its lists as the classes have them today."""
    make = {
        "fields": fields_list,
        "variants": variants_list,
        "rules": rules_list,
        "conflicts": conflicts_list,
    }

    def written(found: re.Match[str]) -> str:
        return f"{found[1]}{make[found[2]](found[3])}{found[4]}"

    return LIST.sub(written, text)


def outdated() -> Iterator[tuple[Path, str]]:
    """The pages whose lists differ from the classes, with the text they have to hold."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (wanted := filled(text)) != text:
            yield page, wanted
