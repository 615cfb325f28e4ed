"""A problem that can be learnt, on which an optimizer is followed beside its oracle."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Groups = list[dict[str, Any]]
STEPS = 100
PEAK = 0.02


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Three matrices, of which two have one shape, with biases and a norm."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16)]
    return nn.Sequential(*layers, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def groups(model: nn.Module, decay: float = 0.1, **matrices: Any) -> Groups:
    """Matrices decay; the last of them learns half as fast."""
    named = list(model.named_parameters())
    first = [pair for pair in named if pair[1].ndim >= 2]
    rest = [pair for pair in named if pair[1].ndim < 2]
    return [
        {"name": "decay", "params": first[:-1], "weight_decay": decay, **matrices},
        {
            "name": "last",
            "params": first[-1:],
            "weight_decay": 2 * decay,
            "lr_multiplier": 0.5,
            **matrices,
        },
        {"name": "no_decay", "params": rest, "weight_decay": 0.0},
    ]


def rate(step: int) -> float:
    """Warms up over ten steps, and falls to a tenth."""
    return PEAK * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / STEPS)


def backward(model: nn.Module, step: int) -> float:
    """Gradients of the batch of a step; the loss."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 8, generator=generator)
    wanted = torch.stack((x[:, 0] - x[:, 1], x[:, 2], x[:, 3].sin(), x[:, 4].tanh()), 1)
    dtype = next(model.parameters()).dtype
    loss = (model(x.to(dtype)) - wanted.to(dtype)).square().mean()
    loss.backward()
    return float(loss.detach())


def follow(
    optimizers: Iterable[torch.optim.Optimizer], model: nn.Module, start: int = 0, end: int = STEPS
) -> list[float]:
    """Train, at the rate of the schedule times the multiplier of each group."""
    held, losses = list(optimizers), []
    for step in range(start, end):
        losses.append(backward(model, step))
        for optimizer in held:
            for group in optimizer.param_groups:
                group["lr"] = rate(step) * group.get("lr_multiplier", 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return losses


def learnt(
    make: Callable[[Groups], torch.optim.Optimizer],
    dtype: torch.dtype = torch.float32,
    **matrices: Any,
) -> tuple[Tensor, list[float]]:
    """Train the network for a hundred steps."""
    model = network(dtype)
    losses = follow([make(groups(model, **matrices))], model)
    # It is a problem that can be learnt, and was.
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10]), losses
    return flat(model), losses


def flat(model: nn.Module) -> Tensor:
    """All weights in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def assert_resumes(make: Callable[[Groups], torch.optim.Optimizer], dtype: torch.dtype) -> None:
    """Stop after some steps, and go on from the saved state, bit for bit."""
    from setpoint.checkpoint.manifest import decode_state, encode_state
    from setpoint.checkpoint.optimizer_state import capture_optimizer, options_of, restore_optimizer

    model = network(dtype)
    optimizer = make(groups(model))
    built = options_of(optimizer)
    follow([optimizer], model, 0, 7)
    twin = network(dtype)
    twin.load_state_dict(model.state_dict())
    tensors, state = capture_optimizer(optimizer, model.named_parameters(), built)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    state = decode_state(b"".join([encode_state(state)]))
    follow([optimizer], model, 7, 12)
    other = make(groups(twin))
    restore_optimizer(other, twin.named_parameters(), tensors, state)
    follow([other], twin, 7, 12)
    assert torch.equal(flat(model), flat(twin))
