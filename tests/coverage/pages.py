"""The pages of docs/coverage, written from the inventory and the answers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .found import ROOT
from .inventory import Key, capabilities
from .mapping import WEAKNESSES, Answer, answers, file_of, slug

FOLDER = ROOT / "docs" / "coverage"

INDEX = """# Coverage

What Setpoint has for the configuration keys of four training systems: the field that does it and
the test that shows it, or why there is none. Fields are explained in the tables of
[their sections](../README.md#sections-of-the-job).

*Keys* are those that the systems document, computed ones included; *answered*: a field or something
else does it, and the named test passes; *refused*: left out on purpose; *open*: not there yet.
`python -m tests.coverage.make` writes these pages from `tests/coverage/mapping/`; a test keeps them
current.

"""

BEFORE = """# Coverage: {capability}

Generated ([index](README.md)). Keys marked * are not documented and were found in the code.
"""

ABOUT_WEAKNESSES = """# Coverage: weaknesses that are not shared

Generated ([index](README.md)). Faults and traps of the four systems, and the test that shows that
Setpoint does not have them.

| | what it is | what Setpoint does | shown by |
| --- | --- | --- | --- |
"""


def pages() -> dict[str, str]:
    """What the files have to hold, going by today's code.

    Returns:
        texts by file name.
    """
    begun = {name: keys for name, keys in capabilities().items() if file_of(name).exists()}
    found = {f"{slug(name)}.md": page(name, keys) for name, keys in begun.items()}
    found["weaknesses.md"] = ABOUT_WEAKNESSES + "".join(
        _row(f"`{a.name}`", _said(a.about), _said(a.how or a.refused), "<br>".join(_tests(a)))
        for a in answers(WEAKNESSES).values()
    )
    return {"README.md": index(), **found}


def states(capability: str, keys: list[Key]) -> Counter[str]:
    """How many keys of a capability are answered, refused and open.

    Arguments:
        capability: as the inventory calls it.
        keys: all that belong to it.

    Returns:
        counts of those that have to be answered for.
    """
    said = answers(capability)
    wanted = [key for key in keys if key.in_source]
    return Counter(said[key.name].state if key.name in said else "open" for key in wanted)


def index() -> str:
    """The first page: counts by capability.

    Returns:
        its text.
    """
    lines = [INDEX, "| capability | keys | answered | refused | open |\n"]
    lines.append("| --- | --: | --: | --: | --: |\n")
    total: Counter[str] = Counter()
    for name, keys in capabilities().items():
        counts = states(name, keys)
        total += counts
        title = f"[{name}]({slug(name)}.md)" if file_of(name).exists() else name
        lines.append(_counts(title, counts))
    lines.append(_counts("**all**", total))
    lines.append(
        "\n[Weaknesses of the four systems](weaknesses.md) that Setpoint does not share.\n"
    )
    return "".join(lines)


def page(capability: str, keys: list[Key]) -> str:
    """The page of a capability: a row for each answer, with the keys of all systems.

    Arguments:
        capability: as the inventory calls it.
        keys: all that belong to it.

    Returns:
        its text.
    """
    said = answers(capability)
    rows: dict[tuple[str, str], list[tuple[Key, Answer | None]]] = {}
    for key in keys:
        if key.in_source or key.name in said:
            answer = said.get(key.name)
            # Keys with the same fields share a row; a reason has one of its own.
            reason = answer.how + answer.refused + answer.later if answer is not None else ""
            own = reason if answer is not None and not answer.fields else ""
            rows.setdefault((_does(answer), own), []).append((key, answer))
    lines = [BEFORE.format(capability=capability)]
    lines.append("\n| Setpoint | keys | note | shown by |\n| --- | --- | --- | --- |\n")
    for (does, _), found in rows.items():
        given = [(key, answer) for key, answer in found if answer is not None]
        several = len({key.system for key, _ in found}) > 1
        notes = [
            (f"{key.system}: " if several and text == answer.note else "") + _said(text)
            for key, answer in given
            for text in (answer.how, answer.refused, answer.later, answer.note)
            if text
        ]
        tests = _joined([test for _, answer in given for test in _tests(answer)], "<br>")
        lines.append(_row(does, _names([key for key, _ in found]), _joined(notes, " "), tests))
    return "".join(lines)


def _names(keys: list[Key]) -> str:
    """Keys by system; a star where the documents of the system do not name it."""
    by_system: dict[str, list[str]] = {}
    for key in keys:
        name = f"`{key.key}`" + ("" if key.kind == "key" else f" ({key.kind})")
        by_system.setdefault(key.system, []).append(name + ("" if key.in_source else "*"))
    return "; ".join(f"{system} {', '.join(names)}" for system, names in by_system.items())


def _does(answer: Answer | None) -> str:
    """What answers a key: fields, something else, or the state."""
    if answer is None:
        return "open"
    if answer.state != "answered":
        return answer.state
    return ", ".join(f"`{field}`" for field in answer.fields) or "no field"


def _tests(answer: Answer) -> list[str]:
    return [f"`{test.removeprefix('tests/')}`" for test in answer.tests]


def _joined(texts: list[str], between: str) -> str:
    return between.join(dict.fromkeys(texts))


def _said(text: str) -> str:
    return " ".join(text.split())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _counts(title: str, counts: Counter[str]) -> str:
    numbers = (counts.total(), counts["answered"], counts["refused"], counts["open"])
    return _row(title, *(str(number) for number in numbers))


def outdated(folder: Path = FOLDER) -> dict[str, str]:
    """The files that do not hold what they have to.

    Arguments:
        folder: where they lie.

    Returns:
        wanted texts by file name; an empty one for a file that should not be there.
    """
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    wanted |= dict.fromkeys(there.keys() - wanted.keys(), "")
    return {name: text for name, text in wanted.items() if there.get(name) != text}
