"""What recomputation repeats of the messages of experts that FSDP2 shards within layers."""

import pytest

from ..support.forks import forked


@pytest.mark.slow
def test_all_to_alls_are_kept_and_weights_are_equal_to_the_bit() -> None:
    forked("tests.memory.exchange_ranks")
