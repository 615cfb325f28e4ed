"""Presets: `tiny` and modifiers, the GPUs that they fit, and that each architecture learns.

The values of presets are in tests/golden.
"""

import re
from pathlib import Path

import pytest

import setpoint.presets  # registers the presets
from setpoint.config import resolve
from setpoint.config.composition import compose
from setpoint.config.layers.presets import presets
from setpoint.config.record.record import differences, fingerprint
from setpoint.infer.generation import Sampling, generate
from setpoint.memory.config import CheckpointingConfig
from setpoint.model import load_pretrained
from setpoint.plan.gpus import gpu_named
from setpoint.plan.memory import rank_memory
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.units import Duration, Period


def test_two_calls_share_nothing() -> None:
    first, second = setpoint.presets.tiny.tiny(), setpoint.presets.tiny.tiny()
    first.model.layers = 7
    first.user.note = "mine"
    assert fingerprint(resolve(second)) == fingerprint(resolve(setpoint.presets.tiny.tiny()))
    assert fingerprint(resolve(first)) != fingerprint(resolve(second))


def test_it_trains_on_real_text(tmp_path: Path) -> None:
    """Two updates of the preset as it is, but for its size: the path of `make demo`."""
    flags = [
        f"workspace={tmp_path}", "duration=2 steps", "evaluation.sequences=2", "model.layers=1",
        "batch.global_size=2", 'data.sources.0.include=["json/*", "email/*"]',
        "tracking.progress=none",
    ]  # fmt: skip
    job = compose(Job, "tiny", flags=flags).resolve()
    outcome = train(job)
    assert outcome.status == 0
    assert outcome.score is not None


def test_smoke_is_short() -> None:
    job = compose(Job, "tiny", modifiers=["smoke(steps=3)"]).resolve()
    assert job.duration == Duration("3 steps")
    assert job.evaluation is not None
    assert job.evaluation.every == Period("last_step")
    assert compose(Job, "tiny", modifiers=["smoke"]).resolve().duration == Duration("10 steps")


def test_reproducible_touches_two_values() -> None:
    plain = compose(Job, "tiny").resolve()
    job = compose(Job, "tiny", modifiers=["reproducible"]).resolve()
    changed = {item.path: item.right for item in differences(plain, job)}
    assert changed == {"deterministic": True, "precision.compute": "fp32"}


def test_modifiers_combine_and_flags_win() -> None:
    job = compose(
        Job, "tiny", modifiers=["smoke", "reproducible"], flags=["duration=5 steps"]
    ).resolve()
    assert (job.duration, job.deterministic) == (Duration("5 steps"), True)


PAGE = Path(__file__).parents[2] / "docs" / "presets.md"
ROW = re.compile(r"^\| `([\w-]+)` \|.*\| (\d+)(?: with `--([\w.]+) (\w+)`)? \|$", re.MULTILINE)
DOCUMENTED = {
    name: (size, path, value) for name, size, path, value in ROW.findall(PAGE.read_text())
}
SMALL = ("tiny", "answers", "-tiny")


def test_all_are_documented() -> None:
    ours = {n for n, each in presets.items() if each.__module__.startswith("setpoint.presets")}
    assert set(DOCUMENTED) == {name for name in ours if not name.endswith(SMALL)}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_preset_fits_the_gpus_that_are_documented(name: str) -> None:
    size, path, value = DOCUMENTED[name]
    flags = [f"parallel.world_size={size}", "parallel.device=cuda"]
    job = compose(Job, name, flags=[*flags, *([f"{path}={value}"] if path else [])]).resolve()
    memory = rank_memory(Workload.of(job), Topology.of(job))
    assert not memory.unknown
    assert memory.total <= gpu_named("h100")[0].usable
    assert job.loss.from_hidden and job.compile is not None and job.data.loader.workers
    assert isinstance(job.memory.activation_checkpointing, CheckpointingConfig)


TEXT = "A line by heart is written again."
# Between them they have each part of the others.
PRESETS = ("gemma3-tiny", "gpt2-tiny", "deepseek-tiny")
OTHERS = ("llama3-tiny", "qwen3-tiny", "qwen3-moe-tiny", "mistral-tiny")


@pytest.mark.parametrize(
    "name", [*PRESETS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_a_text_is_learnt_by_heart_and_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text(TEXT)
    job = compose(
        Job,
        name,
        flags=[
            f'data.sources=[{{type=text, paths=["{tmp_path}/*.txt"]}}]', "data.held_out=0",
            "evaluation=null", "batch.global_size=1", f"batch.sequence_length={len(TEXT)}",
            "duration=40 steps", f"workspace={tmp_path}", "tracking.progress=none",
        ],
    ).resolve()  # fmt: skip
    run = train(job).directory
    model = load_pretrained(str(run))
    tokenizer = job.tokenizer.build()
    start = [tokenizer.separator, *tokenizer.encode(TEXT[:12].encode())]
    greedy = Sampling(temperature=0)
    (learnt,) = generate(model, [start], max_tokens=len(TEXT) - 12, sampling=greedy)
    assert TEXT[:12] + tokenizer.decode(learnt.tokens).decode() == TEXT
