import pytest
import torch
from torch import nn

from setpoint.optim import adam as module
from setpoint.optim.adam import adam_of, adam_step

OPTIONS = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.5}


def parameter(dtype: torch.dtype) -> nn.Parameter:
    torch.manual_seed(0)
    made = nn.Parameter(torch.randn(4, 5).to(dtype))
    made.grad = torch.randn(4, 5).to(dtype)
    return made


def test_state_is_made_once_and_as_torch_makes_it() -> None:
    ours, theirs = parameter(torch.float32), parameter(torch.float32)
    state: dict[str, torch.Tensor] = {}
    for _ in range(3):
        adam_step([adam_of(ours, state, None)], OPTIONS)
    optimizer = torch.optim.AdamW([theirs], **OPTIONS, fused=True)
    for _ in range(3):
        optimizer.step()
    assert torch.equal(ours, theirs)
    other = optimizer.state[theirs]
    assert state.keys() == other.keys()
    for name, value in state.items():
        assert torch.equal(value, other[name]) and value.dtype == other[name].dtype


def test_what_is_stored_short_goes_through_the_store() -> None:
    weight = parameter(torch.float32)
    state: dict[str, torch.Tensor] = {}
    held = adam_of(weight, state, torch.bfloat16)
    before = weight.grad.clone() if weight.grad is not None else None
    stored: list[tuple[torch.dtype, torch.dtype]] = []

    def store(mine: torch.Tensor, value: torch.Tensor) -> None:
        stored.append((mine.dtype, value.dtype))
        mine.copy_(value)

    with torch.no_grad():
        adam_step([held], OPTIONS, store)
    # The weight is in fp32 itself, and nothing was written to the gradient.
    assert stored == [(torch.bfloat16, torch.float32)] * 2
    assert before is not None and weight.grad is not None and torch.equal(weight.grad, before)
    assert state["step"] == 1


@pytest.mark.parametrize("fused", [True, False])
def test_the_step_lies_where_a_fused_kernel_reads_it(
    monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    """As after a resume on a GPU, for which the meta device stands in."""
    monkeypatch.setattr(module, "can_fuse", lambda tensors: fused)
    weight = nn.Parameter(torch.ones(2, device="meta"))
    weight.grad = torch.ones_like(weight)
    new: dict[str, torch.Tensor] = {}
    loaded = {
        "step": torch.tensor(3.0),
        "exp_avg": torch.zeros_like(weight),
        "exp_avg_sq": torch.zeros_like(weight),
    }
    for state in (new, loaded):
        held = adam_of(weight, state, None)
        assert held.step is state["step"]
        assert held.step.device.type == ("meta" if fused else "cpu")
        assert held.step.dtype == torch.float32
    if not fused:
        assert loaded["step"] == 3.0


def test_a_step_in_its_place_is_not_copied() -> None:
    weight = parameter(torch.float32)
    state: dict[str, torch.Tensor] = {}
    first = adam_of(weight, state, None).step
    assert adam_of(weight, state, None).step is first
