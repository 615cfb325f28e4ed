"""Metrics of rows: norms of gradients, weights and updates, and MFU."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config.values.user_code import allow_imports
from setpoint.model.build import count_parameters
from setpoint.model.parameters import FORMULAS
from setpoint.optim.clip import norms_of_sets
from setpoint.plan.preflight import preflight
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.row_metrics import Utilization, utilization_of
from setpoint.train.run import train

from ..support.forks import forked
from .small import TABLE, Table, events, loop_of, rows, small_job

allow_imports(__name__)
CPU = torch.device("cpu")
GPT2 = ("model=huggingface", "model.config=gpt2", "model.overrides.n_layer=2",
        "model.overrides.n_embd=24", "model.overrides.n_head=4")  # fmt: skip


class Speaking(Table):
    """A table that says what attention it has."""

    class config:
        num_hidden_layers, num_attention_heads, hidden_size = 3, 2, 16


def used(job: Job) -> Utilization:
    components = build_components(job)
    return utilization_of(job, components.model, components.tokenizer.vocab_size, CPU)


def test_the_record_holds_formula_and_peak(tmp_path: Path) -> None:
    formula = "palm_causal"
    job = small_job(
        tmp_path, "duration=2 steps", f"tracking.flops={formula}", "tracking.peak_flops=1e12"
    )
    run = train(job).directory
    (start,) = events(run, "start")
    record = start["utilization"]
    flops = record["flops_per_token"]
    assert record == {
        "formula": formula, "text": FORMULAS[formula].text, "meaning": FORMULAS[formula].meaning,
        "flops_per_token": flops, "peak_flops": 1e12, "peak_source": "tracking.peak_flops",
        "ranks": 1,
    }  # fmt: skip
    for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if row["kind"] == "train":
            assert row["mfu"] == pytest.approx(row["tokens_per_second"] * flops / 1e12, rel=1e-12)
    facts = preflight(job).facts
    assert facts["FLOPs per token"] == round(flops)
    assert facts["FLOPs formula"] == f"{formula}: {FORMULAS[formula].text}"
    assert facts["peak FLOPs"] == "1e+12 per second and rank, for mfu"


def test_tokens_of_all_ranks_over_the_peak_of_all(tmp_path: Path) -> None:
    flags = ("parallel.world_size=8", "batch.global_size=32", "tracking.peak_flops=1e12")
    job = small_job(tmp_path, *flags, without=("micro_size", "accumulation"))
    found = used(job)
    assert (found.ranks, found.peak, found.total_peak) == (8, 1e12, 8e12)
    assert used(small_job(tmp_path)).total_peak is None


def test_a_gpu_has_the_peak_its_maker_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(tmp_path)
    components = build_components(job)
    name = "NVIDIA H200"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    gpu: Any = torch.device("cuda")
    found = utilization_of(job, components.model, 257, gpu)
    assert found.peak == 989.4e12
    assert found.source is not None and "H200 data sheet" in found.source
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A GPU of tomorrow")
    assert utilization_of(job, components.model, 257, gpu).peak is None
    # What is given beats what is known.
    given = small_job(tmp_path, "tracking.peak_flops=5e14")
    assert utilization_of(given, components.model, 257, gpu).source == "tracking.peak_flops"


def test_models_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("duration=1 steps", "model.overrides.vocab_size=257", *GPT2)
    job = small_job(tmp_path, *flags, "tracking.flops=all_parameters", without=NO_MODEL)
    components = build_components(job)
    found = utilization_of(job, components.model, 257, CPU)
    # 12 L H Q S with 2 layers of width 24.
    assert found.flops_per_token == 6 * count_parameters(components.model) + 12 * 2 * 24 * 16
    loud = ("tracking.peak_flops=1e12", "tracking.progress=lines")
    run = train(small_job(tmp_path, *flags, *loud, without=NO_MODEL)).directory
    (start,) = events(run, "start")
    assert start["utilization"]["flops_per_token"] is None
    assert "type = huggingface" in start["utilization"]["unknown"]
    shown = capsys.readouterr().out
    assert shown.count("mfu will be null") == 1
    assert "--tracking.flops all_parameters counts all of them" in shown


def test_models_of_ones_own(tmp_path: Path) -> None:
    formula = "tracking.flops=all_parameters"
    silent = used(small_job(tmp_path, *TABLE, formula, without=NO_MODEL))
    assert silent.flops_per_token is None
    assert silent.unknown is not None and "does not report the number of layers" in silent.unknown
    speaking = ("model=import", f"model.target={__name__}.Speaking")
    found = used(small_job(tmp_path, *speaking, formula, without=NO_MODEL))
    assert found.flops_per_token == 6 * 257 * 257 + 12 * 3 * 16 * 16


NO_MODEL = ("dropout", "dim", "layers", "heads")


ALL = (
    "tracking.metrics.grad_norms=[groups, layers]",
    "tracking.metrics.param_norms=[model, groups, layers]",
    "tracking.metrics.update_ratios=[model, groups, layers]",
)
SHORT = ("model.layers=2", "model.dropout=0", "evaluation=null")


def test_norms_are_those_of_torch(tmp_path: Path) -> None:
    """Also where gradients are clipped, and over the micro-batches of a step."""
    job = small_job(tmp_path, *SHORT, *ALL, "optimizer.clip_norm=0.01")
    components = build_components(job)
    before = {name: each.detach().clone() for name, each in components.model.named_parameters()}
    loop = loop_of(job, components=components)
    assert loop.engine.norms is not None
    result = loop.step()
    found = loop.engine.norms.columns()
    after = dict(components.model.named_parameters())

    def norm(tensors: Mapping[str, torch.Tensor], start: str = "") -> float:
        chosen = [each for name, each in tensors.items() if name.startswith(start)]
        return math.sqrt(sum(each.double().square().sum().item() for each in chosen))

    moved = {name: (after[name] - each).detach() for name, each in before.items()}
    assert found["param_norm"] == pytest.approx(norm(after), rel=1e-6)
    assert found["update_ratio"] == pytest.approx(norm(moved) / norm(before), rel=1e-5)
    for index in range(2):
        start = f"layers.{index}."
        assert found["param_norm_layers"][index] == pytest.approx(norm(after, start), rel=1e-6)
        ratio = norm(moved, start) / norm(before, start)
        assert found["update_ratio_layers"][index] == pytest.approx(ratio, rel=1e-5)
    names = ["embedding", "norm", "output"]
    layers = [*found["grad_norm_layers"], *(found[f"grad_norm_{name}"] for name in names)]
    for parts_of in (layers, [found["grad_norm_decay"], found["grad_norm_no_decay"]]):
        assert math.hypot(*parts_of) == pytest.approx(result.grad_norm, rel=1e-5)


def test_only_steps_with_rows_are_measured(tmp_path: Path) -> None:
    """They change no number, and a row by the clock has them, too."""
    flags = (*SHORT, "duration=5 steps", "tracking.every=2 steps")
    plain = rows(train(small_job(tmp_path / "plain", *flags)).directory)
    job = small_job(tmp_path / "norms", *flags, ALL[1])
    with pytest.MonkeyPatch.context() as patch:
        counted: list[int] = []
        name = "setpoint.train.row_metrics.norms_of_sets"
        patch.setattr(name, lambda *given: counted.append(1) or norms_of_sets(*given))
        found = rows(train(job).directory)
    assert [row["step"] for row in found] == [2, 4, 5] and len(counted) == 3
    assert all(row["param_norm"] > 0 for row in found)
    assert [{k: row[k] for k in old} for row, old in zip(found, plain, strict=True)] == plain
    [last] = rows(
        train(small_job(tmp_path / "time", *flags, ALL[1], "tracking.every=1 h")).directory
    )
    assert last["param_norm"] == found[-1]["param_norm"]


@pytest.mark.slow
def test_two_ranks_log_what_one_does() -> None:
    """Of each source, of norms, and of what models, losses and callbacks log."""
    forked("tests.train.metric_ranks")
