import pytest
import torch
from torch import Tensor, nn

from setpoint.memory.checkpointing import recompute


class Scaled(nn.Module):
    """Takes tensors in keywords and tuples, and returns some of them within a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(3.0))
        self.calls = 0

    def forward(self, x: Tensor, *, pair: tuple[Tensor, int]) -> tuple[Tensor, tuple[Tensor, str]]:
        self.calls += 1
        by, times = pair
        return (x * self.weight).tanh(), (by * self.weight * times, "told")


@pytest.mark.parametrize("reentrant", [False, True])
def test_tensors_in_keywords_and_tuples_get_their_gradients(reentrant: bool) -> None:
    found = []
    for again in (False, True):
        module = Scaled()
        if again:
            recompute(module, reentrant=reentrant)
        x, by = torch.tensor(0.5, requires_grad=True), torch.tensor(2.0, requires_grad=True)
        out, (more, told) = module(x, pair=(by, 2))
        assert told == "told"
        (out + more.square()).backward()
        assert x.grad is not None and by.grad is not None and module.weight.grad is not None
        found.append([out.detach(), x.grad, by.grad, module.weight.grad])
        assert module.calls == 1 + again
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_forward_that_was_replaced_is_computed_again() -> None:
    module = nn.Linear(2, 2)
    calls: list[int] = []
    real = module.forward

    def forward(x: Tensor) -> Tensor:
        calls.append(1)
        return real(x)

    module.forward = forward
    recompute(module)
    module(torch.ones(1, 2)).tanh().sum().backward()
    assert len(calls) == 2


def test_layers_that_are_alike_share_a_class_that_looks_like_theirs() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    recompute(one)
    recompute(other)
    assert type(one) is type(other)
    assert isinstance(one, nn.Linear)
    assert repr(one) == repr(nn.Linear(2, 2))
