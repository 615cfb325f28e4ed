"""Models that show what torch.compile can and cannot do."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from setpoint.compile.compile_model import Compiled, compiling
from setpoint.compile.config import Compile
from setpoint.config import resolve

SETTINGS = ExitStack()
"""What a test compiles under; closed after it."""


class Layer(nn.Module):
    """A layer that adds what a matrix makes of its input."""

    def __init__(self, layer_idx: int, scale: float = 1.0) -> None:
        super().__init__()
        self.layer_idx, self.scale = layer_idx, scale
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return x + self.scale * torch.tanh(self.inner(x))


class Printing(Layer):
    """A layer that prints, which no graph can hold."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        x = torch.tanh(self.inner(x))
        print(end="")
        return x + 1


class Asking(Layer):
    """A layer that decides by a value of a tensor, which no graph can hold."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        x = torch.tanh(self.inner(x))
        return x * 2 if x.sum().item() > 0 else x


def stack(kind: type[Layer] = Layer, count: int = 3) -> nn.Sequential:
    """Several layers of a kind, the same in each process."""
    torch.manual_seed(0)
    return nn.Sequential(*(kind(number) for number in range(count)))


def compiled(model: nn.Module, **values: Any) -> Compiled:
    """Compile the layers of a stack, by aot_eager unless told otherwise."""
    config = resolve(Compile(**{"backend": "aot_eager", **values}))
    SETTINGS.close()
    SETTINGS.enter_context(compiling(config))
    return config.build(model=model, layers=list(model.named_children()))


def train_on(model: nn.Module, rows: int) -> Tensor:
    """Forward and backward."""
    x = torch.linspace(-1, 1, rows * 8).view(rows, 8)
    # As what an embedding gives: gradients pass it.
    x = x.requires_grad_() * 1
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()
