"""The model taken apart by PyTorch's own engines gives what it gives whole."""

from collections.abc import Callable


def test_two_ranks_draw_their_own_shards_and_compute_the_same(run_module: Callable[[str], None]):
    """Trap: on the CPU torch's own random init gives every rank the same shard."""
    run_module("tests.model.sharded_ranks")
