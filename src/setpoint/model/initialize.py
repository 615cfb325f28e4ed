"""Initial values that depend only on the seed and the parameter's name."""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.shapes.placed import local_ranges, put
from setpoint.shapes.stored import stored_parts, stored_weights

BLOCK = 2**16
"""Elements drawn from one generator, at least a row: small, so that ranks draw little beyond their
rows, and large enough that making generators takes no time."""
MOST_THREADS = 8
"""Limit of memory: each thread holds a parameter in fp32."""

# Names that wrappers (activation checkpointing, torch.compile) add to paths of modules. They must
# not change a parameter's name, which seeds its random numbers.
_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module"})


class DrawKey(NamedTuple):
    """Key of the random numbers of a parameter.

    Arguments:
        shape: full shape over all ranks; at least one dimension.
    """

    seed: int
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NormalInit:
    """Draws from a normal distribution with mean zero, by blocks; see `draw_rows`."""

    std: float

    def rows(self, key: DrawKey, first: int, last: int) -> Tensor:
        """Rows of the whole parameter, in fp32 on the CPU."""
        return draw_rows(key, first, last, lambda x, g: x.normal_(0.0, self.std, generator=g))


@dataclass(frozen=True, slots=True)
class UniformInit:
    """Draws from a uniform distribution between -bound and bound, by blocks; see `draw_rows`."""

    bound: float

    def rows(self, key: DrawKey, first: int, last: int) -> Tensor:
        """See `NormalInit.rows`."""
        return draw_rows(
            key, first, last, lambda x, g: x.uniform_(-self.bound, self.bound, generator=g)
        )


@dataclass(frozen=True, slots=True)
class ConstantInit:
    """Sets every element to one value."""

    value: float

    def rows(self, key: DrawKey, first: int, last: int) -> Tensor:
        """See `NormalInit.rows`."""
        return torch.full((last - first, *key.shape[1:]), self.value)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Draws the first rows from a normal distribution with mean zero; all other rows are zeros."""

    std: float
    count: int

    def rows(self, key: DrawKey, first: int, last: int) -> Tensor:
        """See `NormalInit.rows`."""
        rows = torch.zeros(last - first, *key.shape[1:])
        if first < self.count:
            drawn = key._replace(shape=(self.count, *key.shape[1:]))
            end = min(last, self.count)
            rows[: end - first] = NormalInit(self.std).rows(drawn, first, end)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Sets every element to a given value."""

    values: Tensor

    def rows(self, key: DrawKey, first: int, last: int) -> Tensor:
        """See `NormalInit.rows`."""
        return self.values.reshape(key.shape)[first:last]


@dataclass(frozen=True, slots=True)
class PerExpert:
    """Draws packed experts like separate modules.

    `experts.up` (E, in, out) gets the transposed matrices of `experts.0.up`, `experts.1.up` and so
    on, each drawn by that name, so that packed and unpacked experts are equal, on any rank.
    """

    rule: NormalInit

    def rows(self, key: DrawKey, first: int, last: int) -> Tensor:
        """See `NormalInit.rows`; a row is an expert."""
        path, _, projection = key.name.rpartition(".")
        inputs, outputs = key.shape[1:]
        experts = torch.empty(last - first, inputs, outputs)
        for expert in range(first, last):
            matrix = DrawKey(key.seed, f"{path}.{expert}.{projection}.weight", (outputs, inputs))
            experts[expert - first] = self.rule.rows(matrix, 0, outputs).T
        return experts


Initializer = NormalInit | UniformInit | ConstantInit | FirstRows | Values | PerExpert


@runtime_checkable
class Initializable(Protocol):
    """A module with initial values for the parameters below it."""

    def initializers(self) -> dict[str, Initializer]:
        """Rule of each parameter, by its name relative to this module."""
        ...


@torch.no_grad()
def initialize(
    module: nn.Module, seed: int, extra_rules: Mapping[str, Initializer] | None = None
) -> None:
    """Initialize every parameter, and every buffer for which a module has a rule.

    Each is drawn on the CPU and in fp32, by blocks of rows, each from its own generator keyed by
    sha256("{seed}/{qualified name}/{block}"). The result is therefore the same for every order of
    construction, for pipeline stages, on every device, and for every sharding: a rank draws the
    blocks for its rows of a DTensor. (PyTorch's own initialization of a DTensor on the CPU gives
    all ranks the same shard.)

    Arguments:
        module: not on the meta device; every parameter must be named by the `initializers()` of a
            module above it, or by `extra_rules`.
        extra_rules: rules for parameters, by their names in `module`.

    Raises:
        SetpointError: a parameter without a rule, or a rule without a parameter.
        ValueError: a parameter on the meta device.
    """
    rules = collect_rules(module) | {
        plain_name(name): rule for name, rule in (extra_rules or {}).items()
    }
    parameters = {plain_name(name): parameter for name, parameter in module.named_parameters()}
    for part in stored_parts(module):
        del parameters[plain_name(part)]
    stored = {plain_name(name): weight for name, weight in stored_weights(module)}
    if missing := sorted(parameters.keys() - rules.keys()):
        raise SetpointError(f"no module defines how to initialize: {', '.join(missing)}")
    buffers = {plain_name(name): buffer for name, buffer in module.named_buffers()}
    parameters |= {name: buffer for name, buffer in buffers.items() if name in rules}
    if surplus := sorted(rules.keys() - parameters.keys() - stored.keys()):
        raise SetpointError(
            f"initializers() names parameters that do not exist: {', '.join(surplus)}"
        )
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise ValueError(
                f"{name} is on the meta device; call module.to_empty(device=...) first"
            )
    fill_by(parameters, rules, seed)
    for name, weight in stored.items():
        key = DrawKey(seed, name, weight.full_shape)
        for first, last in weight.pieces():
            weight.put(rules[name].rows(key, first, last), first)


def fill_by(parameters: Mapping[str, Tensor], rules: Mapping[str, Initializer], seed: int) -> None:
    """Initialize some parameters of a model, given by name; see `initialize`."""
    inference = torch.is_inference_mode_enabled()  # a property of each thread

    def fill(name: str) -> None:
        with torch.inference_mode(inference):
            _fill(parameters[name], rules[name], seed, plain_name(name))

    # Random numbers are drawn on one core: 40 s for a model of 8e9 parameters.
    with ThreadPoolExecutor(min(torch.get_num_threads(), MOST_THREADS)) as pool:
        for _ in pool.map(fill, parameters):
            pass


@torch.no_grad()
def _fill(parameter: Tensor, rule: Initializer, seed: int, name: str) -> None:
    """Draw the local shard of a parameter, a few blocks at a time."""
    key = DrawKey(seed, name, tuple(parameter.shape) or (1,))
    shard = local_ranges(parameter)
    if shard is None:
        full = rule.rows(key, 0, key.shape[0]).reshape(parameter.shape)
        put(parameter, full)
        return
    target, box = shard
    if not target.ndim:
        target = target.unsqueeze(0)
    first, last = box[0]
    columns = tuple(slice(*bounds) for bounds in box[1:])
    step = block_rows(key.shape)
    while first < last:
        end = min(last, (first // step + 1) * step)
        start = first - box[0][0]
        target[start : start + end - first].copy_(rule.rows(key, first, end)[:, *columns])
        first = end


def draw_rows(
    key: DrawKey, first: int, last: int, draw: Callable[[Tensor, torch.Generator], Tensor]
) -> Tensor:
    """Draw rows of a parameter in blocks of `block_rows`, each from its own generator."""
    size = block_rows(key.shape)
    blocks: list[Tensor] = []
    for number in range(first // size, -(-last // size)):
        block = torch.empty(min(size, key.shape[0] - number * size), *key.shape[1:])
        blocks.append(draw(block, block_generator(key.seed, key.name, number)))
    drawn = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    start = first - first // size * size
    return drawn[start : start + last - first]


def block_rows(shape: tuple[int, ...]) -> int:
    """Number of rows of a parameter drawn from one generator."""
    return max(1, BLOCK // max(1, prod(shape[1:])))


def block_generator(seed: int, name: str, block: int) -> torch.Generator:
    """Random generator of a block of a parameter."""
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def collect_rules(module: nn.Module) -> dict[str, Initializer]:
    """Collect the rules of all modules, for parameters and buffers."""
    return {
        plain_name(f"{path}.{name}" if path else name): rule
        for path, part in module.named_modules()
        if isinstance(part, Initializable)
        for name, rule in part.initializers().items()
    }


def plain_name(name: str) -> str:
    """Remove the names of wrappers from a parameter's name."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
