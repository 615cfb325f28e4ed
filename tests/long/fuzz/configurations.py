"""Whole configurations of random and hostile layers: each resolves or is refused in words.

    python -m tests.long.fuzz.configurations [CASES [SEED [FIRST]]]

`make fuzz-configs` runs this. A case is made of its seed and number alone, so that it can be made
again; one that fails is printed with the command that tries it again.
"""

import contextlib
import faulthandler
import functools
import gc
import io
import json
import os
import resource
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from setpoint.cli.main import main as command_line
from setpoint.config.composition import Composition, compose
from setpoint.config.draft.config import Config
from setpoint.config.draft.walk import sections, to_plain
from setpoint.config.files.read import parse
from setpoint.config.files.write import write_json
from setpoint.config.record.record import fingerprint, minimal_toml, record_files
from setpoint.config.schema.class_info import section_classes
from setpoint.config.schema.field import FieldInfo
from setpoint.config.schema.field import field as declared
from setpoint.config.types.base import FieldType
from setpoint.config.types.compound import (
    AnyOfType,
    FreeType,
    MappingType,
    OptionalType,
    SequenceType,
    TupleType,
)
from setpoint.config.values.origin import COMMAND_LINE, Origin
from setpoint.config.words.errors import SetpointError
from setpoint.config.words.plain_data import PlainScalar, guess
from setpoint.config.words.text import parse_flow
from setpoint.infer.config import Inference
from setpoint.plan.preflight import preflight
from setpoint.sweep.points import Composer, read_command_line, resolve_points
from setpoint.sweep.space import Product
from setpoint.train.config import Job

from ...config.everything import Everything
from .guard import Hang, limited
from .hostile import DRAWS, EDITS, FILES, KEYS, NUMBERS, QUANTITIES, REFERENCES, SOURCES, TEXTS

SECONDS = 2.0
"""Of processor time that a case may take."""
STUCK = 120
"""Of time after which a call into C that never returns ends the process, with a traceback."""
MEMORY = 4 << 30


def _part(name: str, fields: list[str]) -> type[Config]:
    """A root with some of the fields of `Everything`, since small ones are quick."""
    known = Everything.__setpoint__.fields
    made = {
        key: declared(factory=known[key].factory) if known[key].factory else known[key].default
        for key in fields
    }
    annotations = {key: known[key].annotation for key in fields}
    space = {"__module__": Everything.__module__, "__qualname__": name, **made}
    space["__annotations__"] = annotations
    return type(Config)(name, (Config,), space)


_NAMES = list(Everything.__setpoint__.fields)
PARTS = {
    f"part{at}": _part(f"Part{at}", ["whole", *(n for n in _NAMES[at::12] if n != "whole")])
    for at in range(12)
}
LARGE = {"everything": Everything, "job": Job, "inference": Inference}
ROOTS: dict[str, type[Config]] = {**LARGE, **PARTS}
FITTING = {
    "import path": ("math.sqrt", "collections:OrderedDict.fromkeys"),
    "secret": ("env:X", "file:/x"),
    "type = import": ("{type: import, target: collections.OrderedDict, a: 1}", "null"),
    "regular": ("a.*", "(?i)é", "[a-z]+"),
    "a path": ("a/b", "~/x", "é"),
    "in bytes": ("16 MiB", "2 GB", "0", "512"),
    "number format": ("float32", "bf16"),
}
"""Values of types that only few words fit, by what their description says."""
RARE = {"everything": 8, "job": 4, "inference": 2, "sweep": 2, "cli": 1}
KINDS = {**dict.fromkeys(PARTS, 10), **RARE}
"""How often each kind comes."""


@dataclass(frozen=True)
class Case:
    """One configuration, as its layers are given.

    Arguments:
        kind: the root, a sweep, or the command line.
        source: a preset, a file, a folder, or `module:function`; None for the defaults.
        files: formats and texts.
        words: of the command line.
    """

    kind: str
    source: str | None = None
    modifiers: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    program: tuple[tuple[str, Any], ...] = ()
    words: tuple[str, ...] = ()

    def describe(self) -> str:
        """The case as somebody would type it, with the texts of its files before it."""
        lines = [f"# {form}{at}:\n{text!a}" for at, (form, text) in enumerate(self.files)]
        parts = [f"{name!a}={value!a}" for name, value in self.environ]
        parts += ["setpoint", *self.words] if self.words else ["check", f"({self.kind})"]
        parts += [repr(self.source)] if self.source is not None else []
        parts += [f"--with {each!a}" for each in self.modifiers]
        parts += [f"--file {form}{at}" for at, (form, _) in enumerate(self.files)]
        parts += [ascii(flag) for flag in self.flags]
        parts += [f"# then {name!a} = {value!a} in Python" for name, value in self.program]
        return "\n".join([*lines, " ".join(map(str, parts))])


# --- Making cases ---------------------------------------------------------------------------------


@functools.cache
def places(root: type[Config]) -> list[tuple[tuple[str, ...], FieldInfo]]:
    """The paths of a root's fields, in all variants, four levels deep."""
    found: dict[tuple[str, ...], FieldInfo] = {}

    def visit(cls: type[Config], path: tuple[str, ...]) -> None:
        for name, info in cls.__setpoint__.fields.items():
            here = (*path, name)
            found.setdefault(here, info)
            if len(here) < 4:
                listed = _plain(info.type).is_container()
                for inner in section_classes(info.type):
                    visit(inner, (*here, "0") if listed else here)

    visit(root, ())
    return list(found.items())


@functools.cache
def standing(root: type[Config]) -> list[tuple[tuple[str, ...], FieldInfo]]:
    """The paths of a root's fields as they stand by default."""
    return [
        ((*map(str, path), name), info)
        for path, section in sections(root())
        for name, info in type(section).__setpoint__.fields.items()
    ]


def _plain(kind: FieldType) -> FieldType:
    while isinstance(kind, OptionalType):
        kind = kind.inner
    return kind


Place = tuple[str, FieldType | None, FieldInfo | None]
"""A path, the type of what stands there, and its field."""


def _fits(kind: FieldType, info: FieldInfo | None, text: str) -> bool:
    """Whether a type, and a field with its range, take a text."""
    try:
        _ = (info or kind).read(PlainScalar(text), Origin(COMMAND_LINE))
    except SetpointError:
        return section_classes(kind) != []  # a part of it may fit what is there
    return True


class Maker:
    """Makes one case.

    Arguments:
        random: where its choices come from.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.pick = random.choice
        # Of the values, how many are hostile: a case of nothing else is refused at its first word.
        self.hostile = random.choice([0.02, 0.2, 0.5])

    def case(self) -> Case:
        """A case of any kind."""
        kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
        root = ROOTS.get(kind, Job if kind == "cli" else Everything)
        few = self.random.randrange
        case = Case(
            kind,
            files=tuple(self.file(root) for _ in range(few(10) // 8 + few(10) // 8)),
            environ=tuple(self.variable(root) for _ in range(few(10) // 8)),
            flags=tuple(word for _ in range(few(3) + 1) for word in self.flag(root)),
        )
        if kind == "cli":
            return self.command(case)
        if kind == "sweep":
            return replace(case, files=(), flags=(*case.flags, *self.axis(root)))
        if few(4) == 0:
            made = (self.path(root) for _ in range(few(2) + 1))
            plain = (
                (p, self.data(few(3)) if few(2) else _parsed(self.text(k, i))) for p, k, i in made
            )
            pairs = tuple(plain)
            case = replace(case, program=pairs)
        if few(20) == 0:
            case = replace(case, source=self.source())
        elif kind == "job" and few(2):
            case = replace(case, source="tiny")
        elif kind == "inference":  # which needs something to do
            needed = ("--weights.path=x", "--export.path=y")
            case = replace(case, flags=(*needed, *case.flags))
        if few(40) == 0:
            case = replace(case, modifiers=(self.pick([*TEXTS, *SOURCES]),))
        return case

    def source(self) -> str:
        """Something to start from; nothing that names a function that does anything."""
        return self.pick([*SOURCES, *TEXTS])

    def path(self, root: type[Config]) -> Place:
        """A field, mostly; an item of it, sometimes; nonsense, seldom."""
        if self.random.random() < 0.1 * self.hostile:
            return self.pick([*KEYS, *TEXTS]), None, None
        path, info = self.pick((standing if self.random.random() < 0.85 else places)(root))
        kind = info.type
        parts, plain = list(path), _plain(kind)
        chance = self.random.random() * 0.5 / self.hostile
        container = isinstance(plain, SequenceType | TupleType | MappingType | FreeType)
        if container and self.random.random() < 0.3:
            parts.append(self.pick([*EDITS, *KEYS] if chance < 1 else EDITS))
            if chance < 0.15:
                parts.append(self.pick(KEYS))
            inner = plain.parts
            return ".".join(parts), inner[0] if inner else None, None
        if chance < 0.03:
            parts.append(self.pick(KEYS))
        elif chance < 0.06:
            parts[self.random.randrange(len(parts))] = self.pick(KEYS)
        elif chance < 0.1:
            at = self.random.randrange(len(parts))
            parts[at] = parts[at][:-1] if chance < 0.08 else parts[at].upper()
        return ".".join(parts), kind, info

    def text(self, kind: FieldType | None, info: FieldInfo | None = None) -> str:
        """A value as a text, half of the time one that may fit."""
        chance = self.random.random()
        if kind is not None and chance >= self.hostile:
            for _ in range(4):
                fitting = self.fitting(_plain(kind))
                if fitting is not None and _fits(kind, info, fitting):
                    return fitting
        if self.random.random() < 0.2:
            return self.pick(NUMBERS) + self.pick(["", "", " steps", "e5", "\0", " "])
        return self.pick(self.pick([NUMBERS, TEXTS, TEXTS, REFERENCES, QUANTITIES]))

    def fitting(self, kind: FieldType) -> str | None:
        """A value that a type may take."""
        if isinstance(kind, AnyOfType):
            return self.fitting(_plain(self.pick(kind.parts)))
        choices = kind.candidates()
        if choices:
            return self.pick(choices)
        words = kind.describe()
        if kind.is_container():
            items = [self.text(inner) for inner in kind.parts[:3]]
            return (
                f"{{a: {items[0]}}}" if isinstance(kind, MappingType) else f"[{', '.join(items)}]"
            )
        if "true" in words:
            return self.pick(["true", "false"])
        if "number" in words:
            other = self.pick([0, "${whole}", "${part.size * 2}"])
            whole = [1, 2, 3, 8, 64, 100, 10**6, 10**12, other]
            return str(self.pick(whole if "whole" in words else [*whole, 0.1, 1e-5, 1e6, 0.9]))
        for sign, fits in FITTING.items():
            if sign in words:
                return self.pick(fits)
        if "text" in words:
            return self.pick(["a", "b c", "null", "1", "x" * 30, "é", "$${a}", "a/b"])
        return self.pick(QUANTITIES) if "steps" in words or "MiB" in words else None

    def flag(self, root: type[Config]) -> list[str]:
        """One override, in one of its forms."""
        path, kind, info = self.path(root)
        text = self.text(kind, info)
        form = self.random.randrange(20 if self.random.random() < 0.1 else 18)
        if form < 8:
            return [f"--{path}", text]
        if form < 15:
            return [f"--{path}={text}"]
        if form < 18:
            return [f"{path}={text}"]
        if form == 18:
            return [f"--{path}"]
        return [self.pick([text, f"--no-{path}", f"--{path}", "--", "-", "="])]

    def axis(self, root: type[Config]) -> list[str]:
        """An override of several values."""
        path, kind, info = self.path(root)
        values = [self.text(kind, info) for _ in range(self.random.randint(1, 3))]
        return [f"--{path}={','.join(values)}"]

    def variable(self, root: type[Config]) -> tuple[str, str]:
        """One variable."""
        path, kind, info = self.path(root)
        name = path.replace(".", self.pick(["__", "__", "__", "_"]))
        name = self.pick([str.upper, str.upper, str])(name)
        prefix = self.pick(["SETPOINT__"] * 8 + ["setpoint__", "SETPOINT_"])
        return prefix + name, self.text(kind, info)

    def data(self, depth: int = 2) -> Any:
        """A value as a file or a program has it."""
        chance = self.random.random()
        if depth and chance < 0.2:
            return [self.data(depth - 1) for _ in range(self.random.randrange(4))]
        if depth and chance < 0.4:
            keys = (self.pick(KEYS) for _ in range(self.random.randrange(4)))
            return {key: self.data(depth - 1) for key in keys}
        if chance < 0.42:
            deep: Any = 1
            for _ in range(self.random.choice([3, 40, 63, 64, 65, 200])):
                deep = self.pick([[deep], {"a": deep}])
            return deep
        if chance < 0.7:
            numbers = (0, 1, -1, 3, 2**31, 2**63, 2**64, 10**30, 10**400)
            numbers = (*numbers, 0.0, -0.0, 0.5, 1e18, 1e308)
            others = (float("inf"), float("-inf"), float("nan"), 5e-324, True, False, None)
            return self.pick([*numbers, *others])
        return self.text(None)

    def file(self, root: type[Config]) -> tuple[str, str]:
        """A file, whose text is sometimes damaged."""
        values: dict[str, Any] = {}
        for _ in range(self.random.randrange(5)):
            path, kind, info = self.path(root)
            parts, node = path.split("."), values
            for part in parts[:-1]:
                inner = node.setdefault(part, {})
                node = inner if isinstance(inner, dict) else node
            fits = self.random.random() > 0.6 * self.hostile
            node[parts[-1]] = self.text(kind, info) if fits else self.data()
            if fits:
                node[parts[-1]] = _parsed(node[parts[-1]])
        if self.random.random() < 0.2 * self.hostile:
            key = self.pick(["extends", "setpoint", "$schema", "sweep", "tag", "silence"])
            values[key] = self.pick([self.source(), [self.source()], {"schema": 1}, self.data()])
        form = self.pick(["json", "json", "yaml", "toml"])
        text = _written(form, values)
        if text and self.random.random() < 0.1 * self.hostile:
            at = self.random.randrange(len(text))
            piece = self.pick([*TEXTS, *NUMBERS])[:40]
            text = text[:at] + piece + text[at + self.random.randrange(3) :]
        return form, text

    def table(self) -> dict[str, Any]:
        """The table of a sweep, as a file has it."""
        count = self.pick([1, 2, 3, "1e18", 10**30, -1, *NUMBERS])
        draws = {self.path(Job)[0]: self.pick(DRAWS) for _ in range(2)}
        axes = {self.path(Job)[0]: [self.text(None), self.data(1)] for _ in range(2)}
        parts: dict[str, Any] = {
            "grid": axes,
            "zip": {path: self.data(1) if count == 3 else [1, 2] for path in axes},
            "points": [{path: values[0]} for path, values in axes.items()],
            "random": {"count": count, "seed": self.pick([0, count]), "axes": draws},
            "product": [{"grid": axes}, {"random": {"count": 2, "axes": draws}}],
            "chain": [{"grid": axes}, self.data()],
            "search": {"trials": count, "objective": self.pick(TEXTS), "axes": draws},
            self.pick(KEYS): self.data(),
        }
        return {key: parts[key] for key in self.random.sample(sorted(parts), 2)}

    def command(self, case: Case) -> Case:
        """A call of the program, with what a command line and an environment can hold."""
        names = ["check", "check", "show", "why", "diff", "fingerprint", "list", "schedule"]
        name = self.pick(names)
        name = self.pick([name, name, name, "sweep"])
        hostile = self.random.random() < self.hostile
        plain = ["tiny", "exp.toml" if name == "sweep" else "plain.toml"]
        source = self.pick([*SOURCES, *TEXTS] if hostile else plain)
        files: tuple[tuple[str, str], ...] = ()
        if not hostile and self.random.random() < 0.4:
            form, text = self.file(Job)
            if name == "sweep":
                form, text = "json", _written("json", {"extends": "tiny", "sweep": self.table()})
            files, source = ((form, text),), f"case0.{form}"
        words = [name, *([self.path(Job)[0]] if name == "why" else []), source]
        words += ["tiny"] if name == "diff" else []
        words += ["--dry-run"] if name == "sweep" else []
        for option in ("--with", "--file", "--import", "--world-size"):
            if self.random.random() < 0.2 * self.hostile:
                words += [option, self.pick([*SOURCES, *TEXTS, *NUMBERS])]
        if self.random.random() < 0.1:
            words.append(self.pick(["--json", "--plan", "--help", "--all", "--list"]))
        words += case.flags
        words += self.axis(Job) if name == "sweep" else []
        return Case("cli", files=files, words=tuple(map(_as_word, words)), environ=case.environ)


def _parsed(text: str) -> Any:
    """A text as the value that it is in a file."""
    with contextlib.suppress(SetpointError):
        value = parse_flow(text) if text[:1] in ("[", "{") else guess(PlainScalar(text))
        return None if value == "null" else value
    return text


def _as_word(text: str) -> str:
    """A text as the system can hand it over: without zero bytes, and with bytes for surrogates."""
    data = text.replace("\0", "").encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "surrogateescape")


def _written(form: str, values: dict[str, Any]) -> str:
    """Values in a format; in JSON, which YAML reads too, where the writer cannot."""
    from setpoint.config.files.write import write_toml, write_yaml

    if form != "json":
        with contextlib.suppress(Exception):
            return (write_toml if form == "toml" else write_yaml)(values)
    return json.dumps(values, default=str)


def case_of(seed: int, number: int) -> Case:
    """The case of a seed and a number."""
    return Maker(Random(f"{seed}:{number}")).case()


# --- Trying them ----------------------------------------------------------------------------------


def attempt(case: Case, count: Counter[str] | None = None) -> None:
    """Try a case.

    Arguments:
        case: the case.
        count: of what came of it.

    Raises:
        BaseException: anything but an error in words.
    """
    try:
        outcome = _command(case) if case.kind == "cli" else _resolve(case)
    except SetpointError as error:
        outcome = "refused"
        text = str(error)
        assert text.strip(), "an error without words"
        assert all(sign.isprintable() or sign == "\n" for sign in text), f"unprintable: {text!a}"
    if count is not None:
        count[f"{case.kind} {outcome}"] += 1


def _resolve(case: Case) -> str:
    root = ROOTS.get(case.kind, Everything)
    if case.kind == "sweep":
        line = read_command_line(root, "", case.modifiers, case.flags)
        composer = Composer(lambda _, modifiers, __: _compose(case, root, modifiers), line)
        resolve_points(Product(line.axes), composer, 20)
        return "accepted"
    config = _compose(case, root, case.modifiers).resolve()
    if isinstance(config, Job):
        preflight(config, set())
    if _rarely(case):
        complete = write_json(to_plain(config))
        minimal = parse(minimal_toml(config), "toml", "minimal.toml")
        for document in (minimal, parse(complete, "json", "complete.json")):
            again = compose(root, files=[document]).resolve()
            what = f"{document.name} is another configuration"
            assert fingerprint(config) == fingerprint(again) and config == again, what
        record_files(config)
    return "accepted"


def _rarely(case: Case) -> bool:
    return sum(map(len, case.flags)) % 4 == 0


def _compose(case: Case, root: type[Config], modifiers: tuple[str, ...]) -> Composition[Any]:
    documents = []
    for at, (form, text) in enumerate(case.files):
        documents.append(parse(text, form, f"{form}{at}"))  # type: ignore[arg-type]
    return compose(
        root,
        case.source,
        modifiers=modifiers,
        files=documents,
        environ=dict(case.environ),
        flags=() if case.kind == "sweep" else case.flags,
        program=dict(case.program),
    )


def _command(case: Case) -> str:
    environ = {_as_word(k).replace("=", ""): _as_word(v) for k, v in case.environ}
    for at, (form, text) in enumerate(case.files):
        Path(f"case{at}.{form}").write_text(text, encoding="utf-8", errors="surrogatepass")
    kept, streams = dict(os.environ), (sys.stdout, sys.stderr)
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    os.environ.update(environ)
    sys.stdout = sys.stderr = output
    try:
        status = command_line(case.words)
        assert status in (0, 1, 2), status
    except SystemExit as error:
        raise AssertionError(f"ends the process: {error}") from error
    finally:
        sys.stdout, sys.stderr = streams
        os.environ.clear()
        os.environ.update(kept)
    return f"status {status}"


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Work in a folder with a few files, and let what is first used be imported."""
    import setpoint.presets  # noqa: F401 - registers the presets

    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        (Path(folder) / "bin.json").write_bytes(bytes(range(256)))
        (Path(folder) / "dir.toml").mkdir()
        (Path(folder) / "dir").mkdir()
        os.chdir(folder)
        try:
            with contextlib.suppress(ImportError):
                import torch  # noqa: F401 - which a value may call for, and takes seconds
            for words in (["check", "tiny", "--plan"], ["schedule", "tiny"], ["list", "presets"]):
                _command(Case("cli", words=tuple(words)))
            yield
        finally:
            os.chdir(here)


def failure(case: Case, count: Counter[str] | None = None) -> tuple[str, BaseException] | None:
    """What goes wrong with a case: a name of the fault, by its place, and the error; or None."""
    try:
        with limited(SECONDS):
            attempt(case, count)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if f"{os.sep}src{os.sep}setpoint" in frame.filename]
        at = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
        what = str(error)[:60] if isinstance(error, AssertionError) else ""
        # Where a loop was when its time was over is chance.
        return f"{type(error).__name__} {'' if isinstance(error, Hang) else at} {what}", error
    return None


@dataclass
class Run:
    """The outcomes of many cases, and the first failure of each name."""

    count: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)


def fuzz(seed: int, first: int, cases: int) -> Run:
    """Try many cases from the given number on."""
    run = Run()
    with prepared():
        for number in range(first, first + cases):
            if number % 500 == 0:
                faulthandler.dump_traceback_later(STUCK, exit=True)
            case = case_of(seed, number)
            found = failure(case, run.count)
            if found is not None and found[0] not in run.failures:
                name, error = found
                lines = "".join(traceback.format_exception(error)[-6:])
                again = f"python -m {__spec__.name} 1 {seed} {number}"
                run.failures[name] = f"{again}\n{case.describe()}\n{lines}"
        faulthandler.cancel_dump_traceback_later()
    return run


def main(cases: int = 10_000, seed: int = 0, first: int = 0) -> int:
    """Try cases; 1 if one of them neither resolved nor was refused in words."""
    gc.freeze()
    gc.set_threshold(20_000)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    run = fuzz(seed, first, cases)
    for name, times in sorted(run.count.items()):
        print(f"  {times:8} {name}")
    for name, text in run.failures.items():
        print(ascii(f"FOUND {name}\n{text}")[1:-1].replace("\\n", "\n"))
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
