"""The house rules that a program can check: docstrings, no gaps, tests that mirror packages."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from setpoint.config import IDENTITY, Config, Invalid, Role
from setpoint.config.schema.field import FieldInfo
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.errors import DeclarationError
from setpoint.config.words.plain_data import MISSING
from setpoint.editor_schema.help import class_help, field_help

if TYPE_CHECKING:
    from .conftest import SourceFile

TESTS = Path(__file__).resolve().parent

# Folders of tests that mirror no package, and what they are about.
CROSS_CUTTING = {
    "acceptance": "what Setpoint promises, and what users of other systems suffer from",
    "coverage": "what Setpoint answers to the keys of four other systems",
    "docs": "what the documentation shows is true",
    "recipes": "whole recipes of other systems check at their size and train in small",
    "long": "no input ends in a traceback or a hang, and disturbed runs go on as undisturbed ones",
    "typing": "what type checkers see of a user's project",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """One class or function with the class it stands in.

    Arguments:
        node: the statement.
        name: its name within the module, `Class.method`.
        owner: the class around it, or None.
    """

    node: ast.ClassDef | Function
    name: str
    owner: ast.ClassDef | None


def public_definitions(
    body: list[ast.stmt], owner: ast.ClassDef | None = None, prefix: str = ""
) -> Iterator[Definition]:
    """The classes, functions and methods that others may use; nothing inside functions."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from public_definitions([*node.body, *node.orelse], owner, prefix)
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
        if decorators & {"overload", "setter", "deleter"}:
            continue
        yield Definition(node, prefix + node.name, owner)
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, node, f"{prefix}{node.name}.")


def documented_above(
    owner: ast.ClassDef, method: str, classes: dict[str, list[ast.ClassDef]]
) -> bool:
    """Whether a base class of ours documents the method, or a builtin one has it."""
    for base in owner.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if hasattr(getattr(builtins, name, None), method):
            return True
        for above in classes.get(name, []):
            for node in above.body:
                if isinstance(node, Function) and node.name == method and ast.get_docstring(node):
                    return True
            if above is not owner and documented_above(above, method, classes):
                return True
    return False


# Errors that a user can meet; who raises one says when.
ERRORS = (
    "SetpointError", "RunError", "Invalid", "ConfigError", "DeclarationError", "UserCodeError",
)  # fmt: skip


def refuses_arguments(file: SourceFile, node: Function) -> bool:
    """True for the command line, any function of which may refuse what was typed."""
    return "/setpoint/cli/" in str(file.path) and file.path.name != "script.py"


def missing_part(node: Function) -> str:
    """What a docstring lacks: that the function raises what a user can meet."""
    text = ast.get_docstring(node) or ""
    return "Raises" if set(ERRORS) & set(raised_by(node)) and "Raises:" not in text else ""


def raised_by(node: ast.AST) -> Iterator[str]:
    """The exceptions that a function raises itself and does not catch."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield ast.unparse(node.exc.func)
    caught = node.body if isinstance(node, ast.Try) and node.handlers else []
    for child in ast.iter_child_nodes(node):
        if child not in caught:
            yield from raised_by(child)


def test_public_names_have_docstrings(source_files: dict[str, SourceFile]) -> None:
    classes: dict[str, list[ast.ClassDef]] = {}
    for file in source_files.values():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    problems: list[str] = []
    for file in source_files.values():
        if not ast.get_docstring(file.tree) and file.text.strip():
            problems.append(f"{file.path}:1: the module has no docstring")
        for node, name, owner in public_definitions(file.tree.body):
            if owner and documented_above(owner, node.name, classes):
                continue
            if not ast.get_docstring(node):
                problems.append(f"{file.path}:{node.lineno}: {name} has no docstring")
            elif isinstance(node, Function) and not refuses_arguments(file, node):
                missing = missing_part(node)
                if missing:
                    problems.append(f"{file.path}:{node.lineno}: {name} lacks {missing}")
    assert not problems, "\n".join(problems)


def test_no_error_is_swallowed(source_files: dict[str, SourceFile]) -> None:
    problems: list[str] = []
    for file in source_files.values():
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            # A docstring or `...` is as empty as `pass`.
            if all(
                isinstance(inner, ast.Pass)
                or (isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant))
                for inner in node.body
            ):
                kind = ast.unparse(node.type) if node.type else "everything"
                problems.append(f"{file.path}:{node.lineno}: swallows {kind}")
    assert not problems, "\n".join(problems)


def test_nothing_is_left_to_do(source_files: dict[str, SourceFile]) -> None:
    promise = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    problems = [
        f"{file.path}:{number}: {line.strip()}"
        for file in source_files.values()
        for number, line in enumerate(file.text.splitlines(), start=1)
        if promise.search(line)
    ]
    assert not problems, "\n".join(problems)


def test_tests_mirror_the_packages(source_files: dict[str, SourceFile]) -> None:
    """`tests/a/b` tests the package or module `setpoint.a.b`; what is in no folder the whole."""
    packages = {name.rpartition(".")[0] for name in source_files} | {"setpoint", *source_files}
    problems: list[str] = []
    for folder in sorted({path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}):
        if folder.parts[:1] and folder.parts[0] in CROSS_CUTTING:
            continue
        package = ".".join(("setpoint", *folder.parts))
        if package not in packages:
            problems.append(f"tests/{folder} mirrors no package: there is no {package}")
    assert not problems, "\n".join(problems)


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    # pytest leaves out folders named `build` by itself.
    patterns = pytestconfig.getini("norecursedirs")
    folders = [path.parent.name for path in TESTS.rglob("test_*.py")]
    assert not [name for name in folders for each in patterns if fnmatch(name, each)]


def config_classes(source_files: dict[str, SourceFile]) -> list[type[Config]]:
    """The package's config classes, from all modules that define any."""
    for name, file in source_files.items():
        if name.startswith("setpoint.config"):
            continue
        if any(
            isinstance(node, ast.ClassDef)
            and any(re.search(r"Config\b", ast.unparse(base)) for base in node.bases)
            for node in ast.walk(file.tree)
        ):
            importlib.import_module(name)
    waiting: list[type[Config]] = [Config]
    found: dict[str, type[Config]] = {}
    while waiting:
        for cls in waiting.pop().__subclasses__():
            waiting.append(cls)
            # A imported component with arguments has a class of its own, which nobody has written.
            if cls.__module__.startswith("setpoint.") and cls.__setpoint__.cls is cls:
                found[f"{cls.__module__}:{cls.__qualname__}"] = cls
    return [found[name] for name in sorted(found)]


def field_problems(cls: type[Config], name: str, info: FieldInfo) -> Iterator[str]:
    """What is wrong with one field as it is declared."""
    if not field_help(cls, name):
        yield "has no help: write a docstring under it"
    if not isinstance(info.role, Role):
        yield f"has no role: {info.role!r}"
    try:
        default = info.initial()
        if default is MISSING:
            return
        again = info.read(info.type.dump(default), Origin(PROGRAM, "test"))
    except (DeclarationError, Invalid) as error:
        yield f"does not read its own default: {error}"
        return
    if again != default:
        yield f"reads its default {default!r} as {again!r}"


def test_config_fields_are_declared_in_full(source_files: dict[str, SourceFile]) -> None:
    problems: list[str] = []
    classes = config_classes(source_files)
    assert classes, "no config class was found"
    for cls in classes:
        where = f"{cls.__module__}:{cls.__qualname__}"
        if not class_help(cls):
            problems.append(f"{where} has no docstring")
        for name, info in cls.__setpoint__.fields.items():
            problems += [f"{where}.{name} {problem}" for problem in field_problems(cls, name, info)]
    assert not problems, "\n".join(problems)


def test_owners_exist(source_files: dict[str, SourceFile]) -> None:
    """Owners are texts, so nothing else notices when one is renamed."""
    problems: list[str] = []
    for cls in config_classes(source_files):
        owner = cls.__setpoint__.owner
        if owner is None:
            continue
        module, _, name = owner.partition(":")
        file = source_files.get(module)
        defined = {getattr(n, "name", None) for n in file.tree.body} if file else set[str]()
        if name.partition(".")[0] not in defined:
            problems.append(f"{cls.__module__}:{cls.__qualname__} names {owner}")
    assert not problems, "\n".join(problems)


def test_incomplete_fields_are_found() -> None:
    class Section(Config, role=IDENTITY):
        # A default that the field itself would refuse.
        size: int = FieldInfo(default="seven")  # pyright: ignore[reportAssignmentType]

    problems = list(field_problems(Section, "size", Section.__setpoint__.fields["size"]))
    assert len(problems) == 2
    assert "no help" in problems[0]
    assert "does not read its own default" in problems[1]


def test_gaps_in_docstrings_are_found() -> None:
    text = '''
class A(Base):
    def run(self, x: int) -> int:
        """Run."""
        raise Invalid("no")
    def _hidden(self): ...
    def walk(self) -> int:
        """Walk.

        Raises:
            Invalid: where there is no way.
        """
        raise Invalid("no")
def free(): ...
'''
    tree = ast.parse(text)
    found = list(public_definitions(tree.body))
    assert [d.name for d in found] == ["A", "A.run", "A.walk", "free"]
    assert [missing_part(d.node) for d in found[1:] if isinstance(d.node, Function)] == [
        "Raises", "", "",
    ]  # fmt: skip


def test_a_public_class_has_a_name_of_its_own(source_files: dict[str, SourceFile]) -> None:
    places: dict[str, list[str]] = {}
    for file in source_files.values():
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{file.path}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}
