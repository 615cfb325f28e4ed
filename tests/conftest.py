"""What all tests share: a clean environment, reproducible examples, the source as parsed files."""

import ast
import functools
import gc
import importlib
import os
import signal
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from setpoint.track import environment
from setpoint.track.environment import code_revision

from .support import snapshots
from .support.forks import Forks, share, shared

ROOT = Path(__file__).resolve().parent.parent
SOURCE, BENCHMARKS = ROOT / "src", ROOT / "benchmarks"

# Nothing of what collecting tests makes is garbage; see pytest_collection_finish.
gc.disable()
# No test takes the power away, and what a killed process has written is there without it.
os.fsync = lambda descriptor: None
# Python 3.11 lists the members of a protocol anew for each `isinstance`.
if sys.version_info < (3, 12):
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)

# Before any test imports torch: idle threads of OpenMP sleep instead of spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Shells start what runs in the background with Ctrl-C ignored, which programs under test inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` ignores SIGHUP. A handler that does nothing keeps the tests running as well, and is not
# inherited by programs that they start.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Times differ too much between machines for a deadline. Unattended runs always try the same
# examples, so that a failure comes from a change; at a desk every run tries new ones.
# `make slow` tries twenty times as many.
settings.register_profile("desk", deadline=None, max_examples=25)
settings.register_profile(
    "unattended", settings.get_profile("desk"), derandomize=True, print_blob=True
)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile("unattended" if os.environ.get("CI") else "desk")


@dataclass(frozen=True)
class SourceFile:
    """One Python file of the package.

    Arguments:
        path: where it lies.
        module: its name, `setpoint.model` for `setpoint/model/__init__.py`.
        text: what it holds.
        tree: the text, parsed.
    """

    path: Path
    module: str
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def package(self) -> str:
        """The package that the relative imports of this file start from."""
        is_package = self.path.name == "__init__.py"
        return self.module if is_package else self.module.rpartition(".")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Use one process that forks for all workers of pytest-xdist, which takes seconds to start."""
    received = getattr(config, "workerinput", None)
    if received is not None:
        share(received["forks"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Name the folder of that process to a worker."""
    node.workerinput["forks"] = shared().folder


def pytest_unconfigure() -> None:
    """End that process."""
    if shared.cache_info().currsize:
        shared().close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes, before marks are selected by; skip what needs a GPU."""
    for item in items:
        module, names = getattr(item, "module", None), getattr(item, "fixturenames", ())
        starts = ("subprocess", "forked", "run_on_ranks")
        if any(hasattr(module, name) for name in starts) or "forks" in names:
            item.add_marker("process")
        if item.get_closest_marker("cuda") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a GPU; see `make test-gpu`"))


@functools.cache
def has_gpu() -> bool:
    """Whether PyTorch sees a GPU; asked only where there are tests for one."""
    import torch

    return torch.cuda.is_available()


def pytest_collection_finish() -> None:
    """Let nobody look for garbage among the modules and the tests themselves."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def thawed() -> Iterator[None]:
    """For tests of how garbage is collected: nothing is set aside."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def revision_of_these_tests() -> Iterator[None]:
    """Ask git once about the repository of these tests, not for each run that they train."""
    known = functools.cache(code_revision)

    def revision(directory: Path) -> dict[str, Any]:
        return known(directory) if directory == ROOT else code_revision(directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "code_revision", revision)
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Name the folder of all temporary ones, which stored messages leave out."""
    snapshots.temporary_folders = str(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def source_files() -> dict[str, SourceFile]:
    """All modules of the package by name."""
    found: dict[str, SourceFile] = {}
    gc.disable()  # looking for garbage among the nodes takes longer than parsing does
    for path in sorted(SOURCE.glob("setpoint/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        stub = path.with_suffix(".pyi")
        if stub.exists():  # what `setpoint.config.lazy` imports later
            names = ast.parse(stub.read_text(encoding="utf-8"), str(stub)).body
            imports = [name for name in names if isinstance(name, ast.ImportFrom)]
            tree.body.append(ast.If(ast.Name("TYPE_CHECKING"), body=imports, orelse=[]))
        found[module] = SourceFile(path, module, text, tree)
    gc.freeze()
    gc.enable()
    assert found, f"no source under {SOURCE}"
    return found


@pytest.fixture(scope="session")
def forks() -> Forks:
    """Starts Python programs that need not import torch first."""
    return shared()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the benchmarks, which are not a package of ours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    names = {path.stem for path in BENCHMARKS.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the variables of this shell that would override configurations."""
    for name in [name for name in os.environ if name.startswith("SETPOINT__")]:
        monkeypatch.delenv(name)
