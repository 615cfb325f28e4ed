"""Statistics of outputs, gradients and weights of the modules of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

Kind = Literal["output", "output_grad", "weight", "weight_grad"]


@dataclass(slots=True)
class Tally:
    """Statistics of tensors; all but the counts are over their finite elements.

    Arguments:
        elements: of all tensors.
        bad: elements that are not finite.
    """

    elements: int = 0
    bad: int = 0
    least: float = math.inf
    most: float = -math.inf
    total: float = 0.0
    squares: float = 0.0

    @torch.no_grad()
    def add(self, tensor: Tensor) -> None:
        """Add a real tensor."""
        value = tensor.detach()
        finite = value.isfinite()
        numbers = value[finite].double()
        self.elements += value.numel()
        self.bad += value.numel() - numbers.numel()
        if numbers.numel():
            self.least = min(self.least, float(numbers.min()))
            self.most = max(self.most, float(numbers.max()))
            self.total += float(numbers.sum())
            self.squares += float(numbers.square().sum())

    def to_json(self) -> dict[str, float | int | None]:
        """Minimum, maximum, mean and root mean square; None without finite elements."""
        count = self.elements - self.bad
        figures = {
            "min": self.least,
            "max": self.most,
            "mean": self.total / count if count else 0.0,
            "rms": math.sqrt(self.squares / count) if count else 0.0,
        }
        return {
            "elements": self.elements,
            **{name: value if count else None for name, value in figures.items()},
            "non_finite": self.bad / self.elements if self.elements else 0.0,
        }


@dataclass(slots=True)
class ModuleFigures:
    """Statistics of one module.

    Arguments:
        name: in the model; empty for the model itself.
        kind: the class.
    """

    name: str
    kind: str
    tallies: dict[Kind, Tally] = field(default_factory=dict)

    def tally(self, kind: Kind) -> Tally:
        """Statistics of a kind, created at first use."""
        return self.tallies.setdefault(kind, Tally())


class ModuleWatch:
    """Counts the outputs of all modules, and their gradients, inside a `with` block.

    Arguments:
        modules: by name, in the order in which they first returned.
        is_backward: set while gradients are computed, so that recomputed outputs are not counted
            twice.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: dict[str, ModuleFigures] = {}
        self.is_backward = False
        self.first: dict[Kind, str] = {}
        """The first module of each kind that was not finite."""
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for name, module in self.model.named_modules():
            handle = module.register_forward_hook(self._hook(name))
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def count_weights(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Add the direct parameters of each module, and their gradients by the model's names."""
        for name, module in self.model.named_modules():
            for parameter_name, weight in module.named_parameters(
                recurse=False, remove_duplicate=False
            ):
                self._count(name, module, "weight", weight)
                gradient = gradients.get(f"{name}.{parameter_name}" if name else parameter_name)
                if gradient is not None:
                    self._count(name, module, "weight_grad", gradient)

    def _hook(self, name: str) -> Any:
        def count_outputs(module: nn.Module, _: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if not self.is_backward:
                    self._count(name, module, "output", tensor)
                if tensor.requires_grad:
                    tensor.register_hook(
                        lambda gradient: self._count(name, module, "output_grad", gradient)
                    )

        return count_outputs

    def _count(self, name: str, module: nn.Module, kind: Kind, tensor: Tensor) -> None:
        figures = self.modules.setdefault(name, ModuleFigures(name, type(module).__name__))
        tally = figures.tally(kind)
        before = tally.bad
        tally.add(tensor)
        if tally.bad > before:
            self.first.setdefault(kind, name)


def _tensors(output: Any) -> Iterator[Tensor]:
    """Real tensors in the output of a module."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for item in output.values():
            yield from _tensors(item)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from _tensors(item)
    elif is_dataclass(output):
        for item in fields(output):
            yield from _tensors(getattr(output, item.name))
