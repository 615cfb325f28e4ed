"""GPUs by name: the table beside others of its numbers, and files of users."""

from pathlib import Path
from unittest.mock import ANY

import pytest

from setpoint.plan.gpus import CALL, Links, RankGroup, gpu_named, gpu_table, group_of
from setpoint.track.accelerators import GPUS, peak_of

from ..support.snapshots import refused

DRIVER = {
    "h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "b200": "NVIDIA B200",
    "gb200": "NVIDIA GB200", "a100": "NVIDIA A100-SXM4-80GB", "a100-40gb": "NVIDIA A100-SXM4-40GB",
    "a100-pcie": "NVIDIA A100 80GB PCIe", "l40s": "NVIDIA L40S",
    "rtx4090": "NVIDIA GeForce RTX 4090", "v100": "Tesla V100-SXM2-32GB",
    "mi300x": "AMD Instinct MI300X",
}  # fmt: skip
DEGREES = {"pipeline": 2, "replicate": 1, "shard": 4, "ring": 1, "ulysses": 1, "tensor": 4}


def test_every_machine_has_sources_and_the_peak_that_mfu_is_computed_with() -> None:
    known = gpu_table()
    assert set(known.gpus) == set(DRIVER)
    for name, gpu in known.gpus.items():
        assert gpu.source
        assert gpu.node.source
        assert known.networks[gpu.network].source
        assert peak_of(DRIVER[name]) == (gpu.peak.bf16 or gpu.peak.fp16, ANY)


def test_a_file_adds_machines_and_changes_those_of_the_table(tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text(
        "[networks.slow]\nbandwidth = 1e9\nlatency = 1e-4\n"
        '[gpus.ours]\nlike = "h100"\nnetwork = "slow"\nassumed.matmul = 0.5\n'
        "[gpus.ours.node]\nranks = 4\n[gpus.h200]\nprice = 2.5\n"
    )
    gpu, network = gpu_named("ours", str(file))
    known, _ = gpu_named("h100")
    assert (gpu.node.ranks, gpu.assumed.matmul, network.bandwidth) == (4, 0.5, 1e9)
    assert gpu.node.bandwidth == known.node.bandwidth
    assert gpu.assumed.attention == known.assumed.attention
    assert gpu_named("H200", str(file))[0].price == 2.5
    file = tmp_path / "copy.toml"
    file.write_bytes(GPUS.read_bytes())
    assert gpu_table(str(file)).gpus == gpu_table().gpus


@pytest.mark.parametrize(
    "text",
    [
        '[gpus.ours]\nlike = "h10"\n',
        '[gpus.ours]\nlike = "h100"\nassumed.matmul = 70\n',
        '[gpus.ours]\nlike = "h100"\nmemry = "3 GB"\n',
        '[gpus.ours]\nmemory = "3 GB"\n',
        "[gpus.h100]\nmemory = 0\n",
    ],
)
def test_errors_of_a_file_name_the_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text(text)
    with refused():
        gpu_table(str(file))


def test_an_unknown_machine_is_answered_with_what_is_known() -> None:
    with refused():
        gpu_named("h10")


def test_groups_lie_on_nodes() -> None:
    assert group_of(DEGREES, "tensor", 4, 8) == RankGroup(4, 4)
    assert group_of(DEGREES, "shard", 4, 8) == RankGroup(4, 2)
    assert group_of(DEGREES, "pipeline", 2, 8) == RankGroup(2, 1)
    assert group_of(DEGREES, "shard+tensor", 16, 8) == RankGroup(16, 8)
    assert group_of(DEGREES, "pipeline+shard+tensor", 32, 64) == RankGroup(32, 32)
    assert RankGroup(16, 8).nodes == 2


def test_times_of_collectives_are_those_of_rings() -> None:
    links = Links(8, fast=100.0, slow=10.0, near=1.0, far=5.0)
    inside = RankGroup(4, 4)
    assert links.seconds("all_gather", inside, 1, 400) == pytest.approx(CALL + 3 + 3)
    assert links.seconds("reduce_scatter", inside, 2, 400) == pytest.approx(2 * (CALL + 3) + 3)
    assert links.seconds("all_reduce", inside, 1, 400) == pytest.approx(CALL + 6 + 6)
    assert links.seconds("send", inside, 3, 400) == pytest.approx(3 + 4)
    assert links.seconds("all_gather", RankGroup(1, 1), 1, 400) == 0
    # Sixteen ranks on two nodes: half of it comes over the eight network cards of a node.
    between = links.seconds("all_gather", RankGroup(16, 8), 1, 1600)
    assert between == pytest.approx(CALL + 14 + 5 + max(15, 1600 / 2 / 80))
    alone = links.seconds("all_gather", RankGroup(2, 1), 1, 400)
    assert alone == pytest.approx(CALL + 5 + 20)
    # A tree between many nodes has fewer latencies than a ring through all ranks.
    many = links.seconds("all_reduce", RankGroup(1024, 8), 1, 0)
    assert many == pytest.approx(CALL + 2 * (7 + 7 * 5))
