"""What the benchmarks of the kernel compare is the same for all: their pure parts."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.config.compose import compose
from setpoint.config.plain import to_plain
from setpoint.config.walk import leaves

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
NAMES = ("config", "peers", "support")


@pytest.fixture
def tree() -> Iterator[Any]:
    """The module that describes the common tree; the benchmarks are no package of ours."""
    sys.path.insert(0, str(BENCHMARKS))
    import config.tree  # pyright: ignore[reportMissingImports]

    yield config.tree
    sys.path.remove(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
        del sys.modules[name]


def classes(tree: Any, groups: int) -> Any:
    module: Any = types.ModuleType(f"tree_of_{groups}")
    sys.modules[module.__name__] = module
    exec(tree.setpoint_module(groups), vars(module))
    return module.Tree


@pytest.mark.parametrize(("groups", "count"), [(1, 250), (4, 1000)])
def test_the_tree_has_as_many_leaves_as_it_says(tree: Any, groups: int, count: int) -> None:
    root = classes(tree, groups)
    config = compose(root).resolve()
    assert sum(1 for _ in leaves(config)) == count
    assert tree.count_leaves(tree.expected(groups)) == count
    assert tree.count_leaves(tree.file_values(groups)) == 60
    assert len(tree.flag_values(groups)) == 10
    assert to_plain(config) == tree.default_values(groups)


def test_what_is_expected_is_what_setpoint_reads(tree: Any, tmp_path: Path) -> None:
    import config.write_files as files  # pyright: ignore[reportMissingImports]

    for groups in (1, 4):
        file = tmp_path / f"values{groups}.toml"
        file.write_text(files.toml(groups))
        flags = [f"--{path}={files.text(value)}" for path, value in tree.flag_values(groups)]
        config = compose(classes(tree, groups), str(file), flags=flags).resolve()
        assert to_plain(config) == tree.expected(groups) != tree.default_values(groups)


def test_the_files_of_all_sides_hold_the_same(tree: Any) -> None:
    from ruamel.yaml import YAML

    import config.write_files as files  # pyright: ignore[reportMissingImports]

    for groups in (1, 4):
        assert YAML(typ="safe").load(files.yaml(groups)) == tree.file_values(groups)
        for text in (files.hydra(groups), files.jsonargparse(groups)):
            assert YAML(typ="safe").load(text)
        for text in (files.fiddle(groups), files.ml_collections(groups)):
            compile(text, "values.py", "exec")


def test_the_trees_of_the_peers_are_python(tree: Any) -> None:
    import config.programs as programs  # pyright: ignore[reportMissingImports]
    import peers.schema as schema  # pyright: ignore[reportMissingImports]

    sections = schema.sections(classes(tree, 1))
    names = [section.name for section in sections]
    assert len(names) == 12 + 3 * 3 + 1 and names[-1] == "Tree"
    for side in programs.ALL:
        text = side.tree(sections, 1)
        compile(text, side.name, "exec")
        assert not text or all(f"class {name}" in text for name in names), side.name


def test_values_that_differ_are_named(tree: Any) -> None:
    from config.cold import differing  # pyright: ignore[reportMissingImports]

    read = {"a": {"x": 1, "y": [1, 2]}, "b": None}
    assert differing(read, read) == []
    assert differing(read, {"a": {"x": 1.0, "y": [1, 3]}, "c": None}) == ["a.x", "a.y", "c", "b"]
    assert differing({"a": True}, {"a": 1}) == ["a"]
    assert differing([1], [1, 2]) == ["."]
