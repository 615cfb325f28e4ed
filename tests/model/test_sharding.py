"""The model taken apart by PyTorch's own engines gives what it gives whole."""

from collections.abc import Callable


def test_two_ranks_hold_their_own_shards_and_compute_the_same(run_module: Callable[[str], None]):
    """Trap: on the CPU torch's own random init gives every rank the same shard."""
    run_module("tests.model.sharded_ranks")


def test_weights_do_not_depend_on_ranks_and_dropout_does(run_module: Callable[[str], None]):
    """Trap: shards and masks that are the same on every rank."""
    run_module("tests.model.initialized_ranks")
