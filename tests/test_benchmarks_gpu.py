"""The bench for a GPU: its arithmetic, how it reads traces, and all of it in small on a CPU."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from setpoint.model.initialize import initialize
from setpoint.model.parameters import training_flops
from setpoint.profile.profiler import without_chatter

from .support.forks import Forks


def job_of(load: Any, name: str, folder: Path, small: bool = True, **values: Any) -> Any:
    cases = load("gpu.cases")
    tokens, device = folder / "tokens.npy", "cpu" if small else "cuda"
    if not tokens.exists():
        load("gpu.bench").write_tokens(tokens, 10_000)
    found = cases.values_of(name, device, tokens, folder, None, small)
    cases.merge(found, values)
    (folder / "job.json").write_text(json.dumps(found))
    return cases.resolved(folder / "job.json")


def test_cases_are_what_they_say(load: Any, tmp_path: Path) -> None:
    """Each resolves for a GPU; FLOPs by hand are Setpoint's; 8B leaves room on 80 GB."""
    cases, bench = load("gpu.cases"), load("gpu.bench")
    for name, case in cases.CASES.items():
        job = job_of(load, name, tmp_path, small=False)
        sizes = {"vocab_size": 257, "sequence_length": job.batch.sequence_length}
        shape = cases.shape_of(job, name, "cuda")
        assert cases.flops_per_token(shape) == training_flops(job.model, "palm", **sizes), name
        assert job.duration.in_unit("steps") == case.steps == case.timed + cases.CHUNK
        assert case.timed + 2 + cases.PROFILED < case.steps  # a row is none of the profiled steps
        assert (job.precision.float8 is not None) is ("float8" in name) is shape["float8"]
        assert (job.compile is None) is ("eager" in name) is not shape["compile"]
        assert job.data.packing.isolate is ("packed" in name)
        planned = bench.planned_bytes(job)
        assert (55 if name.startswith("8b") else 10) < planned / 2**30 < 76, name


@pytest.mark.parametrize(("name", "tolerance"), [("8b", 1e-5), ("moe", 2e-2)])
def test_the_bare_loop_has_the_same_model(
    load: Any, tmp_path: Path, name: str, tolerance: float
) -> None:
    bare = load("gpu.bare")
    exact = {"precision": {"params": "fp32", "compute": "fp32"}, "model": {"rope_scaling": None}}
    job = job_of(load, name, tmp_path, **exact)
    model = job.model.build(vocab_size=257).eval()
    initialize(model, seed=1)
    shape = load("gpu.cases").shape_of(job, name, "cpu")
    other = bare.Model(shape)
    weights = dict(model.state_dict())
    if shape["tied"]:
        weights["output.weight"] = weights["embedding.weight"]
    other.load_state_dict({n.replace("experts.", ""): each for n, each in weights.items()})
    tokens = torch.randint(257, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = other.output(other(tokens))
        expected = model(tokens)
    size = expected.abs().max().item()
    torch.testing.assert_close(
        logits[..., :257], expected[..., :257], rtol=0, atol=tolerance * size
    )


def test_idle_time_is_that_without_a_kernel(load: Any) -> None:
    trace = load("gpu.trace")

    def event(name: str, cat: str, ts: float, dur: float, tid: int = 7) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 0, "tid": tid}

    gemm = "void cutlass::Kernel2<cutlass_80_tensorop<float>>(Params)"
    flash = "void pytorch_flash::flash_fwd_kernel<Traits<64, 128>, false>(Flash_fwd_params)"
    events = [
        event("ProfilerStep#8", "user_annotation", 100, 50),
        event("ProfilerStep#9", "user_annotation", 150, 50),
        event(gemm, "kernel", 90, 5),  # of a step before
        event(gemm, "kernel", 110, 20),
        event(flash, "kernel", 120, 20, tid=8),  # at the same time, on another stream
        event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 200, 10),
        event("cudaStreamSynchronize", "cuda_runtime", 190, 9),
        event("cudaDeviceSynchronize", "cuda_runtime", 300, 9),  # when the profile ends
        event("aten::mm", "cpu_op", 100, 90),
        {"ph": "f", "name": "ac2g"},
    ]
    seen = trace.activity_of(events)
    assert (seen.steps, seen.waits) == (2, 0.5)
    assert seen.seconds == pytest.approx(100e-6) and seen.longest_gap == pytest.approx(60e-6)
    assert seen.idle == pytest.approx(0.6)
    assert seen.kernels == {
        "cutlass::Kernel2": 0.4, "pytorch_flash::flash_fwd_kernel": 0.4, "Memcpy DtoH ": 0.2,
    }  # fmt: skip
    assert seen.attention == ["pytorch_flash::flash_fwd_kernel"]
    with pytest.raises(ValueError, match="holds no kernels"):
        trace.activity_of(events[:2])


def test_a_trace_of_torch_is_read(load: Any, tmp_path: Path) -> None:
    """Operators stand for kernels where there is no GPU."""
    trace, x = load("gpu.trace"), torch.ones(64, 64)
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    with without_chatter(), profile(activities=[ProfilerActivity.CPU], schedule=plan) as seen:
        for _ in range(3):
            torch.nn.functional.linear(x, x)
            time.sleep(0.05)
            seen.step()
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    found = trace.activity_of(trace.read(tmp_path / "trace.json"))
    assert found.steps == 2 and found.waits == 0
    assert found.longest_gap >= 0.05 and found.idle > 0.5
    assert {"aten::linear", "aten::addmm", "aten::mm"} & found.kernels.keys()
    assert sum(found.kernels.values()) == pytest.approx(1)


@pytest.mark.slow
def test_all_of_it_in_small(
    load: Any, monkeypatch: pytest.MonkeyPatch, forks: Forks, tmp_path: Path, capsys: Any
) -> None:
    """Both sides of a case; one that fails, one that takes too long, and one without time."""
    bench, cases = load("gpu.bench"), load("gpu.cases")
    monkeypatch.setattr(sys, "executable", f"{forks.programs}/python")
    monkeypatch.setitem(cases.CASES, "1b", cases.CASES["1b"]._replace(chunks=1))
    broken = {"model": {"attention_backend": "varlen"}}
    case = cases.CASES["1b"]._replace(changes=(*cases.CASES["1b"].changes, broken), beside=False)
    monkeypatch.setitem(cases.CASES, "1b-varlen", case)
    given = ["--device", "cpu", "--small", "--peak-flops", "1e12", "--json", f"{tmp_path}/a.json"]
    assert bench.main([*given, "--only", "1b", "1b-varlen"]) == 1
    out = capsys.readouterr().out
    figures = json.loads((tmp_path / "a.json").read_text())
    ours, bare, failed = figures["rows"]
    for row in (ours, bare):
        assert not row["error"], row["error"] + row["log"]
        assert len(row["losses"]) == 2
        assert row["peak_bytes"] > 2**20 and row["activity"]["steps"] == 2
        assert row["mfu"] > 0
        assert f"{row['tokens_per_second']:,.0f}" in out
    # Between two rows lies more than their steps, such as what the row itself takes.
    assert ours["tokens_per_second"] == pytest.approx(ours["logged"], rel=0.5)
    assert ours["planned_bytes"] > 0
    assert "needs a GPU" in failed["error"] and "FAILED 1b-varlen setpoint: " in out
    assert f"torch {torch.__version__}" in out

    work = bench.Bench(tmp_path / "b", "cpu", True, None, time.monotonic() + 100, limit=0.01)
    work.folder.mkdir()
    bench.write_tokens(work.folder / "tokens.npy", 10_000)
    assert work.run("1b", "bare").error.startswith("stopped after 0")
    work.until = time.monotonic()
    assert work.run("8b", "bare").error.startswith("left out")


def test_without_a_gpu_it_says_so(load: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PATH", "")
    assert load("gpu.bench").main([]) == 2
    assert "Valid: --device cpu --small" in capsys.readouterr().err
