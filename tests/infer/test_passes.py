"""What is done between two passes through a model: when, and what is left of it."""

import gc
import json
from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.infer.adopt import complete
from setpoint.infer.config import Inference
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import LoadedModel
from setpoint.infer.passes import Passes, watching
from setpoint.train.config import Job

from ..profile.traces import read_trace
from ..support.snapshots import refused
from .small import folder_of

# Three batches of four sequences, and five tokens for two texts side by side: eight passes.
JUDGE = ("evaluation.sequences=12", "batch.micro_size=4")
WRITE = ('generation.prompts=["!", "a"]', "generation.max_tokens=5", "generation.temperature=0")
PROFILE = ("profiling={wait: 0, warmup: 1, active: 2}", "output={out}")


def job_of(run: Path, out: Path, *flags: str) -> Inference:
    given = [f"weights.path={run}", *flags]
    return complete(compose(Inference, flags=[f.replace("{out}", str(out)) for f in given]).draft)


def observed(passes: Passes, model: torch.nn.Module, count: int) -> None:
    for _ in range(count):
        model(torch.zeros(1, 4, dtype=torch.int64, device="cpu"))


def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The generations that garbage is collected of from now on."""
    found: list[int] = []
    monkeypatch.setattr("setpoint.resilience.gc.gc.collect", found.append)
    return found


def test_a_pass_is_a_batch_or_a_token(trained: tuple[Job, Path], tmp_path: Path) -> None:
    flags = (*JUDGE, *WRITE, *PROFILE, "profiling.repeat=null")
    profiles = infer(job_of(trained[1], tmp_path / "out", *flags)).profiles
    assert profiles is not None and profiles.passes == 3 + 5
    # The last cycle was broken off after its warm-up and one recorded pass.
    assert [(each.first, each.last) for each in profiles.cycles] == [(2, 3), (5, 6), (8, 8)]
    assert [each.whole for each in profiles.cycles] == [True, True, False]


def test_where_a_profile_goes(trained: tuple[Job, Path], tmp_path: Path) -> None:
    found = infer(job_of(trained[1], tmp_path / "out", *JUDGE, *PROFILE))
    traces = tmp_path / "out" / "traces" / "rank-0"
    assert sorted(path.name for path in traces.iterdir()) == ["steps-2-3.json.gz", "steps-2-3.txt"]
    events = read_trace(traces / "steps-2-3.json.gz")
    assert any(event.get("name") == "aten::mm" for event in events)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["profiling"] == {
        "passes": 3,
        "cycles": [{
            "first": 2, "last": 3, "trace": "traces/rank-0/steps-2-3.json.gz",
            "table": "traces/rank-0/steps-2-3.txt",
        }],
    }  # fmt: skip
    assert found.profiles is not None
    first, *_, last = found.profiles.format_lines()
    assert first.startswith("2 passes, ")
    assert last == f"profile of passes 2 to 3: {traces / 'steps-2-3.json.gz'}"


def test_an_absolute_folder_needs_no_output(trained: tuple[Job, Path], tmp_path: Path) -> None:
    flags = (*JUDGE, PROFILE[0], f"profiling.directory={tmp_path / 'here'}")
    infer(job_of(trained[1], tmp_path, *flags))
    assert (tmp_path / "here" / "rank-0" / "steps-2-3.json.gz").is_file()
    infer(job_of(trained[1], tmp_path, *flags, f"output={tmp_path / 'judged'}"))
    assert (tmp_path / "here" / "judged" / "rank-0" / "steps-2-3.json.gz").is_file()


def test_a_short_job_says_what_is_missing(trained: tuple[Job, Path], tmp_path: Path) -> None:
    for active, said in ((7, "when 0 of 1 cycles were complete"), (2, None)):
        out = tmp_path / str(active)
        job = job_of(trained[1], out, *JUDGE, *PROFILE, f"profiling.active={active}")
        profiles = infer(job).profiles
        assert profiles is not None
        words = "\n".join(profiles.format_lines())
        assert (f"ended after 3 forward passes, {said}" in words) == (said is not None)
        assert ("profiling: " in words) == (said is not None)


def test_a_job_that_fails_can_be_done_again(
    trained: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded is kept, with the record of the job, and nothing goes on."""
    job = job_of(trained[1], tmp_path / "out", *JUDGE, *WRITE, *PROFILE, "profiling.active=6")
    with monkeypatch.context() as patch:
        patch.setattr("setpoint.infer.inference.continue_prompts", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            infer(job)
    assert not vars(torch.autograd)["_profiler_enabled"]()
    names = folder_of(tmp_path / "out")
    assert "traces/rank-0/steps-2-2.json.gz" in names and "results.json" not in names
    assert infer(job).texts
    assert "results.json" in folder_of(tmp_path / "out")


@pytest.mark.usefixtures("thawed")
def test_garbage_is_collected_when_it_is_due(
    trained: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = collected(monkeypatch)
    gc_flags = ("resilience.gc.every=3 steps", "resilience.gc.generation=0")
    infer(job_of(trained[1], tmp_path, *JUDGE, *WRITE, *gc_flags))
    assert found == [2, 0, 0]  # everything at the start, and after passes 3 and 6 of 8
    assert gc.isenabled() and gc.get_freeze_count() == 0


@pytest.mark.usefixtures("thawed")
def test_python_does_not_collect_in_between(
    trained: tuple[Job, Path], tmp_path: Path, loaded: LoadedModel
) -> None:
    for automatic in (False, True):
        section = f"resilience.gc={{every: 99 steps, automatic: {str(automatic).lower()}}}"
        job = job_of(trained[1], tmp_path, *JUDGE, section)
        with pytest.raises(KeyboardInterrupt), watching(job, loaded) as passes:
            observed(passes, loaded.model, 2)
            assert gc.isenabled() is automatic and gc.get_freeze_count() > 0
            # The first is over since the second began; nobody knows yet whether the second is.
            assert passes.count == 2
            raise KeyboardInterrupt
        assert gc.isenabled() and gc.get_freeze_count() == 0
        observed(passes, loaded.model, 1)
        assert passes.count == 2  # the hook is gone


def test_a_period_in_minutes(
    trained: tuple[Job, Path], tmp_path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, clock = collected(monkeypatch), iter(range(0, 900, 25))
    monkeypatch.setattr("setpoint.infer.passes.time.monotonic", lambda: next(clock))
    job = job_of(trained[1], tmp_path, *JUDGE, "resilience.gc.every=1 min")
    with watching(job, loaded) as passes:
        observed(passes, loaded.model, 6)
    # Passes end after 25, 50, 75, 100, 125 and 150 seconds.
    assert found == [2, 1, 1]


@pytest.mark.parametrize(
    "flags",
    [
        (*JUDGE, "profiling.active=1"),
        ("export.path={out}", "resilience.gc.every=9 steps"),
        (*JUDGE, *PROFILE, "profiling.ranks=[0, 1]"),
        (*JUDGE, *PROFILE, "profiling.snapshot=true", "parallel.device=cpu"),
        (*JUDGE, "resilience.gc.every=1 epochs"),
    ],
    ids=lambda flags: flags[-1],
)
def test_what_is_refused(trained: tuple[Job, Path], tmp_path: Path, flags: tuple[str, ...]) -> None:
    with refused(ConfigError):
        job_of(trained[1], tmp_path / "out", *flags)
    job_of(trained[1], tmp_path / "out", *JUDGE, *PROFILE, "resilience.gc.every=never")
