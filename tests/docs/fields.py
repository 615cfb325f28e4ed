"""The tables of fields, variants and checks in the pages, written from the classes.

A page marks where one belongs, and `python -m tests.docs.make` fills it in:

    <!-- fields: loss precision.float8 -->      sections or fields, with all that is below them
    <!-- fields: model except model.moe -->     without some
    <!-- fields: inference: generation -->      of the inference job
    <!-- variants: optimizer -->                the types of a section
    <!-- rules: job -->                         the checks that span sections of the job
    <!-- conflicts: job -->                     the settings that do not go together
    <!-- end -->
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Formatter
from typing import Any

from setpoint.cli.fields import field_rows
from setpoint.config import Config, all_fields, section_classes
from setpoint.config.schema.tree import first_places
from setpoint.editor_schema.help import class_help
from setpoint.infer.config import Inference
from setpoint.train.config import Job
from setpoint.train.rules.support import CONFLICTS
from setpoint.train.rules.table import RULES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLE = re.compile(
    r"(<!-- (fields|variants|rules|conflicts): ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL
)
ROOTS: dict[str, type[Config]] = {"": Job, "inference": Inference}
BAR = "\\|"  # what a cell holds in place of a bar
# Long descriptions of types that the pages explain once.
SHORT = (
    (r"a duration such as .*?, or a list of them", "duration"),
    (r"a length such as .*? or '5 %'", "length"),
    (r"a period such as .*? or 'never'", "period"),
    (r"a size in bytes such as .*? or 512", "size"),
    (r"an import path such as '.*?'", "import path"),
    (r"a list of values, each ", "list of "),
    (r"a mapping from str to values, each ", "mapping of "),
    (r"any keys with plain values", "mapping"),
    (r"a tuple of \d+: ", "tuple of "),
    (r"a section with type = .*?(?=,|$)", "variants"),
    (r"a section \(\w+\)", "section"),
    (r"one of: ", ""),
    (r"\ban? (?=\w)", ""),
    (r", or null", " or null"),
)


@functools.cache
def rows_of(root: str) -> tuple[dict[str, Any], ...]:
    """The fields of a job; of a section that stands in several places the first is meant."""
    first = set(first_places(ROOTS[root]).values())
    return tuple(row for row in field_rows(ROOTS[root]) if row["path"] in first)


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


def fields_table(wanted: str) -> str:
    """A table of fields: name, type with range, default, role and help.

    Variants that differ in a default only share a row.
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
        if limits := row.get("range"):
            kind += f": {limits.replace('matching ', '')}"
        default = next((word for word in ("required", "derived") if word in row), "")
        if "default" in row:
            default = _default(row["default"])
        if len(roles) > 1 and row["role"] != "identity":
            kind += f"; {row['role']}"
        of = [row["variant"]] if "variant" in row else row.get("variants", [])
        variants, defaults = merged.setdefault(
            (row["path"], kind, row["help"], "" if of else "all"), ([], [])
        )
        variants.extend(of)
        defaults.extend([default] if default not in defaults else [])
    head = (
        f"type, range (all {roles.pop()})"
        if len(roles) == 1
        else "type, range; role unless identity"
    )
    lines = [f"| field | {head} | default | meaning |", "|---|---|---|---|"]
    for (path, kind, text, _), (variants, defaults) in merged.items():
        cells = (f"`{path}`" + _which(path, variants), kind, "; ".join(defaults), text)
        lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
    return "\n".join(lines) + "\n"


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
        return ", ".join(f"`{item}`" for item in value) or "`[]`"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return str(value) if isinstance(value, int) else f"{value:.7g}"
    return f"`{value}`"


def variants_table(wanted: str) -> str:
    """A table of the types of a section, with the summaries of their classes."""
    info = next(info for path, info in all_fields(Job) if path == wanted)
    lines = ["| `type` | meaning |", "|---|---|"]
    rows = [
        f"| `{cls.__setpoint__.tag}` | {class_help(cls)} |" for cls in section_classes(info.type)
    ]
    return "\n".join([*lines, *rows]) + "\n"


def rules_table(_: str) -> str:
    """A table of the rules of a training job: the sections each looks at, and what it needs."""
    lines = ["| sections | whether | needs |", "|---|---|---|"]
    for rule in RULES:
        sections = ", ".join(f"`{name}`" for name in rule.sections) or "all"
        what = rule.what.removeprefix("Whether ")
        if rule.dead:
            what += f"; else `{rule.dead[0]}` has no effect"
        lines.append(f"| {sections} | {what} | {', '.join(rule.needs)} |")
    return "\n".join(lines) + "\n"


def conflicts_table(_: str) -> str:
    """A table of the settings that do not go together, with reasons; equal ones share a row."""
    merged: dict[tuple[str, str], list[str]] = {}
    for each in sorted(CONFLICTS, key=lambda each: each.setting):
        others = " and ".join(map(_setting, each.others))
        merged.setdefault((others, _sentence(each.why)), []).append(each.setting)
    lines = ["| setting | does not go with | why |", "|---|---|---|"]
    lines += [f"| {_settings(own)} | {others} | {why} |" for (others, why), own in merged.items()]
    return "\n".join(lines) + "\n"


def _settings(terms: list[str]) -> str:
    """Settings of a row; those of the same value share its words."""
    paths: dict[str, list[str]] = {}
    for path, _, words in (term.partition(" ") for term in terms):
        paths.setdefault(words, []).append(f"`{path}`")
    return "; ".join(f"{', '.join(each)} {words}" for words, each in paths.items())


def _setting(term: str) -> str:
    path, _, words = term.partition(" ")
    return f"`{path}` {words}"


def _sentence(template: str) -> str:
    """A message with the names of fields in place of values."""
    parts = Formatter().parse(template.replace("{device}", "there is no GPU"))
    return "".join(text + (f"`{field}`" if field else "") for text, field, _, _ in parts)


def filled(text: str) -> str:
    """A page with its tables as the classes have them today."""
    make = {
        "fields": fields_table,
        "variants": variants_table,
        "rules": rules_table,
        "conflicts": conflicts_table,
    }

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}{make[found[2]](found[3])}{found[4]}"

    return TABLE.sub(table, text)


def outdated() -> Iterator[tuple[Path, str]]:
    """The pages whose tables differ from the classes, with the text they have to hold."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (wanted := filled(text)) != text:
            yield page, wanted
