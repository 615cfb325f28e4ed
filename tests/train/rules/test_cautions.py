import json
from pathlib import Path

import pytest

from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values
from setpoint.config.resolving.checks import cautions_of
from setpoint.optim.config import MuonConfig
from setpoint.train.config import Job
from setpoint.train.run import train

from ..small import events, small_job

HORIZON = "horizon-differs-from-run"

LEARNED = ("model.positions=learned",)
ACCURACY = ("evaluation.accuracy=true", "evaluation.best.metric=accuracy")
ADDED = (
    "adapter=lora",
    "model.pretrained=x",
    "tokenizer={type=huggingface, path=y, added=[<|tool|>]}",
)
MUP = ("model.mup.base_dim=64",)
PIECEWISE = "schedule.type=piecewise"
FREE = "optimizer=schedule_free_adamw"
ASKED = "data.sources=[{type=questions}]"
FOREIGN = ("model=huggingface", "model.config=llama")
ON_GPU = ("parallel.device=cuda", "precision.compute=bf16")
WINDOWS = ("model.attention_pattern=[sliding, full]", "model.sliding_window=32")
DENSE = ["dense-attention"]
LONG = ("duration=2000 steps", "batch.micro_size=1", "batch.accumulation=1")

FLOAT8 = ("precision.compute=bf16", "precision.float8={}")


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        (("optimizer.lr=3",), ["learning-rate-high"]),
        (("model.dim=1000000", "model.heads=8"), ["larger-than-any-machine"]),
        (("batch.global_size=9999999999",), ["larger-than-any-machine"]),
        (("schedule=constant", "schedule.warmup=300"), ["warmup-longer-than-run"]),
        (("schedule=constant", "schedule.warmup=299"), []),
        (("schedule.horizon=100",), [HORIZON]),
        (("schedule.horizon=400",), [HORIZON]),
        (("schedule=wsd", "schedule.horizon=200"), [HORIZON]),
        ((PIECEWISE, "schedule.phases=[{length: 20, target: 1}, {target: 0}]"), []),
        ((PIECEWISE, "schedule.phases=[{length: 301, target: 1}]"), [HORIZON]),
        ((PIECEWISE, "schedule.start=1", "schedule.phases=[{length: 20, target: 0}]"), [HORIZON]),
        ((PIECEWISE, "schedule.horizon=400", "schedule.phases=[{target: 1}]"), [HORIZON]),
        (("schedule=plateau",), ["plateau-beyond-run"]),
        (("checkpoint.at=[5, 9999]",), ["saved-after-the-end"]),
        ((*ON_GPU, "data.packing.method=next_fit"), []),
        ((*ON_GPU, "data.packing.method=next_fit", "model.attention_backend=sdpa_cudnn"), DENSE),
        ((*ON_GPU, "data.packing.method=next_fit", "model.attention_dropout=0.1"), DENSE),
        ((*ON_GPU, *WINDOWS, "model.attention_backend=sdpa"), DENSE),
        ((*ON_GPU, *WINDOWS, "model.sliding_window=256", "model.attention_backend=sdpa"), []),
        ((*LONG, "checkpoint.every=last_step"), ["saved-only-at-the-end"]),
        ((*LONG, "checkpoint.every=1999 steps"), ["evaluated-but-not-saved"]),
        (("checkpoint.every=last_step",), []),
        (("duration=1 h", "schedule=constant"), []),
        (("evaluation.early_stopping.patience=2",), ["patience-beyond-run"]),
        (("evaluation.best.direction=max",), ["best-is-the-worst"]),
        ((*ACCURACY, "evaluation.best.direction=min"), ["best-is-the-worst"]),
        ((*LEARNED, "model.max_sequence_length=512"), ["positions-never-trained"]),
        ((*LEARNED, "model.max_sequence_length=512", "model.pretrained=x"), []),
        (("adapter=lora",), ["adapter-on-random-weights"]),
        (("adapter=lora", "model.pretrained=x"), []),
        (("adapter=lora", "checkpoint.load=x"), []),
        (ADDED, ["added-tokens-frozen"]),
        ((*ADDED, "adapter.train=[embedding]"), []),
        ((*MUP, "optimizer={type=import, target=torch.optim.NAdam}"), []),
        ((*MUP, "optimizer={type=import, target=torch.optim.SGD}"), ["mup-without-adam"]),
        ((FREE,), ["schedule-free-with-decay"]),
        ((FREE, "schedule=constant"), []),
        (("parallel.device=cuda",), ["fp32-without-tf32"]),
        (("parallel.device=cuda", "precision.tf32=false"), []),
        (("parallel.device=cuda", *FLOAT8), ["float8-without-compile"]),
        (("parallel.device=cuda", *FLOAT8, "compile={}"), []),
        (("optimizer=lion", "optimizer.lr=1e-3"), []),
        (("optimizer=lion", "optimizer.lr=3e-3"), ["lion-learning-rate-high"]),
        (("evaluation.every=40 steps", "checkpoint.every=50 steps"), ["evaluated-but-not-saved"]),
        (("duration=1e18 steps", "checkpoint.every=70 steps"), ["evaluated-but-not-saved"]),
        (("evaluation.every=40 steps", "checkpoint.every=20 steps"), []),
        (("evaluation.every=60 steps", "checkpoint.every=40 steps"), []),
        (("evaluation.every=290 steps", "checkpoint.every=last_step"), []),
        (("evaluation.every=40 steps", "checkpoint.every=50 steps", "checkpoint.keep_best=false"),
         []),
        ((ASKED, "data.packing.method=concatenate"), ["conversations-cut"]),
        ((ASKED, "data.packing.isolate=false"), ["conversations-not-isolated"]),
        ((ASKED, *FOREIGN, "data.packing.method=concatenate"), ["conversations-cut"]),
        (("optimizer=muon", "optimizer.lr=3e-4"), ["muon-learning-rate-low"]),
        (("optimizer=muon", "optimizer.lr=3e-4", "optimizer.adjust_lr=match_rms_adamw"), []),
    ],
)  # fmt: skip
def test_cautions(flags: tuple[str, ...], codes: list[str]) -> None:
    job = compose(Job, flags=flags).resolve()
    assert [caution.code for caution in cautions_of(job)] == codes


@pytest.mark.parametrize(
    ("flags", "method", "isolate"),
    [
        ((), "concatenate", False),
        (
            ("data.sources=[{type=conversations, paths=[c.jsonl]}, {type=stdlib}]",),
            "next_fit",
            True,
        ),
        ((ASKED, *FOREIGN), "next_fit", True),
        ((ASKED, "data.packing.method=none"), "none", True),
        ((ASKED, "data.packing.method=concatenate"), "concatenate", False),
    ],
)
def test_conversations_are_packed_whole(flags: tuple[str, ...], method: str, isolate: bool) -> None:
    packing = compose(Job, flags=flags).resolve().data.packing
    assert (packing.method, packing.isolate) == (method, isolate)


def test_a_run_says_and_records_them(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=2 steps", "optimizer.lr=0.5")
    run = train(job).directory
    (caution,) = events(run)[0]["cautions"]
    assert caution["code"] == "learning-rate-high" and caution["path"] == "optimizer.lr"
    assert json.dumps(caution["origin"]) == '"command line optimizer.lr"'
    assert "caution: optimizer.lr = 0.5" in (run / "logs" / "rank-0.log").read_text()


def test_rates_of_muon_follow_from_one() -> None:
    """Its own defaults, and what the caution advises, are no reason for a caution."""
    (low,) = cautions_of(compose(Job, flags=("optimizer=muon", "optimizer.lr=3e-3")).resolve())
    assert low.hint == "Set lr to 0.02, or adjust_lr to match_rms_adamw."
    for flags, rate in (
        ((), 0.002),
        (("optimizer.lr=0.05",), 0.005),
        (("optimizer.lr=3e-3", "optimizer.adjust_lr=match_rms_adamw"), 3e-3),
        (("optimizer.adamw_lr=3e-3",), 3e-3),
    ):
        job = compose(Job, flags=("optimizer=muon", *flags)).resolve()
        assert isinstance(job.optimizer, MuonConfig)
        assert job.optimizer.adamw_lr == pytest.approx(rate) and cautions_of(job) == (), flags


def test_a_rate_of_a_preset_is_for_its_own_optimizer() -> None:
    def rate(*flags: str) -> float:
        return compose(Job, "tiny", flags=flags).resolve().optimizer.lr

    assert rate() == rate("optimizer=schedule_free_adamw") == 3e-3, "both have the same default"
    assert rate("optimizer=muon") == 0.02 and rate("optimizer=lion") == 1e-4
    assert rate("optimizer=sgd") == 0.1
    for flags in (("optimizer.lr=0.03", "optimizer=muon"), ("optimizer=muon", "optimizer.lr=0.03")):
        assert rate(*flags) == 0.03
        draft = compose(Job, "tiny", flags=flags).resolve()
        assert not any("optimizer.lr" in line for line in dropped_values(draft)), "it is given"
    draft = compose(Job, "tiny", flags=("optimizer=muon",)).resolve()
    (line,) = [line for line in dropped_values(draft) if line.startswith("optimizer.lr")]
    assert "from preset tiny" in line and line.endswith("has its own default, 0.02")
