"""GPUs and networks by name, with what of their peaks is assumed to be reached.

The table is `machines.toml`, beside this file. A file of the user's has the same form: its entries
are added, or change fields of those that are there; `like` starts an entry from another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, cast

from setpoint.config import (
    RUNTIME,
    Config,
    Problem,
    SetpointError,
    check,
    compose,
    did_you_mean,
    field,
    is_mapping,
    read_file,
)
from setpoint.units import ByteSize

if TYPE_CHECKING:
    from setpoint.config import Document

KNOWN = Path(__file__).with_name("machines.toml")
FORMATS = ("bf16", "fp16", "fp8", "tf32", "fp32")

SHARE = 0.9
"""Of the memory of a GPU: the rest is for the device's context, NCCL and an allocator's gaps."""


def usable(memory: int) -> int:
    """Bytes of a GPU's memory that tensors may take."""
    return int(memory * SHARE)


class Network(Config, role=RUNTIME):
    """A link of a GPU to others.

    A message over it takes `latency` and its bytes over `bandwidth * achieved`.
    """

    bandwidth: float = field(gt=0, lt=inf)
    """Bytes per second of one GPU in one direction, by the maker's sheet."""

    latency: float = field(ge=0, lt=1)
    """Seconds of one step of a ring."""

    achieved: float = field(default=0.8, gt=0, le=1)
    """Share of `bandwidth` that collectives of large messages reach."""

    source: str = ""
    """Where the numbers are from."""


class NodeLinks(Network):
    """The ranks that the fastest links join, and these links."""

    ranks: int = field(ge=1)
    """GPUs that are joined; the others are reached over `network`."""


class Peak(Config, role=RUNTIME):
    """Operations per second in dense matrix products, without sparsity, by number format."""

    bf16: float | None = field(default=None, gt=0, lt=inf)
    """bfloat16 with sums in fp32."""

    fp16: float | None = field(default=None, gt=0, lt=inf)
    """float16 with sums in fp32."""

    fp8: float | None = field(default=None, gt=0, lt=inf)
    """8 bits with sums in fp32."""

    tf32: float | None = field(default=None, gt=0, lt=inf)
    """TensorFloat-32."""

    fp32: float | None = field(default=None, gt=0, lt=inf)
    """float32, without matrix units."""


class Assumed(Config, role=RUNTIME):
    """What of its peaks a GPU is assumed to reach in training."""

    matmul: float = field(default=0.7, gt=0, le=1)
    """Share of `peak` in large matrix products."""

    half_size: float = field(default=150.0, ge=0, lt=inf)
    """Size of a matrix product at which half of `matmul` is reached: 1 / (1/m + 1/n + 1/k)."""

    attention: float = field(default=0.45, gt=0, le=1)
    """Share of `peak` in attention that keeps no scores, forward and backward together."""

    memory: float = field(default=0.8, gt=0, le=1)
    """Share of `bandwidth` in operators that move more than they compute."""

    launch: float = field(default=5e-6, ge=0, lt=1)
    """Seconds that the host takes for an operator."""

    contention: float = field(default=0.1, ge=0, le=1)
    """What a second of messages behind computing slows this down by, in seconds."""


class Machine(Config, role=RUNTIME):
    """A GPU, the node that it stands in, and the network between nodes."""

    like: str | None = None
    """The machine whose values this one has where it does not give its own."""

    title: str = ""
    """What it is called by its maker."""

    capability: float | None = field(default=None, gt=0, lt=100)
    """CUDA compute capability, such as 9.0; null: unknown."""

    memory: ByteSize = field(gt=0)
    """Memory of a GPU."""

    bandwidth: float = field(gt=0, lt=inf)
    """Bytes per second of its memory."""

    power: float | None = field(default=None, gt=0, lt=inf)
    """Watts of a GPU at full load."""

    price: float | None = field(default=None, ge=0, lt=inf)
    """Price of a GPU for an hour, in any currency; null: unknown."""

    network: str
    """The network between nodes, by its name in `networks`."""

    peak: Peak = field(factory=Peak)
    """Operations per second in matrix products."""

    node: NodeLinks
    """The ranks that the fastest links join."""

    assumed: Assumed = field(factory=Assumed)
    """What of the peaks is assumed to be reached."""

    source: str = ""
    """Where the numbers are from."""

    @property
    def usable(self) -> int:
        """Bytes of memory that tensors of a rank may take."""
        return usable(self.memory)

    @check
    def _check_peak(self) -> Iterator[Problem]:
        if all(getattr(self.peak, name) is None for name in FORMATS):
            yield Problem("peak", "has no number of any format", valid=FORMATS)


class Machines(Config, role=RUNTIME):
    """A file of machines."""

    networks: dict[str, Network] = field(factory=dict)
    """Networks by name."""

    machines: dict[str, Machine] = field(factory=dict)
    """Machines by name."""

    @check
    def _check_networks(self) -> Iterator[Problem]:
        for name, machine in self.machines.items():
            if machine.network not in self.networks:
                yield Problem(
                    f"machines.{name}.network",
                    f"there is no network {machine.network!r}",
                    valid=tuple(self.networks),
                    hint=did_you_mean(machine.network, self.networks),
                )


@lru_cache(maxsize=8)
def machines(file: str | None = None) -> Machines:
    """All machines that are known.

    Arguments:
        file: of the user's, whose entries are added and changed.

    Raises:
        SetpointError: the file cannot be read, or says what cannot be; with file and line.
    """
    if file is None:
        return compose(Machines, files=[KNOWN]).resolve()
    document = read_file(file)
    known = read_file(str(KNOWN)).data
    for table in ("networks", "machines"):
        given = document.data.get(table)
        if is_mapping(given):
            # A later file replaces an entry: what it leaves out is put in from the one before.
            document.data[table] = _filled(document, table, given, cast("_Table", known[table]))
    return compose(Machines, files=[KNOWN, document]).resolve()


_Table = dict[str, dict[str, object]]


def _filled(
    document: Document, table: str, given: dict[str, object], known: _Table
) -> dict[str, object]:
    """The entries of a file, each on top of the one that it changes or is like."""
    made: dict[str, object] = {}
    for name, entry in given.items():
        base: object = known.get(name, {})
        if is_mapping(entry) and isinstance(like := entry.get("like"), str):
            before = {**known, **made}
            if like not in before:
                close = did_you_mean(like, before, " ")
                raise SetpointError(
                    f"{document.where((table, name, 'like'))}: {table}.{name}.like: there is no "
                    f"{like!r} before it.{close}\nValid: {', '.join(before)}"
                )
            base = before[like]
        made[name] = _merged(base, entry)
    return made


def _merged(base: object, entry: object) -> object:
    if not is_mapping(base) or not is_mapping(entry):
        return entry
    return {**base, **{key: _merged(base.get(key), value) for key, value in entry.items()}}


def machine_named(name: str, file: str | None = None) -> tuple[Machine, Network]:
    """A machine and the network between its nodes.

    Raises:
        SetpointError: there is none of this name.
    """
    found = machines(file)
    machine = found.machines.get(name) or found.machines.get(name.lower())
    if machine is None:
        close = did_you_mean(name, found.machines, " ")
        raise SetpointError(
            f"--gpu: there is no machine {name!r}.{close}\nValid: {', '.join(found.machines)}\n"
            f"Others are described in a file, --machines FILE: a table [machines.{name}] with "
            f'like = "h100" and what differs'
        )
    return machine, found.networks[machine.network]
