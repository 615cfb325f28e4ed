import torch

from setpoint.optim.base import is_dtensor, local_shard


def test_a_whole_tensor_is_its_own_shard() -> None:
    """What is spread over ranks is tested by the steps of two ranks, in sharded_steps.py."""
    tensor = torch.randn(3)
    assert not is_dtensor(tensor)
    assert local_shard(tensor, tensor) is tensor
