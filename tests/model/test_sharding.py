"""The model taken apart by PyTorch's own engines gives what it gives whole."""

from ..support.forks import forked


def test_two_ranks_draw_their_own_shards_and_compute_the_same():
    """Trap: on the CPU torch's own random init gives every rank the same shard."""
    forked("tests.model.sharded_ranks")
