"""How ranks hold weights and sum gradients: each way trains the same, and does what it says."""

from pathlib import Path

import pytest
from torch import nn

from setpoint.config import ConfigError, resolve
from setpoint.parallel.config import Sharding
from setpoint.parallel.sharding import units_of

from ..support.forks import forked
from ..support.snapshots import refused
from ..train.small import small_job

RANKS = ("parallel.world_size=2", "batch.accumulation=1", "parallel.shard=2")


def test_two_ranks() -> None:
    forked("tests.parallel.sharding_ranks")


def test_inner_units_come_first() -> None:
    """FSDP2 gives an outer unit what no inner one has taken."""
    block = [nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(2, 2), *block)
    layers = [(str(number), each) for number, each in enumerate(block, 1)]
    names = {module: name for name, module in model.named_modules()}
    config = resolve(Sharding(units=(r"1\.1\.0", r"1\..*", "0"), layers_per_unit=2))
    found = [[names[each] for each in unit] for unit in units_of(config, model, layers)]
    assert found == [["1.1.0"], ["1.0"], ["1.1"], ["1", "2"], ["3"], ["0"]]
    wrong = resolve(Sharding(units=("1", "nothing")))
    with refused():
        units_of(wrong, model, layers)


@pytest.mark.parametrize(
    "flags",
    [
        ("parallel.sharding.units=[nothing]",),
        ("parallel.sharding.units=['layers.0']",),
        ("parallel.sharding.units=[output]",),
        ("parallel.sharding.units=[embedding]", "model.tie_embeddings=true"),
        ("parallel.sharding.units=['.*experts.0']", "model.moe={experts=4, packed=false}"),
        ("parallel.sharding.units=['(']",),
        ("parallel.sharding.replicated=['(']",),
        ("parallel.sharding.replicated=[nothing]",),
        ("parallel.sharding.replicated=[experts]", "model.moe={experts=4}", "parallel.expert=2"),
        ("parallel.shard=1", "parallel.sharding.layers_per_unit=2"),
        ("parallel.bucket_size=2",),
    ],
    ids=" ".join,
)
def test_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with refused(ConfigError):
        small_job(tmp_path, *RANKS, *flags)
