"""What the benchmarks compare is the same for all sides: their pure parts; the page of results."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from setpoint.config.composition import compose
from setpoint.config.draft.walk import leaves, to_plain
from setpoint.config.files.write import write_toml

from .conftest import BENCHMARKS

PAGE = BENCHMARKS.parent / "docs/benchmarks.md"
# What has a table of its own.
ELSEWHERE = {"train.memory", "plan.published"}


@pytest.fixture
def tree(load: Any) -> Any:
    """The module that describes the common tree."""
    return load("config.tree")


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


def test_programs_of_all_sides_are_written(load: Any, tree: Any, tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    cold = load("config.cold")
    for side in load("config.sides").SIDES:
        command, flags = cold.write_program(tmp_path, side)
        assert Path(command[1]).is_file() and len(flags) == 10
    for name in tree.HEADS:
        text = (tmp_path / f"tree_{name}.py").read_text()
        compile(text, name, "exec")
        assert text.count("\nclass ") >= 12 + 3 * 3 + 1, name
    values = YAML(typ="safe").load((tmp_path / "values/values.yaml").read_text())
    assert values.pop("defaults")[:2] == ["base", {"s1/item": "scaled"}]
    assert values == tree.file_values()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_the_sides_of_an_architecture_are_one_model(load: Any, name: str) -> None:
    """Setpoint's, that of transformers and the one in plain PyTorch, forward and backward."""
    import torch

    shape = load("model.bare").Shape(50, 32, 4, 4, 2, 8, 48, 16, 5)
    sides, _ = load("model.architectures").sides_of(name, shape, torch.device("cpu"))
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


def test_the_peak_of_memory_is_what_tensors_take(load: Any) -> None:
    import torch

    def step() -> None:
        kept = torch.empty(1 << 20)  # 4 MiB
        for _ in range(3):
            torch.empty(1 << 18)  # 1 MiB, given back each time
        del kept

    assert load("harness").peak_bytes(step, torch.device("cpu")) == 5 << 20


def test_ratios_are_of_neighbouring_turns(load: Any) -> None:
    import torch

    harness = load("harness")
    Clocks, misses = harness.Clocks, harness.misses
    order: list[str] = []
    sides = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    cpu = torch.device("cpu")
    clocks = harness.clocks_in_turns(sides, 2, cpu, warm=1)
    assert "".join(order) == "baabba"
    assert [len(times) for times in clocks.wall.values()] == [2, 2]
    slow, fast = {"a": [2.0, 4.0], "b": [1.0, 2.0]}, {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert harness.ratio(slow, "a", "b") == (0.5, 0.5, 0.5)
    assert misses(Clocks(slow, slow), "a", "b", 0.6, cpu)
    assert not misses(Clocks(slow, fast), "a", "b", 0.6, cpu)
    assert misses(Clocks(slow, fast), "a", "b", 0.6, torch.device("cuda"))


def table_rows(text: str) -> list[tuple[str, str, str]]:
    """The rows of the page: the benchmark, what it shows, and the result."""
    found: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0] != "benchmark" and "---" not in cells[0]:
            found.append((cells[0].strip("`") or found[-1][0], cells[1], cells[2]))
    return found


def test_the_page_has_the_rows_that_benchmarks_write() -> None:
    shown: dict[str, set[str]] = {}
    for name, shows, _ in table_rows(PAGE.read_text()):
        shown.setdefault(name, set()).add(shows)
    for name in shown.keys() - ELSEWHERE:
        tree = ast.parse((BENCHMARKS / f"{name.replace('.', '/')}.py").read_text())
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert shown[name] <= texts, name
    recording = {
        ".".join(path.relative_to(BENCHMARKS).with_suffix("").parts)
        for path in BENCHMARKS.glob("*/*.py")
        if re.search(r"Report\(|\brecord\(", path.read_text())
    }
    assert recording - ELSEWHERE == shown.keys() - ELSEWHERE


def test_results_are_written_into_the_page(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = load("harness")
    page = Path(shutil.copy(PAGE, tmp_path))
    monkeypatch.setattr(harness, "PAGE", page)
    before = table_rows(page.read_text())
    name, shows, _ = before[1]
    harness.record(name, {shows: "new"})
    first, (_, _, written), *rest = table_rows(page.read_text())
    assert [first, *rest] == [before[0], *before[2:]]
    assert re.fullmatch(r"new \(\d{4}-\d\d-\d\d, load \d+\)", written)
    with pytest.raises(KeyError, match="nothing"):
        harness.record(name, {"nothing": "new"})


DUST = "--model dust --steps 1 --rounds 2"
PRINTED = {
    "train.checkpoint --megabytes 2 --rounds 2 --folder": ["waits for", "a save", "a load"],
    "train.host_memory --megabytes 50": ["save", "in the background", "load", "export", "nf4"],
    f"train.ranks --ranks 4 {DUST}": ["replicate ", "shard ", "tensor ", "pipeline "],
}
"""Benchmarks in small, of which some compare the losses of both sides; what each prints."""


@pytest.mark.slow
@pytest.mark.parametrize("line", PRINTED)
def test_a_benchmark_runs_in_small(line: str, tmp_path: Path) -> None:
    folder = [str(tmp_path)] if line.endswith("--folder") else []
    command = [sys.executable, "-m", *shlex.split(line), *folder]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    # A speed may miss its bound where others use the machine; losses may not differ.
    assert done.returncode == 0 or "MISSED" in done.stdout, done.stderr[-3000:]
    assert not re.search("differ|apart", done.stdout), done.stdout
    assert not [words for words in PRINTED[line] if words not in done.stdout], done.stdout
    assert not list(tmp_path.iterdir())
