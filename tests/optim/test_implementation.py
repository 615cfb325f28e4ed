import pytest
import torch

from setpoint.config import SetpointError
from setpoint.optim.torch_optimizers import can_fuse, implementation_flags

HERE, META = torch.zeros(2), torch.zeros(2, device="meta")


def test_where_there_is_a_kernel() -> None:
    assert can_fuse([HERE])
    assert not can_fuse([HERE, META])
    assert not can_fuse([torch.zeros(2, dtype=torch.int64)])


def test_flags() -> None:
    assert implementation_flags("auto", [HERE]) == (True, None)
    assert implementation_flags("auto", [META]) == (None, None)
    assert implementation_flags("fused", [HERE]) == (True, None)
    assert implementation_flags("foreach", [HERE]) == (False, True)
    assert implementation_flags("loop", [META]) == (False, False)
    with pytest.raises(SetpointError, match="devices: cpu, meta"):
        implementation_flags("fused", [HERE, META])
