"""`--accept PATH`: going on with a run although identity fields differ from its record."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import IDENTITY, SetpointError
from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint, read_record, recorded_differences
from setpoint.config.words.names import within
from setpoint.resilience.signals import StopRequest
from setpoint.train.config import Job
from setpoint.train.contract import AT_START, Accepted, check_contract, describe_accepted
from setpoint.train.loop import Loop
from setpoint.train.run import Run, train
from setpoint.train.verdict import StepResult

from ..precision.gpu_stand_in import gpu_stand_in
from ..support.snapshots import refused
from .effects.model_fields import PRETRAINED_ROWS, prepare
from .small import Kept, Killed, essence, events, rows, small_job, snapshot, train_rows
from .test_config_effects import BASE, EFFECTS, Before


def resolved(run: Path, flags: Sequence[str]) -> Job:
    draft, _ = read_record(Job, str(run))
    return compose(Job, draft, flags=flags).resolve()


def resume(run: Path, *flags: str, accept: Sequence[str] = ()) -> Run:
    """Do as `setpoint train RUN_DIRECTORY FLAGS --accept ...`."""
    return train(resolved(run, flags), directory=run, accept=accept)


def accepted(run: Path, *flags: str, accept: Sequence[str] = ()) -> Accepted:
    return check_contract(str(run), resolved(run, flags), accept)


def test_an_accepted_difference_is_recorded_with_both_values_and_origins(run: Path) -> None:
    flags = ("optimizer.lr=0.5", "duration=8 steps")
    outcome = resume(run, *flags, accept=["optimizer.lr"])
    assert (outcome.started.step, outcome.final_position.step) == (6, 8)
    assert [row["lr"] for row in train_rows(run)][5:] == [0.01, 0.5, 0.5]
    (event,) = events(run, "resume")
    rate = event["accepted"][1]
    assert (rate["path"], rate["role"], rate["left"], rate["right"], rate["right_origin"]) == (
        "optimizer.lr", "identity", 0.01, 0.5, "command line optimizer.lr",
    )  # fmt: skip
    assert "small.toml:" in rate["left_origin"]
    # The record says what the run is from now on.
    config = json.loads((run / "config.json").read_text())
    assert config["optimizer"]["lr"] == 0.5
    assert config["setpoint"]["fingerprint"] == event["fingerprint"]
    assert fingerprint(resolved(run, ())) == event["fingerprint"]
    # The same command works again after preemption.
    again = accepted(run, *flags, accept=["optimizer.lr"])
    assert again == Accepted([], ("optimizer.lr",))
    assert describe_accepted(again) == [
        "--accept optimizer.lr: nothing there differs from the record"
    ]
    assert resume(run, *flags, accept=["optimizer.lr"]).final_position.step == 8
    assert events(run, "resume")[-1]["accepted"] == []
    with refused():
        resume(run, "optimizer.lr=0.01")


def test_a_section_covers_what_is_in_it_and_nothing_else(run: Path) -> None:
    flags = ("optimizer.lr=0.5", "optimizer.betas=[0.8,0.9]", "user.note=x")
    before = snapshot(run)
    with refused():
        resume(run, *flags, accept=["optimizer"])
    assert snapshot(run) == before
    for other in ("user.note", "user"):
        found = accepted(run, *flags, accept=["optimizer", other, "schedule"])
        assert {item.path for item in found.differences} == {
            "optimizer.lr", "optimizer.betas", "user.note"
        }  # fmt: skip
    # Whole names count, also of several in one option.
    with refused():
        resume(run, *flags, "duration=7 steps", accept=["user,optimizer.l"])
    assert resume(run, *flags, "duration=7 steps", accept=["optimizer,user"]).status == 0


def test_the_refusal_says_how_to_accept(run: Path) -> None:
    with refused():
        resume(run, "optimizer.lr=0.5", "user.note=x")


def test_an_unknown_path_is_refused_with_a_suggestion(run: Path) -> None:
    before = snapshot(run)
    for path in ("optimiser", "lr", ""):
        with refused():
            resume(run, "duration=7 steps", accept=[path])
    assert snapshot(run) == before


def test_on_a_finished_run_nothing_is_accepted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("config.json", "origins.json", "config.toml", "environment.json")
    before = {name: (run / name).read_bytes() for name in files}
    recorded = json.loads(before["config.json"])["setpoint"]["fingerprint"]
    outcome = resume(run, "optimizer.lr=0.5", "tracking.progress=lines", accept=["optimizer.lr"])
    assert (outcome.status, outcome.final_position.step) == (0, 6)
    assert fingerprint(outcome.identity) == recorded
    assert "is finished at step 6; nothing is left to train; nothing accepted" in (
        "".join(capsys.readouterr())
    )
    assert {name: (run / name).read_bytes() for name in files} == before
    last = events(run, "resume")[-1]
    assert (last["accepted"], last["fingerprint"]) == ([], recorded)


def test_a_session_that_trains_nothing_leaves_the_record(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (run / "config.json").read_bytes()
    monkeypatch.setattr(StopRequest, "requested", property(lambda self: True))
    monkeypatch.setattr(StopRequest, "status", property(lambda self: 75))
    outcome = resume(run, "optimizer.lr=0.5", "duration=8 steps", accept=["optimizer.lr"])
    assert (outcome.status, outcome.final_position.step) == (75, 6)
    assert (run / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    "flag",
    [
        "data.packing.method=next_fit",
        "seed=5",
        "batch.sequence_length=8",
        "data.shuffle=false",
        "data.curriculum.by=length",
    ],
)
def test_other_rows_cannot_be_accepted_in_the_middle_of_a_run(run: Path, flag: str) -> None:
    with refused():
        accepted(run, flag, accept=["data", "batch", "seed", "model"])


def test_another_seed_is_accepted_where_the_data_keeps_its_own(run: Path) -> None:
    found = accepted(run, "seed=5", "data.seed=1234", accept=["seed", "data.seed"])
    assert {item.path for item in found.differences} == {"seed", "data.seed"}


GROUPED = (
    'optimizer.groups=[{pattern="^embedding", lr_multiplier=0.5, options={betas=[0.8, 0.9]}}]',
    "schedule=constant",
)


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("three"), "duration=3 steps", *GROUPED)


@pytest.fixture
def grouped(three_steps: Kept) -> Path:
    """A run of three steps with a group of parameters."""
    return three_steps.again()


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (("optimizer.groups.0.lr_multiplier=1",), "lr_multiplier", None),
        (("optimizer.groups.0.options.betas=[0.5, 0.6]",), "betas", (0.5, 0.6)),
        (("optimizer.weight_decay=0.2",), "weight_decay", 0.2),
        (("optimizer.betas=[0.5, 0.6]",), "betas", (0.8, 0.9)),
    ],
)
def test_an_accepted_change_of_a_group_takes_effect(
    grouped: Path, flags: tuple[str, ...], key: str, value: object
) -> None:
    outcome = resume(grouped, *flags, "duration=5 steps", accept=["optimizer"])
    group = outcome.components.optimizer.param_groups[-1]
    assert group["param_names"] == ["embedding.weight"]
    assert group.get(key) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    "flags",
    [
        ("optimizer.groups.0.pattern=^output",),
        ("optimizer.groups=[]",),
        ('optimizer.no_decay=["norm", "output"]',),
        ("optimizer.groups=[]", "optimizer=lion"),
    ],
    ids=" ".join,
)
def test_what_cannot_work_is_not_offered(grouped: Path, flags: tuple[str, ...]) -> None:
    for accept in ((), ("optimizer",)):
        with refused():
            resume(grouped, *flags, "duration=5 steps", accept=accept)


def test_options_by_pytorchs_own_names(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=3 steps", "schedule=constant", "optimizer=adafactor")
    folder = train(job).directory
    changes = ("optimizer.clip_threshold=2", "optimizer.eps2=0.5")
    outcome = resume(folder, *changes, "duration=5 steps", accept=["optimizer"])
    group = outcome.components.optimizer.param_groups[0]
    assert (group["d"], group["eps"]) == (2.0, (None, 0.5))


def test_how_it_is_computed_may_change_without_a_word(run: Path) -> None:
    outcome = resume(run, "optimizer.implementation=loop", "duration=8 steps")
    assert all(not group["fused"] for group in outcome.components.optimizer.param_groups)
    assert next(iter(outcome.components.optimizer.state.values()))["step"] == 8


def texts(folder: Path, *without: int, **changed: str) -> tuple[str, ...]:
    """A job on files of its own, some of which are not there or say something else."""
    (folder / "text").mkdir(exist_ok=True)
    for number in range(24):
        path = folder / "text" / f"{number:02}.txt"
        path.unlink(missing_ok=True)
        if number not in without:
            path.write_text(changed.get(f"f{number}", f"{number} one two three four five ") * 9)
    source = f"data.sources=[{{type=text, paths=['{folder}/text/*.txt']}}]"
    return (source, "schedule=constant", "data.held_out=0.3")


def test_other_documents_are_accepted_by_name_and_survive_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ("checkpoint.every=4", "tracking.progress=lines")
    run = train(small_job(tmp_path, *texts(tmp_path), *base, "duration=6 steps")).directory
    job = small_job(tmp_path, *texts(tmp_path, 3, f5="other words "), *base, "duration=20 steps")
    before = snapshot(run)
    with refused():
        train(job, directory=run)
    assert snapshot(run) == before
    real = Loop.take_step

    def killed(loop: Loop) -> StepResult:
        if loop.position.step == 7:
            raise Killed
        return real(loop)

    monkeypatch.setattr(Loop, "take_step", killed)
    with pytest.raises(Killed):
        train(job, directory=run, accept=["data.sources"])
    assert "accepted by --accept: documents of train: 1 gone" in capsys.readouterr().out
    sides = events(run, "resume")[-1]["data"]
    found = {kind: [name for side in sides for name in side[kind]] for kind in ("gone", "changed")}
    assert [len(names) for names in found.values()] == [1, 1]
    assert found["gone"][0].endswith("03.txt") and found["changed"][0].endswith("05.txt")
    monkeypatch.setattr(Loop, "take_step", real)
    # The record has today's documents, and the checkpoint a position in those of before.
    outcome = train(job, directory=run)
    assert (outcome.started.step, outcome.final_position.step, outcome.status) == (6, 20, 0)
    assert "data" not in events(run, "resume")[-1]


def test_what_was_never_accepted_and_has_no_effect_is_refused(run: Path) -> None:
    before = snapshot(run)
    for path in ("data", "optimizer.eps", "duration"):
        with refused():
            resume(run, "duration=8 steps", accept=[path])
    kept = {n: d for n, d in snapshot(run).items() if "events" not in n and "logs" not in n}
    assert kept == {n: d for n, d in before.items() if "events" not in n and "logs" not in n}


def test_weights_of_another_shape_are_the_reason(run: Path) -> None:
    """Not what is derived from the sizes and used at the start only."""
    before = snapshot(run)
    with refused():
        resume(run, "model.dim=32", accept=["model"])
    assert snapshot(run) == before


# Effects of what is accepted.

LONGER = ("duration=8 steps", "schedule.horizon=4")
SCALE = "precision.loss_scale.initial"
FP16 = ("precision.compute=fp16", "parallel.device=cuda")
# Accepted, it is in the record and changes nothing that is computed in training on a CPU.
COMPUTES_THE_SAME = {
    "Job.deterministic": "these operations have one form",
    "Job.user": "it is the user's own",
    "TransformerConfig.max_sequence_length": "it limits sequences, of generated text above all",
    "ImportedModel.max_sequence_length": "it limits sequences, of generated text above all",
    "HuggingFaceConfig.max_sequence_length": "it limits sequences, of generated text above all",
    "TokenIds.count": "it limits ids, and the model has a vocabulary of its own",
    "MixturePhase.start": "both lie before the step at which it is changed",
    **dict.fromkeys(
        ("BatchConfig.ramp", "BatchRamp.start", "BatchRamp.increment", "BatchRamp.over"),
        "the batches have grown before the step at which it is changed",
    ),
}


@pytest.mark.parametrize(
    "change",
    ["model.init_std=0.5", "adapter.b_std=0.1", f"{SCALE}=4", "precision.loss_scale=null"],
)
def test_what_is_used_at_the_start_alone_is_not_accepted(tmp_path: Path, change: str) -> None:
    scaled = change.startswith("precision")
    base = (*FP16, f"{SCALE}=1024") if scaled else ("adapter=lora",)
    run = tmp_path / "run"
    with gpu_stand_in():
        train(small_job(tmp_path, "duration=4 steps", *base), directory=run)
        before = snapshot(run)
        path = SCALE if scaled else change.partition("=")[0]
        section = path.rpartition(".")[0]
        with refused():
            train(small_job(tmp_path, *LONGER, *base, change), directory=run, accept=[section])
    assert path in AT_START
    assert snapshot(run) == before


def test_a_run_without_checkpoints_takes_it_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_job(tmp_path, "duration=4 steps", "checkpoint.last=none", "checkpoint.every=never"),
          directory=run)  # fmt: skip
    again = small_job(tmp_path, *LONGER, "model.init_std=0.5", "checkpoint.resume=restart")
    assert train(again, directory=run, accept=["model.init_std"]).started.step == 0


def test_the_scale_of_a_run_that_had_none_is_taken_up(tmp_path: Path) -> None:
    """And so are the other settings of one that had."""
    run = tmp_path / "run"
    train(small_job(tmp_path, "duration=4 steps"), directory=run)
    with gpu_stand_in():
        flags = (*LONGER, *FP16, f"{SCALE}=4")
        train(small_job(tmp_path, *flags), directory=run, accept=["precision"])
        scales = [row["loss_scale"] for row in rows(run) if row["step"] > 4 and "loss_scale" in row]
        assert scales == [4.0] * 4
        grows = ("duration=10 steps", "precision.loss_scale.growth_interval=1")
        train(small_job(tmp_path, *flags, *grows), directory=run, accept=["precision.loss_scale"])
    scales = [row["loss_scale"] for row in rows(run) if "loss_scale" in row]
    assert scales == [*[4.0] * 4, 8.0, 16.0]


class Begun:
    """Runs of four steps, each with what it has learned after seven, for rows that start from one.

    Arguments:
        folder: for the runs, and for what rows name by `{tmp}`.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "before").mkdir()
        self.before = Before(folder / "before").folder
        self.folder = folder
        self._runs: dict[tuple[Any, ...], tuple[Path, dict[str, Any]]] = {}

    def start(
        self, folder: Path, whole: Job, flags: Sequence[str], without: tuple[str, ...]
    ) -> tuple[Path, dict[str, Any]]:
        """Such a run, in a new folder, and the essence of it trained to the end as `whole`."""
        key = (*flags, without)
        if key not in self._runs:
            run = folder / "run"
            train(small_job(folder, *flags, without=without), directory=run)
            shutil.copytree(run, folder / "begun")
            train(whole, directory=run, accept=["schedule"])
            self._runs[key] = folder / "begun", essence(run)
        return self._runs[key]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    return Begun(tmp_path_factory.mktemp("begun"))


PIECES = 12


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_every_field_that_may_be_accepted_takes_effect(begun: Begun, piece: int) -> None:
    """Each change of the table of effects, made in the middle of a run."""
    # Rows of one class lie together: each piece has some of all classes.
    rows = dict(list(EFFECTS.items())[piece::PIECES])
    idle: set[str] = set()
    effective = 0
    for name, effect in rows.items():
        common = BASE[:1] if name.startswith("HuggingFaceConfig") else BASE
        every = [flag.replace("{tmp}", str(begun.before)) for flag in (*common, *effect.base)]
        if effect.change.startswith("schedule"):
            continue  # much of a curve lies behind: warm-up, its phases
        if name in PRETRAINED_ROWS:
            prepare(begun.before, name)
        every.append(f"workspace={begun.folder}")  # it may not change with the directory
        longer = (*every, "duration=7 steps")
        change = effect.change.replace("{tmp}", str(begun.before))
        folder = begun.folder / name
        try:
            whole = small_job(folder, *longer, without=effect.without)
            changed = small_job(folder, *longer, change, without=effect.without)
            if fingerprint(whole) == fingerprint(changed):
                continue  # it is not part of what is learned
            start, expected = begun.start(folder, whole, every, effect.without)
        except SetpointError:
            continue  # it needs a GPU, or a package that is not here
        run = begun.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(start, run)
        found = recorded_differences(str(run), changed)
        accept = [each.path for each in found if each.role is IDENTITY]
        accept += ["data"] * any(within(path, "data") for path in accept)
        try:
            train(changed, directory=run, accept=accept)
        except SetpointError:
            continue
        now = essence(run)
        learned = [key for key in now if key.startswith("latest ") and key.endswith(".safetensors")]
        if all(now[key] == expected.get(key) for key in learned):
            idle.add(name)
        else:
            effective += 1
    assert effective > 60 // PIECES
    assert idle == COMPUTES_THE_SAME.keys() & rows.keys()
