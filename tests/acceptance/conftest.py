"""A folder with a small job, the command line in it, and one finished run that all tests share."""

import contextlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import setpoint as sp
import setpoint.presets as built_in_presets
from setpoint.cli.main import main
from setpoint.config.layers.presets import modifiers, presets

from ..cli.conftest import Answer, CommandLine
from .lab import Study

assert built_in_presets  # imported before a test looks at what is registered

# Trains in a fraction of a second, on text that it makes up.
SMALL = """\
extends = "tiny"
name = "small"
duration = "4 steps"

[model]
dim = 16
layers = 1

[data]
held_out = 0.2
sources = [{ type = "random", documents = 40, length = 200, alphabet = 8 }]

[batch]
global_size = 4
micro_size = 2
sequence_length = 16

[checkpoint]
every = "2 steps"

[evaluation]
every = "last_step"
sequences = 4

[tracking]
every = "1 steps"
progress = "lines"
"""

# The run that tests look at: a value from each layer, its modifier among them.
TRAIN = ["train", "small.toml", "--optimizer.lr", "0.01", "--with", "reproducible"]
VARIABLE = ("SETPOINT__TRACKING__PROGRESS", "none")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `small.toml` and the finished run of it; tests work on copies."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(SMALL)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(folder)
        patch.setenv(*VARIABLE)
        assert main(TRAIN) == 0
    import torch

    torch.use_deterministic_algorithms(False)
    return folder


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    """The command line in an empty folder but for `small.toml`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in os.environ:
        if name.startswith(("SETPOINT__", "WORLD_SIZE")):
            monkeypatch.delenv(name)
    (tmp_path / "small.toml").write_text(SMALL)
    registered = dict(presets), dict(modifiers)
    imported = set(sys.modules)
    yield CommandLine(tmp_path, capsys)
    for name in set(sys.modules) - imported:  # another test may have a module of the same name
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for table, before in zip((presets, modifiers), registered, strict=True):
        table.clear()
        table.update(before)


@pytest.fixture
def run(cli: CommandLine, finished: Path) -> str:
    shutil.copytree(finished / "runs", cli.folder / "runs")
    (directory,) = (cli.folder / "runs").iterdir()
    return str(directory.relative_to(cli.folder))


class Script(CommandLine):
    """The command line of a script whose root is `Study`."""

    def __call__(self, line: str) -> Answer:
        """Run the script with the words of a line."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            sp.run(Study, print, shlex.split(line))
        captured = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, captured.out, captured.err)


@pytest.fixture
def script(cli: CommandLine, capsys: pytest.CaptureFixture[str]) -> Script:
    return Script(cli.folder, capsys)
