import json
from pathlib import Path

import pytest

from setpoint.config.compose import compose
from setpoint.config.verify import cautions_of, known_codes
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.train.suspicious import (
    CAUTIONS,
    HIGH_RATE,
    HORIZON,
    MUP_WITHOUT_ADAM,
    NEVER_SAVED,
    UNTRAINED_POSITIONS,
    WARMUP,
)

from .small import events, small_job

LEARNED = ("model.positions=learned",)
MUP = ("model.mup.base_dim=64",)
LONG = ("duration=2000 steps", "batch.micro_size=1", "batch.accumulation=1")


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        ((), []),
        (("optimizer.lr=3",), [HIGH_RATE]),
        (("optimizer.lr=0.1",), []),
        (("schedule=constant", "schedule.warmup_steps=300"), [WARMUP]),
        (("schedule=constant", "schedule.warmup_steps=299"), []),
        (("schedule.horizon_steps=100",), [HORIZON]),
        (("schedule.horizon_steps=400",), [HORIZON]),
        ((*LONG, "checkpoint.every=last_step"), [NEVER_SAVED]),
        ((*LONG, "checkpoint.every=2000 steps"), [NEVER_SAVED]),
        ((*LONG, "checkpoint.every=1999 steps"), []),
        (("checkpoint.every=last_step",), []),
        (("duration=1 h", "schedule=constant"), []),
        (LEARNED, []),
        ((*LEARNED, "model.max_sequence_length=512"), [UNTRAINED_POSITIONS]),
        ((*LEARNED, "model.max_sequence_length=512", "model.pretrained=x"), []),
        (("model.max_sequence_length=512",), []),
        (MUP, []),
        ((*MUP, "optimizer={type=import, target=torch.optim.NAdam}"), []),
        ((*MUP, "optimizer={type=import, target=torch.optim.SGD}"), [MUP_WITHOUT_ADAM]),
        (("optimizer={type=import, target=torch.optim.SGD}",), []),
    ],
)
def test_what_is_seldom_meant(flags: tuple[str, ...], codes: list[str]) -> None:
    job = compose(Job, flags=flags).resolve()
    assert [caution.code for caution in cautions_of(job)] == codes


def test_every_code_is_known() -> None:
    assert set(CAUTIONS) <= set(known_codes(Job))


def test_a_run_says_and_records_them(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=2 steps", "optimizer.lr=0.5")
    run = train(job).directory
    (caution,) = events(run)[0]["cautions"]
    assert caution["code"] == HIGH_RATE and caution["path"] == "optimizer.lr"
    assert json.dumps(caution["origin"]) == '"command line optimizer.lr"'
    assert "caution: optimizer.lr = 0.5" in (run / "logs" / "rank-0.log").read_text()
