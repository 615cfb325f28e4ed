"""Imports go down the layers of the house only, and never in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest

import setpoint.config

from .conftest import ROOT

if TYPE_CHECKING:
    from .conftest import SourceFile

# From the lowest up; packages of one layer stand side by side.
LAYERS = (
    {"version"},
    {"config"},
    {"units"},
    {"editor_schema"},
    {"hub"},
    {"shapes"},
    {"files"},
    {
        "model", "data", "optim", "loss", "parallel", "track", "profile", "precision", "memory",
        "compile", "resilience", "adapter", "cluster", "report",
    },
    {"checkpoint"},
    {"train", "infer"},
    {"ops"},
    {"plan"},
    {"sweep"},
    {"runs"},
    {"presets"},
    {"interop"},
    {"api"},
    {"cli"},
)  # fmt: skip
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}

# The packages of the kernel, each of which uses only those before it. What stands beside them puts
# them together.
KERNEL = (
    "words", "values", "files", "types", "schema", "migrations", "draft", "component_sections",
    "layers", "resolving", "record", "other_names", "composition",
)  # fmt: skip

# The kernel and its clients, in which no function hides an import of our own from a reader, but for
# the readers and writers of formats, each of which brings a parser, and what few compositions need.
CLEAN = {"config", "units", "editor_schema"}
LATER = {
    ("config.composition", "config.layers.flags"),
    ("config.composition", "config.other_names"),
    ("config.composition", "config.record.record"),
    ("config.draft.hints", "config.migrations"),
    ("config.files.read", "config.files.json"),
    ("config.files.read", "config.files.toml"),
    ("config.files.read", "config.files.yaml"),
    ("config.layers.extends", "config.migrations"),
    ("config.record.record", "config.files.write"),
    ("config.record.record", "config.migrations"),
}

# What one training needs; it knows no operations of runs, planner, or files of other frameworks.
CORE = set().union(*LAYERS[: next(n for n, layer in enumerate(LAYERS) if "train" in layer) + 1])
ADD_ONS = {"ops", "plan", "interop"}

# What the root offers to users.
OFFERED = {"config", "units", "editor_schema", "api", "version"}

# Of a package beside it, a module may import `config` only. What else is allowed, and why:
# (importing module, imported module) -> reason.
ALLOWED: dict[tuple[str, str], str] = {
    # The root's functions are imported when they are first used.
    ("setpoint", "setpoint.cli.script"): "`sp.run` and `sp.load`",
    ("setpoint", "setpoint.train.run"): "`sp.train`",
    ("setpoint", "setpoint.infer.inference"): "`sp.infer`",
    ("setpoint", "setpoint.plan.layouts"): "`sp.plan`",
    ("setpoint", "setpoint.sweep.run_sweep"): "`sp.sweep`",
    ("setpoint.infer", "setpoint.train"): "both load torch, and set up its threads first",
    # The models of runs are among those that can be loaded.
    ("setpoint.model.pretrained.locate", "setpoint.train.config"): "the record of a run is a job's",
    **{
        ("setpoint.model.pretrained.locate", f"setpoint.checkpoint.{name}"): "a run's checkpoint"
        for name in ("manifest", "places")
    },
    **{
        ("setpoint.model.pretrained.load", f"setpoint.checkpoint.{name}"): "the weights of a run"
        for name in ("loading", "manifest")
    },
}


class Import(NamedTuple):
    """One module named by one import statement.

    Arguments:
        module: the imported module, or the module and a name in it.
        line: where.
        at_start: whether it runs when the importing module is imported.
        inside: whether it stands in a function.
    """

    module: str
    line: int
    at_start: bool
    inside: bool = False


@cache
def imports_of(tree: ast.AST, package: str) -> tuple[Import, ...]:
    """All imports of a file, those inside functions included."""
    return tuple(_imports(tree, package, at_start=True, inside=False))


def _imports(node: ast.AST, package: str, at_start: bool, inside: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, at_start, inside)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            parents = parts[: len(parts) - node.level + 1]
            base = ".".join([*parents, base] if base else parents)
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, at_start, inside)
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            yield from _imports(child, package, False, inside)
        for child in node.orelse:
            yield from _imports(child, package, at_start, inside)
    else:
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, package, at_start and not later, inside or later)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def module_of(name: str, modules: Collection[str]) -> str | None:
    """The module of ours that an import names, or None for a foreign one."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def layer_problem(importer: str, imported: str) -> str | None:
    """Why one module of ours may not import another, or None if it may."""
    source = importer.split(".")[1:2]
    target = imported.split(".")[1:2]
    # `setpoint` itself and `setpoint.__main__` are not packages of the house: the first is what
    # everybody may import and sees the kernel only, the second starts the command line.
    above = source[0] if source else ""
    below = target[0] if target else ""
    if below == "" or above == below or above == "__main__" or (importer, imported) in ALLOWED:
        return None
    if above == "":
        return None if below in OFFERED else f"the root imports {sorted(OFFERED)} only"
    if RANK[below] < RANK[above]:
        return None
    if RANK[below] > RANK[above]:
        return f"{below} lies above {above}"
    if imported.startswith(f"setpoint.{below}.") and imported.endswith(".config"):
        return None
    return f"{below} stands beside {above}, so only its config modules may be imported"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node, and nodes that name themselves."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(graph[node])
        reach[start] = seen
    found = {
        tuple(sorted(other for other in reach[node] if node in reach[other]))
        for node in graph
        if node in reach[node]
    }
    return [list(component) for component in sorted(found)]


def kernel_floor(module: str) -> int | None:
    """The place of a module of the kernel among its packages; None for any other module."""
    parts = module.split(".")
    return KERNEL.index(parts[2]) if parts[:2] == ["setpoint", "config"] and parts[2:] else None


def imports_inside(
    files: dict[str, SourceFile], packages: Collection[str]
) -> Iterator[tuple[str, str, Import]]:
    """All imports between modules of some packages, in functions and for type checkers, too."""
    for name, file in files.items():
        for found in imports_of(file.tree, file.package):
            imported = module_of(found.module, files)
            if imported is None or "." not in name or imported == name:
                continue
            if {each.split(".")[1] for each in (name, imported) if "." in each} <= set(packages):
                yield name, imported, found


def test_the_kernel_goes_one_way(source_files: dict[str, SourceFile]) -> None:
    problems = [
        f"{name}:{found.line}: imports {imported}, which lies above it"
        for name, imported, found in imports_inside(source_files, {"config"})
        if (here := kernel_floor(name)) is not None and here < (kernel_floor(imported) or 0)
    ]
    assert not problems, "\n".join(problems)


def test_imports_inside_functions_are_few(source_files: dict[str, SourceFile]) -> None:
    found = {
        (name, imported)
        for name, imported, one in imports_inside(source_files, CLEAN)
        if one.inside
    }
    assert found == {(f"setpoint.{a}", f"setpoint.{b}") for a, b in LATER}


def test_each_package_has_a_layer(source_files: dict[str, SourceFile]) -> None:
    packages = {
        name.split(".")[1]
        for name, file in source_files.items()
        if "." in name and (name.count(".") > 1 or file.path.name == "__init__.py")
    }
    assert packages <= RANK.keys(), f"no layer: {sorted(packages - RANK.keys())}"


def test_imports_go_down_only(source_files: dict[str, SourceFile]) -> None:
    problems: list[str] = []
    for name, file in source_files.items():
        for found in imports_of(file.tree, file.package):
            imported = module_of(found.module, source_files)
            problem = layer_problem(name, imported) if imported else None
            if problem:
                problems.append(f"{file.path}:{found.line}: imports {imported}: {problem}")
    assert not problems, "\n".join(problems)


def test_one_place_to_import_from(source_files: dict[str, SourceFile]) -> None:
    """What `setpoint.config` offers is imported from there, the rest by its module."""
    offered = set(setpoint.config.__all__)
    packages: dict[str, set[str]] = {name: set() for name in offered}
    problems: list[str] = []
    for name, file in source_files.items():
        for found in imports_of(file.tree, file.package):
            home, _, exported = found.module.rpartition(".")
            if exported not in offered or name.startswith("setpoint.config"):
                continue
            if home == "setpoint.config":
                packages[exported].add(name.split(".")[1] if "." in name else "")
            elif home.startswith("setpoint.config."):
                problems.append(f"{file.path}:{found.line}: import {exported} from setpoint.config")
    assert not problems, "\n".join(problems)
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    documented = re.findall(r"\w+", " ".join(re.findall(r"setpoint\.config import (.*)", pages)))
    few = [name for name, users in packages.items() if len(users) < 3 and "" not in users]
    assert set(few) <= set(documented), "fewer than three packages and no user import these"


def test_the_core_imports_no_add_on(source_files: dict[str, SourceFile]) -> None:
    problems = [
        f"{name}:{found.line}: imports {imported}"
        for name, imported, found in imports_inside(source_files, CORE | ADD_ONS)
        if name.split(".")[1] in CORE and set(imported.split(".")[1:2]) & ADD_ONS
    ]
    assert not problems, "\n".join(problems)
    assert not CORE & ADD_ONS


def test_allowed_imports_are_needed(source_files: dict[str, SourceFile]) -> None:
    for (importer, imported), reason in ALLOWED.items():
        file = source_files[importer]
        names = {module_of(f.module, source_files) for f in imports_of(file.tree, file.package)}
        assert imported in names, f"{importer} no longer imports {imported}"
        assert reason, f"{importer} imports {imported} without a reason"


def test_no_circles(source_files: dict[str, SourceFile]) -> None:
    """All imports count: those of functions and those for type checkers, too."""
    graph: dict[str, set[str]] = {name: set() for name in source_files}
    for name, file in source_files.items():
        for found in imports_of(file.tree, file.package):
            imported = module_of(found.module, source_files)
            if imported is not None and imported != name:
                graph[name].add(imported)
    assert not circles(graph)


def test_no_circles_through_packages(source_files: dict[str, SourceFile]) -> None:
    """What importing a module imports, with the packages around it, does not lead back to it."""
    graph: dict[str, set[str]] = {name: set() for name in source_files}
    for name, file in source_files.items():
        for found in imports_of(file.tree, file.package):
            imported = module_of(found.module, source_files)
            if imported is None or not found.at_start:
                continue
            graph[name].add(imported)
            # The packages around a module are imported before it; those around both are there.
            parent = imported.rpartition(".")[0]
            while parent and not f"{name}.".startswith(f"{parent}."):
                graph[name].add(parent)
                parent = parent.rpartition(".")[0]
        # `from . import sibling` names the package as well as the sibling, and is not a circle.
        graph[name].discard(name)
    assert not circles(graph)


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("setpoint.cli.train", "setpoint.train.loop", True),
        ("setpoint.train.loop", "setpoint.cli.train", False),
        ("setpoint.config.draft.config", "setpoint.model.config", False),
        ("setpoint.model.transformer", "setpoint.model.rope", True),
        ("setpoint.model.transformer", "setpoint.data.config", True),
        ("setpoint.model.transformer", "setpoint.data.loader", False),
        ("setpoint", "setpoint.config", True),
        ("setpoint", "setpoint.train.loop", False),
        ("setpoint.cli.main", "setpoint", True),
        ("setpoint.__main__", "setpoint.cli.main", True),
    ],
)
def test_the_rule(importer: str, imported: str, allowed: bool) -> None:
    assert (layer_problem(importer, imported) is None) == allowed


def test_imports_are_found() -> None:
    text = """
import os
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .c import D
else:
    from ..e import F
try:
    import setpoint.g
except ImportError:
    pass
class H:
    import i
    def j(self):
        from . import k
"""
    found = {(i.module, i.at_start) for i in imports_of(ast.parse(text), "setpoint.b")}
    assert found == {
        ("os", True), ("typing.TYPE_CHECKING", True), ("setpoint.b.c.D", False),
        ("setpoint.e.F", True), ("setpoint.g", True), ("i", True), ("setpoint.b.k", False),
    }  # fmt: skip


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]
