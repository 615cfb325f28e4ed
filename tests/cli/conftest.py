"""Commands called in this process, in a folder of their own that holds a few configurations."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

import setpoint
import setpoint.presets as built_in_presets
from setpoint.cli.main import main
from setpoint.config.layers.presets import presets

from ..support.snapshots import compare_message
from .repository import Repository

assert built_in_presets  # imported before a test looks at what is registered
SOURCE = str(Path(setpoint.__file__).parent)

SMALL = """\
name = "small"
duration = "10 steps"

[model]
dim = 32
layers = 1
heads = 2

[batch]
global_size = 8
micro_size = 4
sequence_length = 32

[optimizer]
lr = 0.01

[data]
held_out = 0.2

[[data.sources]]
type = "random"
documents = 20
length = 200
"""

OWN = """\
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import AdamWConfig
from setpoint.train.config import BatchConfig, Job


def small():
    job = Job(
        name="own",
        model=TransformerConfig(dim=32, layers=1, heads=2),
        optimizer=AdamWConfig(
            lr=0.02,
            weight_decay=0.0,
        ),
    )
    job.batch = BatchConfig(global_size=8, micro_size=4)
    return job


def not_a_job():
    return 3
"""


@dataclass
class Answer:
    """What a command answered.

    Arguments:
        status: the exit status.
        out, err: what it printed.
    """

    status: int
    out: str
    err: str


class CommandLine:
    """Runs commands in one folder.

    Arguments:
        folder: the working folder.
        capsys: of pytest.
        stored: whether the messages of refused commands are compared with stored ones.
    """

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], stored: bool = False
    ) -> None:
        self.folder = folder
        self._capsys = capsys
        self.stored = stored

    def __call__(self, line: str) -> Answer:
        """Run `setpoint` with the words of a line, as a shell splits them."""
        self._capsys.readouterr()
        status = main(shlex.split(line))
        captured = self._capsys.readouterr()
        return Answer(status, self._anywhere(captured.out), self._anywhere(captured.err))

    def ok(self, line: str) -> str:
        """What a command prints that must succeed."""
        answer = self(line)
        said = re.sub(r"^(evaluating|generating).*: \d+/\d+ .*\n", "", answer.err, flags=re.M)
        assert (answer.status, said) == (0, ""), answer
        return answer.out

    def refused(self, line: str, status: int = 2) -> str:
        """The error of a command that must be refused without writing anything."""
        before = self._contents()
        answer = self(line)
        assert answer.status == status, answer
        # `train` says what it is about to do, and on what.
        said = r"^\S+: [\d,]+ parameters, .*\n(device: .*\n)?"
        assert re.sub(said, "", answer.out) == ""
        assert answer.err.startswith("error: ")
        assert "Traceback" not in answer.err
        assert self._contents() == before
        if self.stored:
            compare_message(f"$ setpoint {line}\n{answer.err}")
        return answer.err

    def file(self, name: str, text: str | bytes) -> str:
        """Write a file into the folder; its name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    def _contents(self) -> dict[str, tuple[int, bytes]]:
        return {
            str(path.relative_to(self.folder)): (
                path.stat().st_mtime_ns,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in self.folder.rglob("*")
            # Python's cache of a module of the user's is not ours.
            if "__pycache__" not in path.parts
        }

    def _anywhere(self, text: str) -> str:
        return text.replace(SOURCE, "setpoint").replace(str(self.folder), "HERE")


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    """The command line in an empty folder but for `small.toml` and `own.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    for name in ("NO_COLOR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "own.py").write_text(OWN)
    registered = dict(presets)
    yield CommandLine(tmp_path, capsys, stored=True)
    presets.clear()
    presets.update(registered)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs after `small.toml` was trained, which tests copy."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()):
        patch.chdir(folder)
        (folder / "small.toml").write_text(SMALL)
        assert main(["train", "small.toml", "--tracking.progress", "none"]) == 0
    return folder / "runs"


@pytest.fixture
def run(cli: CommandLine, trained: Path) -> str:
    """The directory of a run of `small.toml`, from the working folder."""
    shutil.copytree(trained, cli.folder / "runs")
    (name,) = os.listdir(trained)
    return f"runs/{name}"


@pytest.fixture(scope="session")
def executable() -> str:
    """The `setpoint` command as it is installed."""
    path = os.path.join(os.path.dirname(sys.executable), "setpoint")
    assert os.path.exists(path), "setpoint is not installed beside this Python"
    return path


@pytest.fixture
def git(cli: CommandLine) -> Repository:
    """A repository in the working folder of `cli`, with `small.toml` and `own.py` committed."""
    repository = Repository(cli.folder)
    repository.commit()
    return repository
