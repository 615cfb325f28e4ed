"""Initialization that depends on the seed and a parameter's name, and on nothing else."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

# What activation checkpointing, torch.compile and others put into the path of a wrapped module.
# They must not change a parameter's name, or they would change its first value.
_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module"})


@dataclass(frozen=True, slots=True)
class Normal:
    """Draw from a normal distribution with mean zero.

    Arguments:
        std: the standard deviation.
    """

    std: float

    def fill(self, tensor: Tensor, generator: torch.Generator) -> None:
        """Overwrite the tensor with draws from the generator.

        Arguments:
            tensor: of any shape.
            generator: on the tensor's device.
        """
        tensor.normal_(0.0, self.std, generator=generator)


@dataclass(frozen=True, slots=True)
class Constant:
    """Set every element to one value.

    Arguments:
        value: that value.
    """

    value: float

    def fill(self, tensor: Tensor, generator: torch.Generator) -> None:
        """Overwrite the tensor; nothing is drawn from the generator.

        Arguments:
            tensor: of any shape.
            generator: left as it is.
        """
        del generator
        tensor.fill_(self.value)


Initializer = Normal | Constant


@runtime_checkable
class Initializable(Protocol):
    """A module that says how parameters below it start."""

    def initializers(self) -> dict[str, Initializer]:
        """Return the rule of each parameter, by its name relative to this module.

        Returns:
            rules by the name of the parameter, relative to this module.
        """
        ...


@torch.no_grad()
def initialize(module: nn.Module, seed: int) -> None:
    """Give every parameter its first value.

    Each parameter is drawn on the CPU, whole and in fp32, from a generator of its own, keyed by
    sha256("{seed}/{qualified name}"). The result is the same for every order of construction,
    for a module that holds only some of the layers, on every device, and for every way to shard:
    a DTensor takes its own part of the full tensor. (PyTorch's own random initialization of a
    DTensor on the CPU gives all ranks the same shard.)

    Arguments:
        module: holds its memory already (not on the meta device); every parameter must be named
            by the `initializers()` of a module above it.
        seed: any integer.

    Raises:
        ValueError: a parameter without a rule, a rule without a parameter, or a parameter on the
            meta device.
    """
    rules = _collect_rules(module)
    parameters = {_clean(name): parameter for name, parameter in module.named_parameters()}
    if missing := sorted(parameters.keys() - rules.keys()):
        raise ValueError(f"no module says how to initialize: {', '.join(missing)}")
    if surplus := sorted(rules.keys() - parameters.keys()):
        raise ValueError(
            f"initializers() names parameters that are not there: {', '.join(surplus)}"
        )
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise ValueError(
                f"{name} is on the meta device; call module.to_empty(device=...) first"
            )
        full = torch.empty(parameter.shape, dtype=torch.float32)
        rules[name].fill(full, parameter_generator(seed, name))
        parameter.copy_(_as_placed(full, parameter))


def parameter_generator(seed: int, name: str) -> torch.Generator:
    """Make the random generator that belongs to one name under one seed.

    Arguments:
        seed: any integer.
        name: the qualified name of a parameter.

    Returns:
        A CPU generator at its start.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def _collect_rules(module: nn.Module) -> dict[str, Initializer]:
    return {
        _clean(f"{path}.{name}" if path else name): rule
        for path, part in module.named_modules()
        for name, rule in _rules_of(part)
    }


def _rules_of(module: nn.Module) -> Iterator[tuple[str, Initializer]]:
    if isinstance(module, Initializable):
        yield from module.initializers().items()


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _as_placed(full: Tensor, parameter: Tensor) -> Tensor:
    """Return what a parameter of this placement holds of the full tensor."""
    if type(parameter) is nn.Parameter:
        return full
    # Imported here: only sharded parameters need it, and it takes a good part of a second.
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return full
    # src_data_rank=None: every rank has drawn the same tensor, so nothing need be sent.
    full = full.to(parameter.device)
    return distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
