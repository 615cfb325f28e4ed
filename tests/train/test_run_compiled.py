"""A compiled run is the run as it is written: losses, gradients, checkpoints, evaluation, text.

Tolerances: fp32 to 1e-5 relative, since compiled code adds up in another order; bf16 to 2e-2, since
it keeps in fp32 what eager code rounds between two operations.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.config import patch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.config import RunError
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from .small import PRINTING, TABLE, assert_same_run, events, rows, small_job, train_rows

SHORT = ("duration=4 steps", "model.layers=2", "evaluation.every=2 steps")
# What is compared is what torch.compile captures; a few tests go on through its other stages, which
# take most of the time.
COMPILED = ("compile={}", "compile.backend=eager")
AOT = ("compile={}", "compile.backend=aot_eager")
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
LATENT = "model.mla={kv_rank=6, rope_head_dim=4, nope_head_dim=4, value_head_dim=4}"
CASES: dict[str, tuple[str, ...]] = {
    "dense": (),
    "whole": ("compile.scope=model",),
    "whole with a chunked loss": (
        "compile.scope=model", "model.layers=1", "loss=chunked_cross_entropy",
    ),
    "graph": ("compile.scope=graph",),
    "graph with experts": ("compile.scope=graph", "model.layers=1", "model.moe.experts=4"),
    "graph of packed documents": (
        "compile.scope=graph", "model.layers=1", "data.packing.method=first_fit_decreasing",
        "data.packing.isolate=true",
    ),
    "graph with checkpointing": (
        "compile.scope=graph", "memory.activation_checkpointing=full", "compile.backend=aot_eager",
    ),
    "graph of rows of other lengths": ("compile.scope=graph", "data.packing.method=none"),
    "no accumulation": ("batch.accumulation=1", "batch.global_size=2"),
    "bf16": ("precision.compute=bf16",),
    "pure bf16": ("precision.compute=bf16", "precision.params=bf16", "model.dropout=0"),
    "experts": ("model.moe.experts=4",),
    "experts by a loop": (
        "model.layers=1", "model.moe={experts=4, packed=false, router={type=sigmoid_top_k}}",
    ),
    "latent": (LATENT,),
    "windows": ("model.attention_pattern=[sliding, full]", "model.sliding_window=4"),
    # The backend eager would drop other activations the second time, and is refused.
    "checkpointing": ("memory.activation_checkpointing=full", "compile.backend=aot_eager"),
    "deterministic": ("deterministic=true",),
    "all sizes": ("compile.dynamic=true",),
    "each size": ("compile.dynamic=false",),
}  # fmt: skip


OWN = (*PRINTING, "compile.scope=model")


def job_of(folder: Path, *flags: str) -> Job:
    own = any(flag.startswith(("model=", "model.layers=")) for flag in flags)
    short = [flag for flag in SHORT if not own or not flag.startswith("model.")]
    return small_job(folder, *short, *flags)


def trained(job: Job) -> tuple[Path, list[torch.Tensor]]:
    """The directory of a run, and the gradients of its first update."""
    found: list[torch.Tensor] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not found:
            held = [p.grad for group in optimizer.param_groups for p in group["params"]]
            found.extend(gradient.float().clone() for gradient in held)

    hook = register_optimizer_step_pre_hook(look)
    try:
        return train(job).directory, found
    finally:
        hook.remove()


def test_compiled_to_a_graph_of_derivatives_equals_eager(tmp_path: Path) -> None:
    compare_with_eager(tmp_path, AOT, "dense")


QUICK = ("experts", "graph of packed documents")


@pytest.mark.parametrize(
    "case",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_compiled_equals_eager(tmp_path: Path, case: str) -> None:
    compare_with_eager(tmp_path, COMPILED, case)


def compare_with_eager(tmp_path: Path, compiled: tuple[str, ...], case: str) -> None:
    """Hold gradients, losses and evaluations of a compiled run against those of an eager one."""
    eager = [flag for flag in CASES[case] if not flag.startswith("compile")]
    plain, ours = job_of(tmp_path / "a", *eager), job_of(tmp_path / "b", *compiled, *CASES[case])
    tolerance = TOLERANCE[plain.precision.compute]
    (a, before), (b, after) = trained(plain), trained(ours)
    for one, other in zip(before, after, strict=True):
        atol = tolerance * float(one.abs().max())
        torch.testing.assert_close(other, one, rtol=0, atol=atol)
    assert events(b, "compile")
    assert len(rows(a)) == len(rows(b)) == 6
    for one, other in zip(rows(a), rows(b), strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() & {"loss", "held_out_loss"}:
            assert other[key] == pytest.approx(one[key], rel=tolerance)


def test_checkpoints_serve_both(tmp_path: Path) -> None:
    """A compiled run goes on as it is written, and starts another one; and the other way round."""
    constant = "schedule=constant"
    first = train(job_of(tmp_path, *COMPILED, constant, "duration=2 steps"))
    again = train(job_of(tmp_path, constant, "duration=3 steps"))
    third = train(job_of(tmp_path, *COMPILED, constant, "duration=4 steps"))
    assert first.directory == again.directory == third.directory
    assert (again.started.step, third.started.step) == (2, 3)
    whole = train(job_of(tmp_path / "whole", constant))
    losses = [row["loss"] for row in train_rows(third.directory)]
    theirs = [row["loss"] for row in train_rows(whole.directory)]
    assert losses == pytest.approx(theirs, rel=1e-5)
    start = f"model.pretrained={first.directory}"
    components = build_components(job_of(tmp_path / "next", *COMPILED, start, "seed=7"))
    assert components.pretrained is not None
    tensors = torch.cat([p.detach().flatten() for p in components.model.parameters()])
    ended = torch.cat([p.detach().flatten() for p in third.components.model.parameters()])
    assert torch.equal(tensors, ended)


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    flags = (*AOT, "model.layers=1", "checkpoint.every=2 steps", "schedule=constant")
    oracle = train(job_of(tmp_path / "a", *flags))
    train(job_of(tmp_path / "b", *flags, "duration=2 steps"))
    resumed = train(job_of(tmp_path / "b", *flags))
    assert resumed.started.step == 2
    assert_same_run(resumed.directory, oracle.directory)


def test_evaluation_is_compiled_once_and_takes_a_last_batch_of_another_size(tmp_path: Path) -> None:
    outcome = train(
        job_of(tmp_path, *COMPILED, "evaluation.every=1 steps", "evaluation.sequences=5")
    )
    found = events(outcome.directory, "compile")
    assert sum(event["graphs"] for event in found) <= 3
    assert [text for event in found for text in event["fallbacks"]] == []
    assert len(found[0]["recompilations"]) == 0
    assert found[0]["step"] == 1 and found[0]["first_step_seconds"] > found[0]["seconds"] > 0
    outcome = train(job_of(tmp_path / "next", "duration=1 steps"))
    assert events(outcome.directory, "compile") == [] and outcome.components.compiled is None


def test_a_part_that_runs_as_written_is_told(tmp_path: Path) -> None:
    outcome = train(job_of(tmp_path, *COMPILED, *OWN))
    (told,) = [text for e in events(outcome.directory, "compile") for text in e["fallbacks"]]
    assert "print" in told
    assert "small.py:" in told
    log = (outcome.directory / "logs" / "rank-0.log").read_text()
    assert log.count("graph break; the code that causes it runs eagerly") == 1


def test_a_part_that_runs_as_written_ends_the_run_if_it_must_not(tmp_path: Path) -> None:
    job = job_of(tmp_path, *COMPILED, *OWN, "compile.fallback=fail")
    with pytest.raises(RunError, match=r"step 1: compile\.fallback = fail: graph break"):
        train(job)
    (run,) = (tmp_path / "runs").iterdir()
    assert [event["event"] for event in events(run)][-2:] == ["compile", "fault"]
    assert list_checkpoints(run / "checkpoints").keys() <= {0}


def test_sizes_that_vary_beyond_the_limit_end_the_run_if_they_must_not(tmp_path: Path) -> None:
    """Training and evaluation are two graphs already, one of which would silently be eager."""
    flags = ("compile.dynamic=false", "compile.recompile_limit=1", "compile.fallback=fail")
    with pytest.raises(RunError, match=r"compile\.recompile_limit = 1 is reached(.|\n)*eagerly"):
        train(job_of(tmp_path, *COMPILED, *flags, "evaluation.every=1 steps"))


def test_a_graph_that_must_be_whole_and_is_not(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="torch.compile: Failed to trace builtin operator") as caught:
        train(job_of(tmp_path, *COMPILED, *OWN, "compile.fullgraph=true"))
    assert "Traceback" not in str(caught.value) and "small.py:" in str(caught.value)
    (run,) = (tmp_path / "runs").iterdir()
    assert "torch.compile" in events(run, "fault")[0]["error"]


def test_a_step_is_one_graph_whose_backward_is_one_node(tmp_path: Path) -> None:
    """Between the loss and the weights there is nothing but what was compiled."""
    job = job_of(tmp_path, *AOT, "compile.scope=graph", "evaluation=null", "model.layers=1")
    components = build_components(job)
    step = components.feed.take()
    share = components.objective.share(step.batches[0], *torch.ones(3).unbind())
    assert share.loss.grad_fn is not None
    assert "CompiledFunction" in type(share.loss.grad_fn).__name__
    nodes = {type(edge[0]).__name__ for edge in share.loss.grad_fn.next_functions if edge[0]}
    assert nodes == {"AccumulateGrad"}


@pytest.fixture
def short_inductor() -> Iterator[None]:
    """In a new folder inductor does without what takes longer than a small model.

    It would first compile programs that find out what the processor knows, and its headers for the
    many kernels to come.
    """
    with patch({"cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": False}):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("short_inductor")
def test_artifacts_of_a_run_are_loaded_by_the_next(tmp_path: Path) -> None:
    """The second run begins with an empty cache and finds each graph."""
    kept = tmp_path / "kept"
    flags = (*TABLE, "compile.scope=graph",
             f"compile.artifacts={kept}", "evaluation=null", "duration=1 steps")  # fmt: skip

    def run(name: str) -> tuple[str, dict[str, int]]:
        counters["inductor"].clear()
        job = small_job(tmp_path / name, *flags, f"compile.cache={tmp_path / name / 'cache'}")
        outcome = train(job)
        return (outcome.directory / "logs" / "rank-0.log").read_text(), dict(counters["inductor"])

    log, found = run("a")
    assert "artifacts loaded" not in log and found["fxgraph_cache_miss"]
    (file,) = kept.iterdir()
    log, found = run("b")
    assert f"artifacts loaded from {file}" in log
    assert found["fxgraph_cache_hit"] and not found.get("fxgraph_cache_miss")


@pytest.mark.slow
def test_a_model_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    flags = ("model=huggingface", "model.config=gpt2", "model.overrides={n_layer: 1, n_embd: 16}")
    small = ("model.overrides.n_head=2",)
    plain = train(job_of(tmp_path / "a", *flags, *small))
    ours = train(job_of(tmp_path / "b", *flags, *small, *COMPILED))
    (first, *_) = events(ours.directory, "compile")
    assert first["graphs"] >= 1
    assert [text for e in events(ours.directory, "compile") for text in e["fallbacks"]] == []
    held = [[row["loss"] for row in rows(run.directory) if "loss" in row] for run in (plain, ours)]
    # Dropout draws the same numbers, for aot_eager runs the operations one by one.
    assert held[0] == pytest.approx(held[1], rel=1e-4)


@pytest.mark.parametrize(
    "model",
    [TABLE, ("model.layers=2", "model.dropout=0")],
    ids=["small", "transformer"],
)
@pytest.mark.slow
@pytest.mark.usefixtures("short_inductor")
def test_inductor_with_a_cache_of_its_own(tmp_path: Path, model: tuple[str, ...]) -> None:
    """The whole way, with a C++ compiler; the second run finds its code in the folder."""
    cache = tmp_path / "cache"
    scope = "block" if "model.layers=2" in model else "model"
    flags = (f"compile={{scope={scope}}}", f"compile.cache={cache}")
    base = ("duration=2 steps", "evaluation=null", *model)
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    plain = train(small_job(tmp_path / "a", *base))
    first = train(small_job(tmp_path / "b", *base, *flags))
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*.so")}
    assert made
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
    again = train(small_job(tmp_path / "c", *base, *flags))
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.so")} == made
    losses: list[Any] = [
        [json.dumps(row["loss"]) for row in rows(run.directory)] for run in (plain, first, again)
    ]
    assert losses[1] == losses[2]
    assert [float(x) for x in losses[1]] == pytest.approx([float(x) for x in losses[0]], rel=1e-5)
