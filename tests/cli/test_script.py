"""Scripts with a root of their own: `sp.run`, its commands, sweeps and completion."""

import builtins
import gc
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType

import pytest

from setpoint.cli.script import COMMANDS, load, run
from setpoint.config import Config, ConfigError, RunError, SetpointError, field

from ..support.forks import shared
from ..support.snapshots import compare, compare_message, refused

SCRIPT = '''\
"""A script of somebody's own."""

import setpoint.config as sp
from setpoint.cli.script import run
from setpoint.config.record.record import record_files


class Optimizer(sp.Config):
    """How gradients become updates."""

    lr: float = sp.field(default=0.1, gt=0)
    """Learning rate."""


class Sgd(Optimizer, type="sgd"):
    """Stochastic gradient descent."""

    momentum: float = sp.field(default=0.0, ge=0, lt=1)
    """Decay of the running sum of gradients."""


class Adam(Optimizer, type="adam"):
    """Adam (Kingma and Ba, 2015)."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the two running means."""


class Job(sp.Config):
    """A line fitted to points."""

    steps: int = sp.field(default=100, ge=1)
    """Updates."""

    optimizer: Optimizer = sp.field(factory=Sgd)
    """How gradients become updates."""

    folder: str | None = None
    """Where the record goes; null: nowhere."""


@sp.preset
def quick() -> Job:
    """Ten steps."""
    return Job(steps=10)


def main(job: Job) -> None:
    if job.steps == 13:
        raise SystemExit("bad luck")
    print(f"{job.steps} steps of {type(job.optimizer).__name__}, lr {job.optimizer.lr}")
    if job.folder:
        import os

        os.makedirs(job.folder)
        for name, text in record_files(job).items():
            with open(os.path.join(job.folder, name), "w") as file:
                file.write(text)


if __name__ == "__main__":
    run(Job, main)
'''
PRESETS = '''\
from setpoint.config import preset
from train import Job


@preset
def long() -> Job:
    """Many steps."""
    return Job(steps=1000)
'''


Call = Callable[[str], tuple[int, str, str]]


def started(
    folder: Path, *words: str, variables: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run Python with some words in a folder; return status, output and errors."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        environment = {**os.environ, **(variables or {})}
        status = shared().start(words, folder, output, environment, errors).wait()
        for file in (output, errors):
            file.seek(0)
        return status, output.read().decode(), errors.read().decode()


@pytest.fixture
def script(tmp_path: Path) -> Call:
    """Runs `python train.py` in a folder of its own; status, output and errors."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mine.py").write_text(PRESETS)

    return lambda line: started(tmp_path, "train.py", *shlex.split(line))


def test_a_script_of_ones_own(script: Call, tmp_path: Path) -> None:
    def unforked(line: str) -> tuple[int, str, str]:
        """Without the presets of Setpoint's own jobs, which forks have imported."""
        command = [sys.executable, "train.py", *shlex.split(line)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    lines = [
        "", "quick --optimizer adam --optimizer.lr 1e-3", "check quick", "show quick --origins",
        "why optimizer.lr quick", "diff quick quick --optimizer adam", "list",
        "list fields optimizer", "--help", "show --help",
    ]  # fmt: skip
    shown: list[str] = []
    for line in lines:
        status, out, err = (unforked if line == "list" else script)(line)
        assert (status, err) == (1 if line.startswith("diff") else 0, "")
        shown.append(f"$ python train.py {line}\n{out}")
    compare("cli/own", "\n".join(shown).replace(" \n", "\n"))


def test_mistakes_are_told_in_words(script: Call) -> None:
    lines = [
        "--optimizer.lrr 3 --steps 7.5 --stepz 1", "chekc", "chekc quick", "quikc", "quick extra",
        "--steps", "check --world-size 3", "why quick", "why optimiser.lr",
        "list fields optimiser", "missing.toml", "--wiht x",
    ]  # fmt: skip
    shown: list[str] = []
    for line in lines:
        status, out, err = script(line)
        assert (status, out) == (2, "")
        shown.append(f"$ python train.py {line}\n{err}")
    compare("cli/own_mistakes", "\n".join(shown))


def test_a_record_is_a_source(script: Call) -> None:
    assert script("quick --folder out --optimizer adam")[0] == 0
    assert script("out --folder again") == (0, "10 steps of Adam, lr 0.1\n", "")
    assert script("diff out quick")[0] == 1


def test_modules_that_import_the_script_see_the_same_classes(script: Call) -> None:
    assert script("--import mine long")[1].startswith("1000 steps")
    assert script("mine:long")[1].startswith("1000 steps")
    assert script("train:quick")[1].startswith("10 steps")
    written = script("show mine:long --optimizer adam --format python")[1]
    assert "from train import Adam, Job\n" in written


def test_commands_have_a_json_form(script: Call) -> None:
    assert json.loads(script("check quick --json")[1])["ok"] is True
    assert json.loads(script("show quick --json")[1])["steps"] == 10
    status, out, _ = script("check --json --steps many")
    assert (status, json.loads(out)["problems"][0]["path"]) == (2, "steps")


class Small(Config):
    size: int = field(default=1, ge=1)


def end(main: Callable[[Small], object], line: str = "") -> int:
    """The exit status of a script in this process."""
    with pytest.raises(SystemExit) as caught:
        run(Small, main, shlex.split(line))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_the_exit_status_is_that_of_main(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    assert end(lambda small: seen.append(small.size), "--size 3") == 0
    assert end(lambda small: small.size + 4) == 5
    assert end(lambda small: True) == 0
    assert end(lambda small: 5 * (not gc.isenabled())) == 0
    assert seen == [3]

    def fail(small: Small) -> None:
        raise SetpointError("the disk is gone")

    def crash(small: Small) -> None:
        raise RunError("the loss is not finite")

    def stop(small: Small) -> None:
        raise KeyboardInterrupt

    capsys.readouterr()
    assert [end(fail), end(crash), end(stop)] == [2, 1, 130]
    assert capsys.readouterr().err == (
        "error: the disk is gone\nerror: the loss is not finite\ninterrupted\n"
    )


class Switches(Config):
    a: bool = False
    b: bool | None = None
    many: list[bool] = field(factory=list)
    named: dict[str, bool] = field(factory=dict)
    other: bool = True


@pytest.mark.parametrize("line", [
    "--a 1", "--a ture", "--a yes f.toml", "f.toml --a 1", "--b maybe", "why a --a on",
    "sweep --a true,ture --dry-run", "sweep --random 1 --a 'choice(flase)' --dry-run",
    "--many true,ture", "--named.x ture",
])  # fmt: skip
def test_a_wrong_bool_is_a_value_of_its_flag_wherever_it_stands(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.toml").write_text("other = false\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run(Switches, lambda config: None, shlex.split(line))
    assert caught.value.code == 2
    compare_message(capsys.readouterr().err)


def test_hints_name_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a hint says to type begins with what was typed."""
    (tmp_path / "sweep.toml").write_text("[sweep.grid]\na = [true]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mine.py"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    said: dict[str, str] = {}
    for line in (
        "sweep.toml",
        "schema --help",
        "sweep --b 'choice(true)'",
        "--a '${oc.env:A}'",
        *(f"{command} --help" for command in COMMANDS),
    ):
        with pytest.raises(SystemExit):
            run(Switches, lambda config: None, shlex.split(line))
        captured = capsys.readouterr()
        said[line] = captured.out + captured.err
    assert "Run the file with `python mine.py sweep`." in said["sweep.toml"]
    assert "`python mine.py check` verifies the rest" in said["schema --help"]
    assert "--search" not in said["sweep --b 'choice(true)'"]
    assert not [line for line, text in said.items() if "`setpoint " in text]


def test_load_returns_what_main_would_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--size", "7"])
    assert load(Small).size == 7
    monkeypatch.setenv("SETPOINT__SIZE", "5")
    assert load(Small, arguments=[]).size == 5  # the words of the process are not read
    assert load(Small, arguments=["--size", "3"]).size == 3
    with refused(ConfigError):
        load(Small, arguments=["--size", "many"])
    with refused():
        load(Small, Path("nowhere/a.toml"))
    with refused():
        load(Small, "a", ["b"])
    with refused():
        load(Small, None, "--size 3")
    with refused():
        load(Small, None, ["--help"])


def test_load_in_a_script_ends_it_where_run_would(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, status in (["--size", "x"], 2), (["check"], 0), (["--help"], 0):
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        with pytest.raises(SystemExit) as caught:
            load(Small)
        assert caught.value.code == status
    assert "size = x\n    from command line --size" in capsys.readouterr().err


def test_load_in_a_notebook_leaves_the_words_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert load(Small).size == 1
    with pytest.raises(ConfigError):
        load(Small, arguments=["--size=0"])


def test_as_a_module_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")
    (tmp_path / "lab" / "train.py").write_text(SCRIPT)
    (tmp_path / "lab" / "mine.py").write_text(PRESETS.replace("from train", "from lab.train"))

    call = partial(started, tmp_path, "-m", "lab.train")
    status, output, _ = call("--help")
    assert status == 0 and output.startswith("python -m lab.train [SOURCE] [OVERRIDES]\n")
    assert call("lab.mine:long") == (0, "1000 steps of Sgd, lr 0.1\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_do_not_call_main(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Small] = []
    # There are no presets and no files here, so that what needs one says so.
    words = {"why": "why size", "diff": "diff a b", "migrate": "migrate a.toml"}
    words |= {"sweep": "sweep --size 1,2 --dry-run", "completion": "completion bash"}
    expected = 2 if command in ("diff", "migrate") else 0
    assert end(seen.append, words.get(command, command)) == expected
    assert end(seen.append, f"{command} --help") == 0
    assert not seen


NEEDY = '''\
from pathlib import Path

import setpoint as sp


class Job(sp.Config):
    """A job."""

    folder: Path = Path(".")
    """Where."""

    @sp.rule(cautions={"far-away": "the folder is far away"})
    def _check_far(self):
        if self.folder.is_absolute():
            yield sp.Caution("far-away", "folder", "is far away")

    @sp.rule(needs="files")
    def _check_folder(self):
        """Whether the folder is there."""
        if not self.folder.is_dir():
            yield sp.Problem("folder", "there is no such folder")


sp.run(Job, lambda job: print("called"))
'''


def test_what_needs_something_is_checked_before_main(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)

    call = partial(started, tmp_path, "needy.py")
    assert call() == (0, "called\n", "")
    status, output, errors = call("--folder", "nowhere")
    assert (status, output) == (2, "") and "there is no such folder" in errors
    status, output, errors = call("--folder", str(tmp_path))
    assert (status, output) == (0, "called\n")
    assert errors.startswith("caution: folder = ") and "far-away" in errors


FAULTY = """\
import os

import setpoint as sp

FAULT = os.environ.get("FAULT")


def fail(place):
    if FAULT == place:
        raise KeyError("no such thing")  # the fault


class Job(sp.Config):
    seed: int = 1
    twice: int = sp.derived()

    @sp.derive("twice")
    def _derive_twice(self):
        fail("derive")
        return self.seed * 2


@sp.preset
def make():
    fail("preset")
    return Job()


def main(config):
    if FAULT == "frozen":
        config.seed = 5  # the fault
    if FAULT == "other":
        sp.resolve(config.evolve(seed="x"))  # the fault
    fail("main")


if __name__ == "__main__":
    sp.run(Job, main)
"""


@pytest.mark.parametrize("place", ["derive", "preset", "frozen", "other", "main", "module"])
def test_a_fault_of_the_users_code_shows_its_line(place: str, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    if place == "module":
        (tmp_path / "brought.py").write_text('raise KeyError("x")  # the fault')
    words = ["make"] + ["--import", "brought"] * (place == "module")
    status, out, err = started(tmp_path, "faulty.py", *words, variables={"FAULT": place})
    assert (status, out) == (1, "")
    assert "Traceback" in err and "# the fault" in err and "setpoint/" not in err, err


def test_commands_that_a_script_does_not_have(script: Call) -> None:
    for word in ("train", "run --steps 3"):
        status, out, err = script(word)
        assert (status, out) == (2, "")
        compare_message(err)
    compare_message(script("check quick --plan")[2])


def test_collection_is_as_before_after_load() -> None:
    class Job(Config):
        x: int = 1

    for before in (gc.disable, gc.enable):
        before()
        was = gc.isenabled()
        load(Job, arguments=["--x", "2"])
        with pytest.raises(ConfigError):
            load(Job, arguments=["--x", "no"])
        assert gc.isenabled() == was


# A script with a root of its own sweeps and completes like `setpoint`.


def test_a_sweep_runs_each_point_once(script: Call, tmp_path: Path) -> None:
    status, out, _ = script("sweep quick --steps 9,13 --optimizer.lr 0.1,0.2 --jobs 2")
    assert status == 1 and "2 finished; 2 failed" in out and "bad luck" in out
    folder = tmp_path / "sweeps" / "train-quick"
    record = json.loads((folder / "sweep.json").read_text())
    assert {point["name"]: point["status"] for point in record["points"]} == {
        "steps=9,lr=0.1": "finished",
        "steps=9,lr=0.2": "finished",
        "steps=13,lr=0.1": "failed",
        "steps=13,lr=0.2": "failed",
    }
    log = folder / "points" / "steps=9,lr=0.1" / "output.log"
    assert log.read_text() == "9 steps of Sgd, lr 0.1\n"
    status, out, _ = script("sweep quick --steps 9,10 --optimizer.lr 0.1,0.2")
    assert status == 0 and "2 of them finished before" in out


def test_a_search_is_refused(script: Call, tmp_path: Path) -> None:
    (tmp_path / "search.toml").write_text(
        '[sweep.search]\ntrials = 2\n[sweep.search.axes]\nsteps = "integer(1, 9)"\n'
    )
    status, _, error = script("sweep search.toml")
    assert status == 2
    compare_message(error)


def test_bash_completes_the_script(script: Call, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    path = tmp_path / "train.py"
    path.write_text(f"#!{sys.executable}\n{path.read_text()}")
    path.chmod(0o755)
    program = f"{script('completion bash')[1]}\n" + (
        'COMP_WORDS=(./train.py fing) COMP_CWORD=1; _train_py; echo "${COMPREPLY[@]}"; complete -p'
    )
    done = subprocess.run([bash, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "fingerprint"
    assert "-F _train_py train.py" in done.stdout
