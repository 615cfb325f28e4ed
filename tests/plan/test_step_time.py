"""The expected time of a step: against closed formulas, where all but one of its parts is free."""

from collections import defaultdict
from pathlib import Path

import pytest

from setpoint.data.config import Data, Prepare
from setpoint.data.prepare import prepare_all
from setpoint.data.sources.config import Random
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.memory.config import Full
from setpoint.plan.cost import cost_of
from setpoint.plan.gpus import GpuSpec, Network, gpu_named
from setpoint.plan.part_time import Kernels
from setpoint.plan.step_time import StepTime, palm_flops, step_time
from setpoint.plan.topology import Recompute, Topology
from setpoint.plan.workload import Workload
from setpoint.units import ByteSize

from ..support.snapshots import refused
from ..train.small import small_job

IDEAL = """
[networks.free]
bandwidth = 1e30
latency = 0
achieved = 1
[gpus.ideal]
memory = "80 GiB"
bandwidth = 1e30
network = "free"
peak = { fp32 = 1e12, bf16 = 1e12, fp8 = 4e12 }
assumed = { matmul = 1, half_size = 0, attention = 1, memory = 1, launch = 0, contention = 0 }
node = { ranks = 8, bandwidth = 1e30, latency = 0, achieved = 1 }
[gpus.slow-memory]
like = "ideal"
bandwidth = 1e6
[gpus.slow-links]
like = "ideal"
[gpus.slow-links.node]
bandwidth = 1e6
[gpus.slow-launches]
like = "ideal"
assumed.launch = 1e-3
"""


@pytest.fixture
def ideal(tmp_path: Path) -> Path:
    """A file of GPUs on which all but products is free, and of one that is slow each."""
    file = tmp_path / "gpus.toml"
    file.write_text(IDEAL)
    return file


def workload_of(tmp_path: Path, *flags: str) -> Workload:
    job = small_job(tmp_path, *flags)
    return Workload.of(job, 257)


def timed(workload: Workload, topology: Topology, name: str, file: Path) -> StepTime:
    gpu, network = gpu_named(name, str(file))
    tokens = topology.micro_size * topology.accumulation * topology.data_ranks * workload.length
    return step_time(workload._replace(tokens=tokens), topology, gpu, network)


def test_products_and_attention_take_their_flops_by_the_peak(tmp_path: Path, ideal: Path) -> None:
    workload = workload_of(tmp_path)
    found = timed(workload, Topology(micro_size=2, accumulation=3), "ideal", ideal)
    kinds = [workload.kinds[each] for each in workload.order]
    products = 6 * sum(sum(kind.products) for kind in kinds)
    # Attention computes its scores a second time in the backward pass.
    attention = 3.5 * sum(kind.attention_flops for kind in kinds)
    assert found.seconds == pytest.approx((products + attention) * found.tokens / 1e12)
    assert found.mfu == pytest.approx(palm_flops(workload) * found.tokens / found.seconds / 1e12)
    assert 0.9 < found.mfu < 1.2  # the formula counts what a causal mask hides
    again = timed(
        workload, Topology(micro_size=2, accumulation=3, recompute=Recompute(Full)), "ideal", ideal
    )
    more = sum(kind.forward_flops for kind in kinds if kind.name == "layer")
    assert again.seconds - found.seconds == pytest.approx(more * found.tokens / 1e12)
    assert again.parts["recomputation"] == pytest.approx(more * found.tokens / 1e12)


def test_frozen_weights_need_no_gradients(tmp_path: Path, ideal: Path) -> None:
    whole = workload_of(tmp_path)
    frozen = whole._replace(
        kinds=tuple(
            kind._replace(weights=tuple(each._replace(is_trained=False) for each in kind.weights))
            for kind in whole.kinds
        )
    )
    saved = [timed(each, Topology(), "ideal", ideal) for each in (whole, frozen)]
    products = [found.parts["matrix products"] for found in saved]
    assert products[1] == pytest.approx(2 / 3 * products[0])


@pytest.mark.parametrize(
    "topology",
    [
        Topology(accumulation=4),
        Topology(shard=4, accumulation=2, recompute=Recompute(Full)),
        Topology(shard=4, accumulation=2, reshard=False),
        Topology(replicate=4, accumulation=4),
        Topology(shard=2, replicate=2, tensor=2, sequence_parallel=True, accumulation=2),
        Topology(ring=2, ulysses=2),
        Topology(pipeline=2, accumulation=4, shard=2),
        Topology(pipeline=2, accumulation=4, stages_per_rank=2, schedule="zbv_zero_bubble"),
    ],
)
def test_parts_add_up_and_events_fill_the_step(
    tmp_path: Path, ideal: Path, topology: Topology
) -> None:
    workload = workload_of(tmp_path, "model.layers=4")
    for name in ("ideal", "slow-memory", "slow-links"):
        found = timed(workload, topology, name, ideal)
        assert sum(found.parts.values()) == pytest.approx(found.seconds)
        events = found.draw()
        # Sums over all ranks at the end are too short to draw.
        drawn = max(event.end for event in events)
        assert drawn == pytest.approx(
            found.seconds - found.parts.get("sums over all ranks", 0), rel=1e-3
        )
        rows: defaultdict[str, float] = defaultdict(float)
        for event in sorted(events, key=lambda each: each.start):
            assert event.start >= rows[event.row] - 1e-9 * drawn
            rows[event.row] = event.end


def test_weights_are_gathered_behind_computing(tmp_path: Path, ideal: Path) -> None:
    workload = workload_of(tmp_path, "model.layers=8")
    alone = timed(workload, Topology(accumulation=2), "slow-links", ideal)
    gathered = timed(workload, Topology(shard=2, accumulation=2), "slow-links", ideal)
    sent = gathered.parts["messages of weights"] + gathered.hidden["messages of weights"]
    # Twice a micro-batch, and reduced once: three times the layers over the links, half of each.
    layers = sum(
        weight.numbers * weight.times * 4
        for number in workload.order
        for weight in workload.kinds[number].weights
        if workload.kinds[number].name == "layer"
    )
    around = workload.parameters * 4 - layers
    assert sent == pytest.approx(2 * (3 * layers + 2 * around) / 2 / 1e6, rel=0.02)
    assert gathered.seconds > alone.seconds
    kept = timed(workload, Topology(shard=2, accumulation=2, reshard=False), "slow-links", ideal)
    assert kept.seconds < gathered.seconds


def test_the_bubble_of_a_pipeline_is_that_of_its_schedule(tmp_path: Path, ideal: Path) -> None:
    workload = workload_of(tmp_path, "model.layers=8", "model.dim=64")
    for count in (4, 8, 16):
        found = timed(workload, Topology(pipeline=4, accumulation=count), "ideal", ideal)
        share = found.parts["pipeline bubble"] / found.seconds
        # That of equal stages; those before the largest one wait while it computes.
        assert 0.6 * 3 / (count + 3) < share <= 3 / (count + 3)


def test_small_models_wait_for_the_host(tmp_path: Path, ideal: Path) -> None:
    workload = workload_of(tmp_path)
    slow = timed(workload, Topology(), "slow-launches", ideal)
    assert slow.parts["launching operators"] > 0.9 * slow.seconds
    gpu, network = gpu_named("slow-launches", str(ideal))
    fused = step_time(workload, Topology(), gpu, network, Kernels(compiled=True))
    assert fused.parts["launching operators"] < slow.parts["launching operators"]


def test_layers_that_float8_skips_take_the_time_of_bf16(tmp_path: Path, ideal: Path) -> None:
    flags = ("precision.compute=bf16", "precision.float8={emulate: true, skip: [SKIPPED]}")
    seconds, numbers = {}, {}
    for skipped in ("^output$", "^output$, attention", "^output$, attention, down"):
        texts = [each.replace("SKIPPED", skipped) for each in flags]
        workload = workload_of(tmp_path, "model.dim=32", "model.ffn_dim=64", *texts)
        found = timed(workload, Topology(), "ideal", ideal)
        seconds[skipped] = found.parts["matrix products"] / found.tokens
        kinds = [workload.kinds[each] for each in workload.order]
        fast = sum(sum(each.float8) for each in kinds)
        numbers[skipped] = 6 * (sum(sum(each.products) for each in kinds) - 0.75 * fast) / 1e12
    assert list(seconds.values()) == pytest.approx(list(numbers.values()))
    assert sorted(seconds.values()) == list(seconds.values())
    flags = ("precision.compute=bf16", "precision.float8={emulate: true, skip_small: true}")
    small = workload_of(tmp_path, *flags, "model.dim=1024", "model.ffn_dim=4224")
    kind = next(each for each in small.kinds if each.name == "layer")
    assert kind.float8 == (0, 3 * 1024 * 4224)  # attention's are too small


def test_isolated_documents_leave_the_pairs_within_them(tmp_path: Path, ideal: Path) -> None:
    flags = ("data.packing={method: next_fit, isolate: true}", "parallel.device=cuda",
             "precision.compute=bf16", "model.dim=32", "batch.sequence_length=128")  # fmt: skip
    job = small_job(tmp_path, *flags)
    workload = Workload.of(job, 257)
    gpu, network = gpu_named("ideal", str(ideal))

    def took(kernels: Kernels) -> StepTime:
        return step_time(workload, Topology(), gpu, network, kernels)

    assert Kernels.of(job).document == 0
    rows, documents = took(Kernels.of(job)), took(Kernels(document=32))
    share = documents.parts["attention"] / rows.parts["attention"]
    assert share == pytest.approx((32 + 1) / (128 + 1))
    assert any("documents: one per row" in each for each in rows.assumptions)
    # Of prepared data they are known.
    cache = Prepare(folder=str(tmp_path / "cache"), above=ByteSize(0))
    data = Data(sources=(Random(documents=50, length=60),), held_out=0.0, prepare=cache)
    (prepared,) = prepare_all(data, ByteTokenizer())
    again = small_job(
        tmp_path, *flags, f"data.sources=[{{type: tokens, paths: [{prepared.folder}]}}]"
    )
    known = Kernels.of(again).document
    assert known is not None
    assert 55 < known < 65
    assert took(Kernels.of(again)).parts["attention"] < rows.parts["attention"]


def test_a_machine_without_the_format_is_refused(tmp_path: Path) -> None:
    workload = workload_of(tmp_path)._replace(computes="bf16")
    gpu: GpuSpec
    network: Network
    gpu, network = gpu_named("v100")
    with refused():
        step_time(workload, Topology(), gpu, network)


# What a run takes of all its GPUs, by hand.


def test_the_first_limit_ends_the_run() -> None:
    cost = cost_of({"steps": 3600, "seconds": 7200.0}, step=1.0, ranks=8, price=2.5, power=700)
    assert cost is not None
    assert (cost.steps, cost.seconds, cost.gpu_hours) == (3600, 3600.0, 8.0)
    assert cost.money == 20.0
    assert cost.kilowatt_hours == pytest.approx(5.6)
    timed = cost_of({"steps": 10_000, "seconds": 7200.0}, step=1.5, ranks=1)
    assert timed is not None
    assert (timed.steps, timed.money, timed.kilowatt_hours) == (4800, None, None)
    assert cost_of({"epochs": 2}, step=1.0, ranks=1) is None


def test_a_run_without_a_step_is_refused() -> None:
    with refused():
        cost_of({"seconds": 60.0}, step=93.2, ranks=8)
