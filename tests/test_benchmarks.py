"""What the benchmarks compare is the same for all sides: their pure parts."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.config.composition import compose
from setpoint.config.draft.walk import leaves, to_plain
from setpoint.config.files.write import write_toml

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
NAMES = ("config", "harness", "model")


@pytest.fixture
def tree() -> Iterator[Any]:
    """The module that describes the common tree; the benchmarks are not a package of ours."""
    sys.path.insert(0, str(BENCHMARKS))
    import config.tree  # pyright: ignore[reportMissingImports]

    yield config.tree
    sys.path.remove(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
        del sys.modules[name]


def classes(tree: Any) -> Any:
    module: Any = types.ModuleType("tree_of_setpoint")
    sys.modules[module.__name__] = module
    exec(tree.module("setpoint"), vars(module))
    return module.Tree


def test_the_tree_is_what_setpoint_reads(tree: Any, tmp_path: Path) -> None:
    root = classes(tree)
    config = compose(root).resolve()
    assert sum(1 for _ in leaves(config)) == tree.LEAVES == tree.count_leaves(tree.expected())
    assert tree.count_leaves(tree.file_values()) == 60 and len(tree.FLAGS) == 10
    assert to_plain(config) == tree.default_values()
    (tmp_path / "values.toml").write_text(write_toml(tree.file_values()))
    flags = [f"--{path}={value}" for path, value in tree.FLAGS.items()]
    config = compose(root, str(tmp_path / "values.toml"), flags=flags).resolve()
    assert to_plain(config) == tree.expected() != tree.default_values()


def test_programs_of_all_sides_are_written(tree: Any, tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    import config.cold as cold  # pyright: ignore[reportMissingImports]
    from config.sides import SIDES  # pyright: ignore[reportMissingImports]

    for side in SIDES:
        command, flags = cold.write_program(tmp_path, side)
        assert Path(command[1]).is_file() and len(flags) == 10
    for name in tree.HEADS:
        text = (tmp_path / f"tree_{name}.py").read_text()
        compile(text, name, "exec")
        assert text.count("\nclass ") >= 12 + 3 * 3 + 1, name
    values = YAML(typ="safe").load((tmp_path / "values/values.yaml").read_text())
    assert values.pop("defaults")[:2] == ["base", {"s1/item": "scaled"}]
    assert values == tree.file_values()


def test_values_that_differ_are_named(tree: Any) -> None:
    from config.cold import differing  # pyright: ignore[reportMissingImports]

    read = {"a": {"x": 1, "y": [1, 2]}, "b": None}
    assert differing(read, read) == []
    assert differing(read, {"a": {"x": 1.0, "y": [1, 3]}, "c": None}) == ["a.x", "a.y", "c", "b"]
    assert differing({"a": True}, {"a": 1}) == ["a"]
    assert differing([1], [1, 2]) == ["."]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "gemma3"])
def test_the_sides_of_an_architecture_are_one_model(tree: Any, name: str) -> None:
    """Setpoint's, that of transformers and the one in plain PyTorch, forward and backward."""
    import torch

    from model.architectures import sides_of  # pyright: ignore[reportMissingImports]
    from model.bare import Shape  # pyright: ignore[reportMissingImports]

    shape = Shape(50, 32, 4, 4, 4 if name == "gpt2" else 2, 8, 48, 16, 5)
    sides = sides_of(name, shape, torch.device("cpu"))
    # Token 0 is padding to transformers, and learns nothing there.
    tokens = torch.randint(1, 50, (2, 16), generator=torch.Generator().manual_seed(1))
    found = {side: body(tokens) for side, body in sides.bodies.items()}
    gradients: dict[str, torch.Tensor] = {}
    for side, hidden in found.items():
        torch.testing.assert_close(hidden, found["setpoint"], rtol=1e-4, atol=1e-5)
        hidden.square().mean().backward()
        (table, *_) = (p for p in sides.modules[side].parameters() if p.shape == (50, 32))
        assert table.grad is not None
        gradients[side] = table.grad
    assert len(gradients) == 3
    for gradient in gradients.values():
        torch.testing.assert_close(gradient, gradients["setpoint"], rtol=1e-3, atol=1e-5)


def test_the_peak_of_memory_is_what_tensors_take(tree: Any) -> None:
    import torch

    from harness import peak_bytes  # pyright: ignore[reportMissingImports]

    def step() -> None:
        kept = torch.empty(1 << 20)  # 4 MiB
        for _ in range(3):
            torch.empty(1 << 18)  # 1 MiB, given back each time
        del kept

    assert peak_bytes(step, torch.device("cpu")) == 5 << 20


def test_ratios_are_of_neighbouring_turns(tree: Any) -> None:
    import torch

    from harness import (  # pyright: ignore[reportMissingImports]
        Clocks,
        clocks_in_turns,
        misses,
        ratio,
    )

    order: list[str] = []
    sides = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    cpu = torch.device("cpu")
    clocks = clocks_in_turns(sides, 2, cpu, warm=1)
    assert "".join(order) == "baabba"
    assert [len(times) for times in clocks.wall.values()] == [2, 2]
    slow, fast = {"a": [2.0, 4.0], "b": [1.0, 2.0]}, {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert ratio(slow, "a", "b") == (0.5, 0.5, 0.5)
    assert misses(Clocks(slow, slow), "a", "b", 0.6, cpu)
    assert not misses(Clocks(slow, fast), "a", "b", 0.6, cpu)
    assert misses(Clocks(slow, fast), "a", "b", 0.6, torch.device("cuda"))
