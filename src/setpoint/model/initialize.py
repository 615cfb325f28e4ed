"""Initialization that depends on the seed and a parameter's name, and on nothing else."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError

# What activation checkpointing, torch.compile and others put into the path of a wrapped module.
# They must not change a parameter's name, or they would change its first value.
_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module"})


@dataclass(frozen=True, slots=True)
class Normal:
    """Draw from a normal distribution with mean zero."""

    std: float

    def fill(self, tensor: Tensor, generator: torch.Generator) -> None:
        """Overwrite the tensor with draws from the generator."""
        tensor.normal_(0.0, self.std, generator=generator)


@dataclass(frozen=True, slots=True)
class Constant:
    """Set every element to one value."""

    value: float

    def fill(self, tensor: Tensor, generator: torch.Generator) -> None:
        """Overwrite the tensor; nothing is drawn from the generator."""
        del generator
        tensor.fill_(self.value)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Draw the first rows from a normal distribution with mean zero; the others are zero.

    The first rows are the same however many follow.
    """

    std: float
    rows: int

    def fill(self, tensor: Tensor, generator: torch.Generator) -> None:
        """Overwrite the tensor with draws from the generator, and zeros.

        Arguments:
            tensor: (at least `rows`, ...).
        """
        # A tensor of its own: the last elements that `normal_` draws depend on how many there are.
        first = torch.empty_like(tensor[: self.rows])
        tensor.zero_()[: self.rows] = first.normal_(0.0, self.std, generator=generator)


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Set every element to a given value."""

    values: Tensor

    def fill(self, tensor: Tensor, generator: torch.Generator) -> None:
        """Overwrite the tensor; nothing is drawn from the generator."""
        del generator
        tensor.copy_(self.values)


@dataclass(frozen=True, slots=True)
class PerExpert:
    """Fill a packed tensor of all experts as if each were a module by itself.

    `experts.up` of shape (E, in, out) starts with the transposed matrices that `experts.0.up`,
    `experts.1.up` and so on would start with, each drawn under that name: packed and unpacked
    experts are the same, and an expert is the same wherever it lies.
    """

    rule: Normal

    def fill_all(self, tensor: Tensor, seed: int, name: str) -> None:
        """Overwrite the tensor."""
        path, _, projection = name.rpartition(".")
        for expert, matrix in enumerate(tensor):
            own = matrix.new_empty(matrix.shape[::-1])
            generator = parameter_generator(seed, f"{path}.{expert}.{projection}.weight")
            self.rule.fill(own, generator)
            matrix.copy_(own.T)


Initializer = Normal | Constant | FirstRows | Values | PerExpert


@runtime_checkable
class Initializable(Protocol):
    """A module that says how parameters below it start."""

    def initializers(self) -> dict[str, Initializer]:
        """Return the rule of each parameter, by its name relative to this module."""
        ...


@torch.no_grad()
def initialize(module: nn.Module, seed: int) -> None:
    """Give every parameter its first value, and every buffer that a module has a rule for.

    Each parameter is drawn on the CPU, whole and in fp32, from a generator of its own, keyed by
    sha256("{seed}/{qualified name}"). The result is the same for every order of construction,
    for a module that holds only some of the layers, on every device, and for every way to shard:
    a DTensor takes its own part of the full tensor. (PyTorch's own random initialization of a
    DTensor on the CPU gives all ranks the same shard.)

    Arguments:
        module: holds its memory already (not on the meta device); every parameter must be named
            by the `initializers()` of a module above it.

    Raises:
        SetpointError: a parameter without a rule, a rule without a parameter, or no rule at all in
            the place of one.
        ValueError: a parameter on the meta device.
    """
    rules = collect_rules(module)
    parameters = {plain_name(name): parameter for name, parameter in module.named_parameters()}
    if missing := sorted(parameters.keys() - rules.keys()):
        raise SetpointError(f"no module says how to initialize: {', '.join(missing)}")
    buffers = {plain_name(name): buffer for name, buffer in module.named_buffers()}
    parameters |= {name: buffer for name, buffer in buffers.items() if name in rules}
    if surplus := sorted(rules.keys() - parameters.keys()):
        raise SetpointError(
            f"initializers() names parameters that are not there: {', '.join(surplus)}"
        )
    for name, rule in rules.items():
        if not isinstance(rule, Initializer):
            raise SetpointError(
                f"initializers() gives {rule!r} for {name}; it must give a rule, such as Normal"
            )
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise ValueError(
                f"{name} is on the meta device; call module.to_empty(device=...) first"
            )
        full, rule = torch.empty(parameter.shape, dtype=torch.float32), rules[name]
        if isinstance(rule, PerExpert):
            rule.fill_all(full, seed, name)
        else:
            rule.fill(full, parameter_generator(seed, name))
        parameter.copy_(as_placed(full, parameter))


def parameter_generator(seed: int, name: str) -> torch.Generator:
    """Make the random generator that belongs to one name under one seed."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def collect_rules(module: nn.Module) -> dict[str, Initializer]:
    """Collect what all modules say about how parameters and buffers start."""
    return {
        plain_name(f"{path}.{name}" if path else name): rule
        for path, part in module.named_modules()
        for name, rule in _rules_of(part)
    }


def _rules_of(module: nn.Module) -> Iterator[tuple[str, Initializer]]:
    if isinstance(module, Initializable):
        yield from module.initializers().items()


def plain_name(name: str) -> str:
    """Leave out of a parameter's name what wrappers have put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def as_placed(full: Tensor, parameter: Tensor) -> Tensor:
    """Take of a full tensor what a parameter of this placement holds."""
    if type(parameter) is nn.Parameter:
        return full
    # Imported here: only sharded parameters need it, and it takes a good part of a second.
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return full
    # src_data_rank=None: every rank has drawn the same tensor, so nothing need be sent.
    full = full.to(parameter.device)
    return distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
