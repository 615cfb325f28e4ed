"""Running the checks of a tree: required values, ranges of items, and rules.

`resolve` runs the checks that need only values; `verify` those that need files, torch or similar.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, cast

from ..draft.walk import free_leaves, need_config, sections, steps
from ..schema.class_info import classes_below
from ..schema.field import IDENTITY, MARK, NEEDS, Need, RuleMark
from ..values.containers import CheckedDict, CheckedList, Free
from ..values.node import Node, chain_of, state_of, value_or_missing
from ..values.origin import COMMAND_LINE, DERIVED, ENVIRONMENT, Origin, Recorded, short_name
from ..values.scalar import Struct
from ..values.user_code import error_in_words, traceback_of
from ..words.errors import Caution, Invalid, Problem, SetpointError, UnresolvedError
from ..words.names import Path, did_you_mean, dotted, with_article
from ..words.plain_data import MISSING
from ..words.text import for_error

EXPECTED_FINDINGS = "it must yield a Problem for each fault, and nothing if there is none"
Placed = list[tuple[Path, Node]]
"""Sections with their paths, the root first."""
SEVERAL = 3
"""Fields of a section that a problem names one by one where a value is derived from them."""


def wrong_values(placed: Placed) -> Iterator[Problem]:
    """Find required fields without a value, and invalid lists that were changed in place."""
    for path, section in placed:
        values = vars(section)
        for name, info in type(section).__setpoint__.fields.items():
            value = values.get(name, MISSING)
            if isinstance(value, CheckedList | CheckedDict):
                try:  # all other values were checked when they were set
                    info.check(value)
                except Invalid as error:
                    for part in error.parts:
                        problem = Problem(dotted((name, *part.at)), part.message)
                        yield whole_problem(path, section, problem)
            known = value is not MISSING or info.constant or info.factory is not None
            if known or name in state_of(section).invalid:
                continue
            if value_or_missing(section, name) is MISSING:
                reason = "is required and has no value"
                if info.derived:
                    reason = "must be set: nothing in this configuration derives it"
                hint = f"Expected {info.type.describe()}"
                hint += f", {info.bounds.describe()}." if info.bounds else "."
                # The origin of the section, which a layer made; the root and defaults have none.
                _, origin = describe_value(placed[0][1], (), dotted(path))
                origin = None if origin == "default" else origin
                yield Problem(dotted((*path, name)), reason, hint=hint, origin=origin)


def run_checks(
    placed: Placed, met: Collection[Need] = (), unread: Collection[str] = ()
) -> tuple[list[Problem], list[Caution]]:
    """Run the checks of sections whose values are all known, except those of unread files.

    Arguments:
        met: the needs that are met; if empty, only checks without needs run.
    """
    problems: list[Problem] = []
    cautions: list[Caution] = []
    for path, section, name, mark, needs in _checks_in(placed, unread):
        if bool(needs) != bool(met) or not set(needs) <= set(met):
            continue
        for finding in findings_of(section, name, mark):
            problem = whole_problem(path, section, finding)
            if isinstance(problem, Caution):
                problem.section = path
                cautions.append(problem)
            else:
                problems.append(problem)
    return problems, cautions


def _checks_in(
    placed: Iterable[tuple[Path, Node]], unread: Collection[str] = ()
) -> Iterator[tuple[Path, Node, str, RuleMark, tuple[Need, ...]]]:
    """Iterate over the checks of sections with their needs, except those of unread files."""
    for path, section in placed:
        for name in type(section).__setpoint__.checks:
            mark: RuleMark = getattr(getattr(section, name), MARK)
            needs = mark.needs
            if callable(needs):
                try:
                    needs = needs(section)
                except UnresolvedError:  # a value that it depends on is unknown
                    needs = NEEDS
            if not ("files" in needs and path and path[0] in unread):
                yield path, section, name, mark, needs


def whole_problem(path: Path, section: Node, problem: Problem) -> Problem:
    """A problem with its path from the root, its value and its origin."""
    value, origin = describe_value(section, path, problem.path)
    also: list[str] = []
    for name in problem.also:
        other, source = describe_value(section, path, name)
        if other is not None:  # a field that another problem leaves without a value
            place = f" ({source})" if source is not None else ""
            also.append(f"{dotted((*path, *name.split('.')))} = {other}{place}")
    parts = tuple(part for part in problem.path.split(".") if part)
    return problem.placed(dotted((*path, *parts)), value, origin, also)


def _short_origin(origin: Origin, path: Path) -> str:
    """Describe an origin; several fields of one section count as one source of a derived value.

    Distinguishes flags recorded earlier from flags of this command.
    """
    text = origin.describe(path)
    if isinstance(origin, Recorded) and origin.layer in (COMMAND_LINE, ENVIRONMENT):
        return f"the record: {text}"
    if origin.layer != DERIVED:
        return text
    begin, mark, rest = text.partition("from ")
    reads = rest.split(", ")
    sections = [read.rpartition(".")[0] for read in reads]
    shown = (
        f"{section}.*" if section and sections.count(section) > SEVERAL else read
        for read, section in zip(reads, sections, strict=True)
    )
    return begin + mark + ", ".join(dict.fromkeys(shown))


def describe_value(section: Node, path: Path, relative: str) -> tuple[str | None, str | None]:
    """A value and its origin as text, by a dotted path from a section; None without a value."""
    full, value = path, cast(Any, section)
    chain: Any = []
    for holder, inside, value in steps(section, relative):
        full, name = (*path, *inside), str(inside[-1])
        if isinstance(holder, Node):
            if name == "type":
                return type(holder).__setpoint__.tag, None
            chain = chain_of(holder, name)
        elif isinstance(holder, Free):
            chain = holder.chain(name) or chain
        if value is MISSING:
            return None, None
        if isinstance(value, Node):
            chain = state_of(value).placed or chain
    if value is section:
        return None, None
    origin = _short_origin(chain[-1][0], full) if chain else "default"
    if isinstance(value, Node):
        return type(value).__setpoint__.tag or "set", origin  # a section has no value of its own
    if isinstance(value, Free):
        # Only the keys of the area have origins.
        keys = [leaf for leaf in free_leaves(value, full, IDENTITY) if leaf.chain]
        origin = ", ".join(dict.fromkeys(leaf.describe_origin() for leaf in keys)) or origin
    return for_error(value), origin


def findings_of(section: Node, name: str, mark: RuleMark) -> Iterator[Problem]:
    """Run one check, if there is anything to check; a fault in it is also a problem."""
    method: Any = getattr(section, name)
    try:
        if mark.when is not None and not mark.when(section):
            return
        for finding in method():
            if not isinstance(finding, Problem):
                name = with_article(type(finding).__name__)
                yield internal_problem(method, f"yielded {name}; {EXPECTED_FINDINGS}")
                return
            message = _misuse(section, finding, mark.cautions)
            yield internal_problem(method, message) if message else finding
    except UnresolvedError:
        # It reads a value already reported as missing or wrong.
        return
    except Exception as error:
        fault = method_failed(method, error)
        fault.message += "" if isinstance(error, SetpointError) else f"; {EXPECTED_FINDINGS}"
        yield fault


def _misuse(section: Node, finding: Problem, cautions: Collection[str]) -> str:
    """The error for a problem with an unknown path, or an undeclared caution."""
    for path in (finding.path, *finding.also):
        for holder, inside, _ in steps(section, path):
            # The error of a callable may be a missing argument.
            if not isinstance(holder, Node) or hasattr(type(holder), "__setpoint_open__"):
                break
            name, fields = str(inside[-1]), type(holder).__setpoint__.fields
            if name != "type" and name not in fields:
                reason = f"{type(holder).__name__} has no such field."
                reason += did_you_mean(name, fields, " ")
                return f"names {path!r}: {reason} Its message: {finding.message}"
    if isinstance(finding, Caution) and finding.code not in cautions:
        declared = f"write @rule(cautions={{{finding.code!r}: 'what it means'}})"
        return f"yielded the caution {finding.code!r} undeclared; {declared}"
    return ""


def internal_problem(method: Any, message: str) -> Problem:
    """A problem in a method itself, not in the configuration."""
    problem = Problem("", f"{method_name(method)} {message}")
    problem.traceback = ""
    return problem


def method_failed(method: Any, error: Exception) -> Problem:
    """The problem of a method that raised an unexpected error."""
    reason = str(error) if isinstance(error, SetpointError) else error_in_words(error)
    problem = internal_problem(method, f"failed: {reason}")
    problem.traceback = traceback_of(error)
    return problem


def method_name(method: Any) -> str:
    """A method by class, name and place, `Net._check (shop.py:30)`, or the target of a rule."""
    name = str(getattr(method, "__qualname__", method))
    code = None if ":" in name else getattr(method, "__code__", None)
    return f"{name} ({short_name(code.co_filename)}:{code.co_firstlineno})" if code else name


class Skipped(Struct):
    """A check that was not run, by its section and the name of its method or rule."""

    path: str
    name: str
    what: str
    needs: tuple[Need, ...]

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.what} (needs {' and '.join(self.needs)})"

    def __repr__(self) -> str:
        return f"Skipped({str(self)!r})"


class Verification(Struct):
    """The problems and skipped checks of `verify`, and all cautions that are not silenced."""

    problems: list[Problem]
    cautions: list[Caution]
    skipped: list[Skipped]

    def __str__(self) -> str:
        parts = [*map(str, self.problems)]
        parts += [f"  caution: {caution.render().lstrip()}" for caution in self.cautions]
        parts += [f"  skipped: {check}" for check in self.skipped]
        return "\n\n".join(parts) or "nothing was found"

    def __repr__(self) -> str:
        return f"Verification({self.problems!r}, {self.cautions!r}, {self.skipped!r})"


def verify(
    config: Node, needs: Collection[Need] = NEEDS, *, unread: Collection[str] = ()
) -> Verification:
    """Run the checks with needs, as far as these are met.

    Arguments:
        needs: the needs that are met, for example `{"files"}`.
        unread: top sections whose files will not be read and need not exist.

    Raises:
        SetpointError: the config is a draft, or a need is unknown.
    """
    need_config(config, "verify", resolved=True)
    words: Collection[str] = (needs,) if isinstance(needs, str) else needs
    for word in words:
        if word not in NEEDS:
            hint = did_you_mean(str(word), NEEDS, " ")
            known = ", ".join(NEEDS)
            raise SetpointError(f"needs = {word!r}.{hint}\nValid: {known}")
    met = cast(Collection[Need], words)

    placed = list(sections(config))
    problems, cautions = run_checks(placed, met, unread) if met else ([], [])
    silenced = silenced_codes(config)
    cautions = [caution for caution in cautions if caution.code not in silenced]
    skipped: list[Skipped] = []
    for path, section, name, mark, required in _checks_in(placed, unread):
        missing: tuple[Need, ...] = tuple(need for need in required if need not in met)
        if missing and (mark.when is None or mark.when(section)):
            summary = (getattr(section, name).__doc__ or "").strip().partition("\n")[0]
            summary = summary[:1].lower() + summary[1:].rstrip(".")
            skipped.append(Skipped(dotted(path), name, summary, missing))
    return Verification(problems, [*cautions_of(config), *cautions], skipped)


def needs_of(config: Node) -> list[Need]:
    """The needs of the checks of a configuration, in the order of `NEEDS`."""
    needs = {need for *_, needed in _checks_in(sections(config)) for need in needed}
    return [need for need in NEEDS if need in needs]


def cautions_of(config: Node) -> tuple[Caution, ...]:
    """The cautions of `resolve` that are not silenced.

    Raises:
        SetpointError: the config is a draft.
    """
    need_config(config, "cautions_of", resolved=True)
    silenced = silenced_codes(config)
    cautions = state_of(config).cautions or ()
    return tuple(caution for caution in cautions if caution.code not in silenced)


def known_cautions(root: type[Node]) -> dict[str, str]:
    """All cautions that the checks of a tree may yield: their meanings by code, sorted."""
    methods = (getattr(c, name) for c in classes_below(root) for name in c.__setpoint__.checks)
    marks: Iterator[RuleMark] = (getattr(method, MARK) for method in methods)
    return dict(sorted(item for mark in marks for item in mark.cautions.items()))


def unknown_codes(root: Node, silenced: Sequence[str]) -> Iterator[Problem]:
    """Find codes in `silence` that belong to no caution."""
    known = list(known_cautions(type(root)))
    for index, code in enumerate(silenced):
        if code not in known:
            path = f"silence.{index}"
            value, origin = describe_value(root, (), path)
            hint = did_you_mean(code, known)
            message = "is not the code of a caution"
            yield Problem(path, message, valid=known, hint=hint, value=value, origin=origin)


def silenced_codes(root: Node) -> tuple[str, ...]:
    """The codes of the cautions listed in a root's field `silence`."""
    if "silence" not in type(root).__setpoint__.fields:
        return ()
    codes: Any = value_or_missing(root, "silence")
    # A section that is resolved alone may use the name for something else.
    if not isinstance(codes, tuple | list):
        return ()
    return tuple(cast(Sequence[str], codes))
