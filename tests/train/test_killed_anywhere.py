"""Exact resume: a run that is killed anywhere, any number of times, equals one that is not.

One oracle over a table of jobs. A story has sessions before the one that is killed, for instance
those after which a difference from the record is accepted; kills come from `killing.py`.
"""

import itertools
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from setpoint.checkpoint.store import CheckpointStore
from setpoint.ops.proof import verify_chain
from setpoint.train.run_status import goodput_of

from .commands import Commands
from .killing import KINDS
from .small import assert_same_run, events, rows, write_config

# How many times the first of each kind there are in a session, about.
COUNTS = {"update": 6, "save": 40, "record": 6, "evaluate": 400, "any": 400, "merge": 100}
KILLS_OF_EACH = 12
# Of three files the removal of one left behind, the temporary file and its rename; and the rename
# of the new origins.
CHANGES_OF_THE_RECORD = 10


@dataclass(frozen=True)
class Story:
    """A job, and what is done with it."""

    flags: tuple[str, ...] = ()
    then: tuple[str, ...] = ()


COMMON = (
    "duration=8 steps",
    "schedule={type=constant, warmup=2}",
    "evaluation.every=2 steps",
    "checkpoint.every=3 steps",
)
BF16 = ("precision.params=bf16", "precision.compute=bf16")
STATE = ("precision.optimizer_state=bf16",)
MASTERS = (*BF16, "precision.master=fp32", "precision.reduce=fp32")
FREE = ("optimizer=schedule_free_adamw", "optimizer.lr=1e-2")
EXPERTS = ("model.moe.experts=4", "model.moe.expert_dim=16")
BALANCED = (
    "model.moe={experts=4, expert_dim=16}",
    "model.moe.router={type=sigmoid_top_k, bias_rate=0.05, bias_schedule=cosine_decay}",
)
# With this rate it learns, and then falls apart.
FALLS = ("duration=30 steps", "optimizer.lr=0.3", "optimizer.clip_norm=null")
PATIENCE = ("evaluation.early_stopping.patience=2", "evaluation.before_training=true")
TEN = "duration=10 steps"

# Kills fall into packed groups, of which there are several in an epoch, and behind the first epoch.
PACKED = (
    "data.sources=[{type=random, documents=24, length=11},"
    " {type=random, name=long, documents=8, length=40, seed=9}]",
    "data.packing={method=first_fit_decreasing, group_size=9}",
)
# Shares change at steps 3 and 6, and a source is read to its limit.
MIXED = (
    "data.sources=[{type=random, documents=20, length=60, weight=3},"
    " {type=random, name=other, documents=20, length=50, seed=5, weight=1, epochs=0.2}]",
    "data.mixture.temperature=2",
    "data.phases=[{start=3 steps, weights={other=9.0}, lr_factor=0.5}]",
    "data.anneal={start=384 tokens, weights={random=1.0}, lr_factor=0.1}",
)
WORKERS = ("data.loader.workers=2", "data.loader.evaluation.workers=1")

# Kills fall between two matrices of a merge, whose checkpoint is due right after it or later.
MERGED = "adapter={{type={}, rank=2, b_std=0.1, merge={{every=2, rewarmup=1}}, {}}}"
NOISY = "quantize={type=nvfp4, group_size=4, noise={}}"

STORIES = {
    "cosine": Story(("schedule=cosine",)),
    "workers": Story(("data.loader.workers=2", "data.loader.prefetch=3")),
    "packing": Story(PACKED),
    "mixture with phases": Story((*MIXED, *WORKERS)),
    "mixture, packed": Story((*MIXED, PACKED[1], *WORKERS)),
    "bf16, deterministic": Story(("precision.compute=bf16", "deterministic=true")),
    "bf16 with masters": Story(MASTERS),
    "nothing is evaluated": Story(("evaluation=null",)),
    "an early end": Story((*FALLS, *PATIENCE)),
    "plateau": Story(("schedule={type=plateau, patience=1}", "evaluation.every=1 steps")),
    "balanced experts": Story(BALANCED),
    "adamw, foreach": Story(("optimizer.implementation=foreach",)),
    "adamw, amsgrad": Story(("optimizer.amsgrad=true", "optimizer.implementation=loop")),
    "sgd": Story(("optimizer=sgd", "optimizer.nesterov=true")),
    "lion": Story(("optimizer=lion", "optimizer.lr=1e-3")),
    "lion with bf16 state": Story(("optimizer=lion", *STATE)),
    "lion with masters": Story(("optimizer=lion", *MASTERS)),
    "muon": Story(("optimizer=muon", "optimizer.adamw_lr=1e-3")),
    "muon with bf16 state and experts": Story(("optimizer=muon", *STATE, *EXPERTS)),
    "schedule-free": Story(FREE),
    "schedule-free with groups": Story(
        (*FREE, 'optimizer.groups=[{pattern="^layers", lr_multiplier=2}]')
    ),
    "schedule-free in bf16": Story((*FREE, *BF16)),
    "schedule-free with masters": Story((*FREE, *MASTERS)),
    "any precision": Story(("optimizer=anyprecision_adamw", *BF16)),
    "any precision with fp32 weights": Story(("optimizer=anyprecision_adamw", *STATE)),
    "adafactor": Story(("optimizer=adafactor",)),
    "imported": Story(("optimizer={type=import, target=torch.optim.NAdam}",)),
    "merges": Story((MERGED.format("dora", "dropout=0.1"),)),
    "merges into a quantized base": Story((MERGED.format("relora", NOISY), *EXPERTS)),
    "accepted: a longer duration": Story((), (TEN,)),
    "accepted: the learning rate": Story((), (TEN, "optimizer.lr=1e-3")),
    "accepted: betas": Story((), (TEN, "optimizer.betas=[0.5,0.6]")),
    "accepted: momentum": Story(("optimizer=sgd",), (TEN, "optimizer.momentum=0.5")),
    "accepted: options of a group": Story(
        ('optimizer.groups=[{pattern="^layers", lr_multiplier=2}]',),
        (TEN, 'optimizer.groups=[{pattern="^layers", lr_multiplier=2, options={betas=[0.5,0.6]}}]'),
    ),
    "accepted: formats of the state": Story(("optimizer=lion",), (TEN, *STATE)),
    "accepted: masters": Story((), (TEN, *MASTERS)),
    "accepted: another measure": Story(
        ("evaluation.accuracy=true",), (TEN, "evaluation.best.metric=accuracy")
    ),
}
# Of the others, tests/optim and test_formats.py stop and go on within a process.
QUICK = (
    "mixture with phases",
    "balanced experts",
    "merges into a quantized base",
    "accepted: options of a group",
)


def the_run(folder: Path) -> Path | None:
    found = sorted((folder / "runs").glob("small-*"))
    return found[0] if found else None


class Oracle:
    """One story in peace, against which those with kills are held."""

    def __init__(self, commands: Commands, folder: Path, story: Story) -> None:
        self.commands = commands
        self.folder = folder
        self.story = story
        (folder / "whole").mkdir(parents=True)
        write_config(folder / "whole")
        flags = [f"--{flag}" for flag in (*COMMON, *story.flags)]
        self.words = ["train", "small.toml", *flags]
        if story.then:
            self.go_on(folder / "whole", "--duration=4 steps")
            run = the_run(folder / "whole")
            assert run is not None
            self.words[1] = str(Path("runs") / run.name)
            self.words += [f"--{flag}" for flag in story.then]
            for section in dict.fromkeys(flag.partition(".")[0] for flag in story.then):
                if section in ("optimizer", "precision"):
                    self.words += ["--accept", section]
        shutil.copytree(folder / "whole", folder / "begun")
        self.go_on(folder / "whole")
        self.whole = the_run(folder / "whole")

    def go_on(self, folder: Path, *more: str) -> None:
        """Run a session to its end."""
        status, output = self.commands.run(folder, *self.words, *more)
        assert status == 0, output

    def killed(self, name: str, kills: list[tuple[str, int]], chance: random.Random) -> list[str]:
        """Kill sessions one after the other, go on to the end, and compare.

        Half of those that are killed save in the background.
        """
        folder = self.folder / name
        shutil.copytree(self.folder / "begun", folder)
        done: list[str] = []
        for kind, count in kills:
            timed = kind == "time"
            mode = chance.choice(("sync", "async"))
            process = self.commands.start(
                folder,
                *self.words,
                f"--checkpoint.mode={mode}",
                kill=None if timed else (kind, count),
            )
            if timed:
                time.sleep(chance.uniform(0.0, 0.6))
                process.signal(signal.SIGKILL)
            status = process.wait()
            assert status in (0, -signal.SIGKILL), process.output.read_text()
            done += [kind] * (status == -signal.SIGKILL)
        self.go_on(folder)
        run = the_run(folder)
        assert run is not None
        assert self.whole is not None
        assert_same_run(run, self.whole)
        # The last session may have found the run at its end, and left the record as it was.
        ours, theirs = ((each / "config.json").read_bytes() for each in (run, self.whole))
        assert ours.replace(b'"mode": "async"', b'"mode": "sync"') == theirs
        assert run.name == self.whole.name
        shutil.rmtree(folder)
        return done


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in STORIES]
)
def test_killed_anywhere_it_equals_the_undisturbed_run(
    name: str, commands: Commands, tmp_path: Path
) -> None:
    chance = random.Random(name)
    oracle = Oracle(commands, tmp_path, STORIES[name])
    # After the record has changed with the first update and before the next checkpoint; then while
    # something is saved, or anywhere.
    merges = name.startswith("merges")
    later = ("merge", 40) if merges else chance.choice([("save", 12), ("any", 150)])
    kills = [("update", 2), (later[0], chance.randint(1, later[1]))]
    done = oracle.killed("broken", kills, chance)
    assert "update" in done and ("merge" in done or not merges)


@pytest.fixture(scope="module")
def betas(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(commands, tmp_path_factory.mktemp("betas"), STORIES["accepted: betas"])


def test_the_second_update_is_between_the_record_and_the_next_checkpoint(
    betas: Oracle, commands: Commands, tmp_path: Path
) -> None:
    """The kill at ("update", 2) loses what only the record holds."""
    oracle, broken = betas, tmp_path / "begun"
    shutil.copytree(oracle.folder / "begun", broken)
    assert commands.start(broken, *oracle.words, kill=("update", 2)).wait() == -signal.SIGKILL
    run = the_run(broken)
    assert run is not None
    assert oracle.whole is not None
    assert (run / "config.json").read_bytes() == (oracle.whole / "config.json").read_bytes()
    assert CheckpointStore(run / "checkpoints").steps[-1] == 4


@pytest.mark.parametrize(
    "count",
    [count if count in (2, 6, 10, 11) else pytest.param(count, marks=pytest.mark.slow)
     for count in range(1, 12)],
)  # fmt: skip
def test_a_kill_between_two_files_of_the_record(
    count: int, betas: Oracle, commands: Commands, tmp_path: Path
) -> None:
    """The files can be read and shown, and the run goes on."""
    oracle, folder = betas, tmp_path / "begun"
    shutil.copytree(oracle.folder / "begun", folder)
    status = commands.start(folder, *oracle.words, kill=("record", count)).wait()
    assert status == (-signal.SIGKILL if count <= CHANGES_OF_THE_RECORD else 0)
    assert commands.run(folder, "show", oracle.words[1])[0] == 0
    oracle.go_on(folder)
    run = the_run(folder)
    assert run is not None
    assert oracle.whole is not None
    assert_same_run(run, oracle.whole)


def test_a_kill_after_a_kill_between_two_files_of_the_record(
    commands: Commands, tmp_path: Path
) -> None:
    """The origins that the first one left waiting are not overwritten by the second."""
    oracle = Oracle(commands, tmp_path, STORIES["accepted: betas"])
    folder = tmp_path / "begun"
    for count, change in ((CHANGES_OF_THE_RECORD, ()), (6, ("--optimizer.betas=[0.3,0.4]",))):
        words = [*oracle.words, *change]
        assert commands.start(folder, *words, kill=("record", count)).wait() == -signal.SIGKILL
        status, output = commands.run(folder, "show", oracle.words[1])
        assert (status, "[0.5, 0.6]" in output) == (0, True), output
    oracle.go_on(folder, "--optimizer.betas=[0.3,0.4]")


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_a_dozen_kills(
    name: str, commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts: Counter[str] = Counter()
    chance = random.Random(name)
    among = (*KINDS, *["merge"] * (len(KINDS) * name.startswith("merges")))
    kinds = itertools.cycle(chance.sample(among, len(among)))
    oracle, chain = Oracle(commands, tmp_path, STORIES[name]), 0
    while counts.total() < KILLS_OF_EACH:
        planned = [
            (kind, chance.randint(1, COUNTS.get(kind, 1)))
            for kind in itertools.islice(kinds, chance.randint(1, 5))
        ]
        chain += 1
        counts.update(oracle.killed(str(chain), planned, chance))
    with capsys.disabled():
        shown = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        print(
            f"\n{name}: {counts.total()} kills in {chain} runs, each equal to its oracle: {shown}"
        )


def test_the_record_of_a_killed_run_adds_up(tmp_path: Path, commands: Commands) -> None:
    """Lost steps are counted, and its chain of hashes fits."""
    words = ("train", str(write_config(tmp_path)), "--duration=8 steps", "--checkpoint.every=4")
    assert commands.start(tmp_path, *words, kill=("update", 7)).wait() == -signal.SIGKILL
    (run,) = (tmp_path / "runs").iterdir()
    killed = verify_chain(run)
    assert (killed.problems, killed.checkpoints) == ([], 1)
    status, said = commands.run(tmp_path, *words)
    ended = verify_chain(run)
    assert (ended.problems, ended.notes) == ([], [])
    assert (ended.rows, ended.checkpoints) == (len(rows(run)), 2)
    assert status == 0 and "goodput" in said and f" {ended.head}\n" in said
    (resumed,) = events(run, "resume")
    # The 7th update was made, and its row was not written.
    assert resumed["step"] == 4 and resumed["dropped"]["steps"] == 2
    assert resumed["began"] < resumed["time"]
    found = goodput_of(run)
    assert (found.sessions, found.lost_steps) == (2, 2)
    (end,) = events(run, "end")
    assert found.trained + found.waiting == pytest.approx(end["seconds"])
    assert min(found.lost, found.starting, found.saving, found.evaluating, found.idle) > 0
    assert sum(found.parts.values()) == pytest.approx(found.wall)
