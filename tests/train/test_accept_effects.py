"""What may be accepted takes effect on the run that goes on; what cannot is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import IDENTITY, SetpointError
from setpoint.config.record.record import fingerprint, recorded_differences
from setpoint.config.words.names import within
from setpoint.train.contract import AT_START
from setpoint.train.run import train

from ..precision.gpu_stand_in import gpu_stand_in
from .effects.model_fields import PRETRAINED_ROWS, prepare
from .small import essence, rows, small_job, snapshot
from .test_config_effects import BASE, EFFECTS, Before

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
    "MixturePhase.start": "both lie before the step at which it is changed",
}


@pytest.mark.parametrize(
    ("change", "saved"),
    [
        ("model.init_std=0.5", "0.15811388300841897"),
        ("model.residual_init=plain", "depth_scaled"),
        ("model.pretrained=somewhere/else", "null"),
        (f"{SCALE}=4", "1024.0"),
        ("precision.loss_scale=null", "1024.0"),
    ],
)
def test_what_is_used_at_the_start_alone_is_not_accepted(
    tmp_path: Path, change: str, saved: str
) -> None:
    scaled = change.startswith("precision")
    base = (*FP16, f"{SCALE}=1024") if scaled else ()
    run = tmp_path / "run"
    with gpu_stand_in():
        train(small_job(tmp_path, "duration=4 steps", *base), run)
        before = snapshot(run)
        path = SCALE if scaled else change.partition("=")[0]
        section = path.rpartition(".")[0]
        # Without the section the rest of it differs as well.
        for accept in ([section], [path])[: 1 if change.endswith("scale=null") else 2]:
            with pytest.raises(SetpointError) as caught:
                train(small_job(tmp_path, *LONGER, *base, change), run, accept)
            text = str(caught.value)
            assert text.startswith(f"--accept {accept[0]}: {path} = ")
            assert "it is used at the start of a run, and" in text
            assert text.endswith(f"Valid: {saved}, as it was saved.")
        # Without --accept, it is not offered.
        with pytest.raises(SetpointError, match=f"does not help: {path} is used at the start"):
            train(small_job(tmp_path, *LONGER, *base, change), run)
    assert path in AT_START
    assert snapshot(run) == before


def test_a_run_without_checkpoints_takes_it_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_job(tmp_path, "duration=4 steps", "checkpoint.last=none", "checkpoint.every=never"),
          run)  # fmt: skip
    again = small_job(tmp_path, *LONGER, "model.init_std=0.5", "checkpoint.resume=restart")
    assert train(again, run, ["model.init_std"]).started.step == 0


def test_the_scale_of_a_run_that_had_none_is_taken_up(tmp_path: Path) -> None:
    """And so are the other settings of one that had."""
    run = tmp_path / "run"
    train(small_job(tmp_path, "duration=4 steps"), run)
    with gpu_stand_in():
        flags = (*LONGER, *FP16, f"{SCALE}=4")
        train(small_job(tmp_path, *flags), run, ["precision"])
        scales = [row["loss_scale"] for row in rows(run) if row["step"] > 4 and "loss_scale" in row]
        assert scales == [4.0] * 4
        grows = ("duration=10 steps", "precision.loss_scale.growth_interval=1")
        train(small_job(tmp_path, *flags, *grows), run, ["precision.loss_scale"])
    scales = [row["loss_scale"] for row in rows(run) if "loss_scale" in row]
    assert scales == [*[4.0] * 4, 8.0, 16.0]


@pytest.mark.parametrize("path", ["duration", "tracking.every"])
def test_what_may_change_anyway_need_not_be_accepted(tmp_path: Path, path: str) -> None:
    run = tmp_path / "run"
    train(small_job(tmp_path, "duration=4 steps"), run)
    with pytest.raises(SetpointError, match=f"{path} has no effect: what differs there may change"):
        train(small_job(tmp_path, *LONGER, "tracking.every=2"), run, [path])


@pytest.mark.slow
def test_every_field_that_may_be_accepted_takes_effect(tmp_path: Path) -> None:
    """Each change of the table of effects, made in the middle of a run."""
    (tmp_path / "before").mkdir()
    before = Before(tmp_path / "before")
    begun: dict[tuple[Any, ...], tuple[Path, dict[str, Any]]] = {}
    idle: set[str] = set()
    effective = 0
    for name, effect in EFFECTS.items():
        common = BASE[:1] if name.startswith("HuggingFaceConfig") else BASE
        every = [flag.replace("{tmp}", str(before.folder)) for flag in (*common, *effect.base)]
        if effect.change.startswith("schedule"):
            continue  # much of a curve lies behind: warm-up, its phases
        if name in PRETRAINED_ROWS:
            prepare(before.folder, name)
        every.append(f"workspace={tmp_path}")  # it may not change with the directory
        longer = (*every, "duration=7 steps")
        change = effect.change.replace("{tmp}", str(before.folder))
        folder = tmp_path / name
        folder.mkdir()
        try:
            whole = small_job(folder, *longer, without=effect.without)
            changed = small_job(folder, *longer, change, without=effect.without)
            if fingerprint(whole) == fingerprint(changed):
                continue  # it is not part of what is learned
            key = (*every, effect.without)
            if key not in begun:
                run = folder / "run"
                train(small_job(folder, *every, without=effect.without), run)
                shutil.copytree(run, folder / "begun")
                train(whole, run, ["schedule"])
                begun[key] = folder / "begun", essence(run)
            start, expected = begun[key]
        except SetpointError:
            continue  # it needs a GPU, or a package that is not here
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(start, tmp_path / "run")
        found = recorded_differences(str(tmp_path / "run"), changed)
        accept = [each.path for each in found if each.role is IDENTITY]
        accept += ["data"] * any(within(path, "data") for path in accept)
        try:
            train(changed, tmp_path / "run", accept)
        except SetpointError:
            continue
        now = essence(tmp_path / "run")
        learned = [key for key in now if key.startswith("latest ") and key.endswith(".safetensors")]
        if all(now[key] == expected.get(key) for key in learned):
            idle.add(name)
        else:
            effective += 1
    assert effective > 60
    assert idle == COMPUTES_THE_SAME.keys()
