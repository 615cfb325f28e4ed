"""What of `[adapter]` is refused, and what is said of what is adapted."""

from math import prod
from pathlib import Path

import pytest

from setpoint.config import ConfigError
from setpoint.plan.memory import update_memory
from setpoint.plan.preflight import preflight
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.train.build.components import build_components
from setpoint.train.build.job_parameters import trained as trained_of

from ..support.snapshots import refused
from ..train.small import small_job

LORA = "adapter={{type: lora, rank: 2, {}}}"
REFUSED = (
    "rank: 0",
    "rank: 17",
    "ranks: [{pattern: query}]",
    "ranks: [{pattern: quary, rank: 1}]",
    "ranks: [{pattern: layers, rank: 1}, {pattern: query, rank: 2}]",
    "targets: [norm]",
    "targets: ['^output']",
    "exclude: [layers]",
    "train: [query]",
    "train: [output]",
    "train: [lm_head]",
    "fused_projections: split",
    "dropout: 0.1, exclude: [], targets: [output]",
    "merge: {every: 2 epochs}",
    "merge: {every: 10, rewarmup: 11}",
)


@pytest.mark.parametrize("change", REFUSED)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, change: str) -> None:
    flag = LORA.format(change) if "rank:" not in change.split(",")[0][:5] else (
        f"adapter={{type: lora, {change}}}"
    )  # fmt: skip
    with refused(ConfigError):
        small_job(tmp_path, flag)


def test_an_embedding_that_is_the_output_is_not_adapted(tmp_path: Path) -> None:
    with refused(ConfigError):
        small_job(tmp_path, LORA.format("targets: [embedding]"), "model.tie_embeddings=true")
    with refused(ConfigError):
        small_job(tmp_path, "adapter={type: relora, merge: null}")


@pytest.mark.parametrize(
    "flags",
    [
        (LORA.format("train: [norm]"), "optimizer.frozen=['layers.0.attention']"),
        ("adapter={type: dora, rank: 3}", "model.moe.experts=4", "model.tie_embeddings=true"),
        (LORA.format("fused_projections: split, exclude: [], targets: [query, output]"),
         "model.merge_qkv=true", "model.qkv_bias=true"),
    ],
)  # fmt: skip
def test_what_is_adapted_is_known_without_the_model(tmp_path: Path, flags: tuple[str, ...]) -> None:
    job = small_job(tmp_path, *flags)
    components = build_components(job)
    weights = dict(components.model.named_parameters())
    listed = trained_of(job, components.tokenizer.vocab_size)
    trained = {name: tuple(p.shape) for name, p in weights.items() if p.requires_grad}
    # In the order of the model, as the groups of the optimizer have them.
    assert [(each.name, each.shape) for each in listed] == list(trained.items())
    numbers = sum(map(prod, trained.values()))
    frozen = sum(p.numel() for p in weights.values()) - numbers
    report = components.adapter
    assert report is not None
    assert report.adapter + report.trained == numbers and report.frozen == frozen
    assert report.trained_bytes == 4 * numbers
    facts = preflight(job).facts
    assert facts["adapter"] == report.line() and facts["trained parameters"] == numbers
    if "parameters" in facts:
        assert facts["parameters"] == numbers + frozen == components.parameter_count
    plan = update_memory(Workload.of(job, components.tokenizer.vocab_size), Topology.of(job))
    assert (plan.weights, plan.gradients) == (4 * (numbers + frozen), 4 * numbers)
    expected = 4 * (numbers + frozen) + 12 * numbers + 4 * len(listed)
    assert plan.total == expected
    kinds = {each.name: each.kind for each in listed}
    assert all(kind == "vector" for name, kind in kinds.items() if name.endswith("magnitude"))
