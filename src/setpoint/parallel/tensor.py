"""Tensor parallelism: ranks divide the matrices of each layer (Megatron-LM, Shoeybi et al., 2019).

Parameters become DTensors on the ranks of the axis `tensor`, so that optimizers, FSDP2 and
checkpoints know their parts. Modules compute with this rank's part, using the same code and kernels
as a single rank: a module that reads its weight gets the part. Ranks communicate only where divided
work begins or ends. With sequence parallelism (Korthikanti et al., 2022), everything in between
(norms, dropout, the residual stream) is divided by tokens.

Gradients of parameters that are whole on all ranks are computed in one of two ways. If all ranks do
the same work, they get the same gradient. If they divide the work, each gets a partial gradient,
and these are summed once per step, after the last micro-batch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from setpoint.config import SetpointError, did_you_mean
from setpoint.parallel.buckets import sum_in_buckets
from setpoint.shapes.peers import (
    Peers,
    gather_parts,
    keep_part,
    scatter_sum,
    sum_gradients,
    sum_parts,
)
from setpoint.shapes.protocols import WORDS, FollowsDivision, VocabularyDivisible, tensor_plan_of
from setpoint.shapes.stored import Stored

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

BY_ROWS = ("column", "column_gathered", "vocabulary_columns", "vocabulary_rows")
ROWS = ("row", "row_whole_input")
SEQUENCE = 1
"""The dimension of (B, S, dim) that sequence parallelism divides."""


def divide_matrices(
    model: nn.Module, mesh: DeviceMesh, sequence_parallel: bool, gathers_logits: bool
) -> None:
    """Split each matrix among tensor-parallel ranks.

    Arguments:
        model: equal on all ranks; on the meta device, without values.
        mesh: the ranks of the axis `tensor`.
        sequence_parallel: whether ranks divide the sequence where they do not divide matrices.
        gathers_logits: whether losses receive the logits of the whole vocabulary.

    Raises:
        SetpointError: the model does not declare how to divide it, or cannot be divided among these
            ranks.
    """
    peers = Peers(mesh.get_group().group_name, mesh.get_local_rank(), mesh.size())
    words = _words(model, peers.size)
    parts: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        if isinstance(module, FollowsDivision):
            owner = path.rpartition(".")[0]
            plan = _planned(owner, words, sequence_parallel)
            rows = getattr(model.get_submodule(owner), "_rows", ())
            _divide_follower(module, plan, rows, mesh, peers)
        else:
            plan = _planned(path, words, sequence_parallel)
            _divide_module(path, module, plan, mesh, peers, parts)
    if isinstance(model, VocabularyDivisible):
        model.divide_vocabulary(peers, gathers_logits)


def share_memory(mesh: DeviceMesh) -> None:
    """Enable symmetric memory, so that compilers can fuse communication with matrix products."""
    from torch.distributed import _symmetric_memory as symmetric

    with warnings.catch_warnings():
        # Deprecated as unnecessary in torch 2.13, but the compiler fuses nothing without it.
        warnings.simplefilter("ignore", FutureWarning)
        symmetric.enable_symm_mem_for_group(mesh.get_group().group_name)


def summed_gradients(model: nn.Module) -> Iterator[nn.Parameter]:
    """Find the parameters with partial gradients on the ranks of the axis `tensor`."""
    for module in model.modules():
        for name in getattr(module, "_summed", ()):
            weight = module._parameters[name]
            if weight is not None and weight.requires_grad:
                yield weight


@torch.no_grad()
def sum_over_tensor_ranks(weights: Sequence[nn.Parameter], group: ProcessGroup) -> None:
    """Sum gradients over the ranks of the axis `tensor`, in at least fp32."""
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    sum_in_buckets(
        [weight.grad for weight in weights if weight.grad is not None],
        partial(distributed.all_reduce, group=group),
        torch.device("cuda") if distributed.get_backend(group) == "nccl" else None,
        least=torch.float32,
    )


class _Piece(NamedTuple):
    """Outputs of a linear layer, divided by heads.

    Arguments:
        is_shared: whether several ranks may share a head.
    """

    heads: int
    width: int
    is_shared: bool


class _Plan(NamedTuple):
    """Tensor-parallel plan of one module.

    Arguments:
        pieces: pieces of a `column`; empty if outputs can be divided anywhere.
        is_inside: whether the module is inside a divided one.
        sequence: whether its input and output are parts of the sequence.
        parts: names of the module's own parameters that are divided.
    """

    word: str = ""
    pieces: tuple[_Piece, ...] = ()
    is_inside: bool = False
    sequence: bool = False
    parts: tuple[str, ...] = ()


def _words(model: nn.Module, size: int) -> dict[str, str]:
    """Words of a model's tensor plan for each module or parameter that its patterns match."""
    plan = tensor_plan_of(model)
    if not plan:
        raise SetpointError(
            f"parallel.tensor = {size}: a {type(model).__name__} does not define how it is "
            f"divided\n"
            f"Valid: 1, or a model with a method tensor_plan() that maps names of modules to "
            f"words such as column and row"
        )
    modules = [path for path, _ in model.named_modules()]
    parameters = [path for path, _ in model.named_parameters()]
    words: dict[str, str] = {}
    for pattern, word in plan.items():
        if word.partition(" ")[0] not in WORDS:
            raise SetpointError(
                f"parallel.tensor = {size}: the tensor_plan() of the model returns {word!r} for "
                f"{pattern}.{did_you_mean(word, list(WORDS), ' ')}\nValid: {', '.join(WORDS)}"
            )
        noun, paths = ("parameter", parameters) if word == "part" else ("module", modules)
        matches = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        named = [path for path in paths if matches.fullmatch(path)]
        if not named:
            raise SetpointError(
                f"parallel.tensor = {size}: the tensor_plan() of the model names {pattern}, but "
                f"there is no {noun} of that name.{did_you_mean(pattern, paths, ' ')}\nValid: "
                f"names of {noun}s, in which * stands for one part, such as {', '.join(paths[1:4])}"
            )
        words |= dict.fromkeys(named, word)
    for owners in _shared_parameters(model):
        # An output tied to an embedding is divided like that, or not at all.
        if not all(words.get(path, "").startswith(BY_ROWS) for path in owners):
            words = {path: word for path, word in words.items() if path not in owners}
    return words


def _planned(path: str, words: dict[str, str], sequence_parallel: bool) -> _Plan:
    word, _, groups = words.get(path, "").partition(" ")
    pieces = tuple(map(_piece, groups.split("+"))) if groups else ()
    names = path.split(".")
    outer_words = [words.get(".".join(names[:end]), "") for end in range(len(names))]
    is_inside = "shared_input" in outer_words
    sequence = sequence_parallel and "whole" not in outer_words
    named = (name.rpartition(".") for name, word in words.items() if word == "part")
    parts = tuple(name for owner, _, name in named if owner == path)
    return _Plan(word, pieces, is_inside, sequence, parts)


def _piece(text: str) -> _Piece:
    numbers, _, shared = text.strip().partition(" ")
    heads, _, width = numbers.partition("*")
    return _Piece(int(heads), int(width), shared == "shared")


def _divide_module(
    path: str,
    module: nn.Module,
    plan: _Plan,
    mesh: DeviceMesh,
    peers: Peers,
    parts: dict[int, nn.Parameter],
) -> None:
    parameters = {
        name: weight
        for name, weight in module._parameters.items()
        # Experts may be divided already, in another way.
        if weight is not None and not hasattr(weight, "placements")
    }
    rows: tuple[tuple[int, int], ...] = ()
    divided: dict[str, int] = {}
    if plan.word in BY_ROWS:
        rows = _rows(path, plan.pieces, peers)
        if not rows:
            _require_fit(path, _shape(module)[0], plan.word, peers.size)
        divided = {} if rows else dict.fromkeys(parameters, 0)
    elif plan.word in ROWS:
        _require_fit(path, _shape(module)[1], plan.word, peers.size)
        divided = {"weight": 1}
    for name in plan.parts:
        _require_fit(f"{path}.{name}", parameters[name].shape[0], plan.word, peers.size)
        divided[name] = 0
    for name, weight in parameters.items():
        if id(weight) not in parts:
            parts[id(weight)] = _placed(weight, mesh, divided.get(name))
        module._parameters[name] = parts[id(weight)]
    behaves = _behavior(plan)
    if not parameters and behaves is _Part:
        return
    module.__class__ = _class_of(type(module), behaves, tuple(parameters))
    changed: Any = module
    changed._peers, changed._sequence, changed._rows = (
        peers,
        plan.sequence,
        rows,
    )
    if plan.word == "vocabulary_rows":
        changed._first = peers.rank * -(-parameters["weight"].shape[0] // peers.size)
    is_summed = _has_terms(plan)
    changed._summed = tuple(name for name in parameters if name not in divided) if is_summed else ()
    if plan.word in ("column", "vocabulary_columns") and isinstance(module, nn.Linear):
        if "weight" in parameters:
            module.out_features = changed.weight.shape[0]
        else:
            picked = sum(count for _, count in rows)
            module.out_features = picked or _shape(module)[0] // peers.size


def _shape(module: nn.Module) -> tuple[int, ...]:
    """Full shape of a module's weight; a child module may store it in another form."""
    weight = module._parameters.get("weight")
    if weight is not None:
        return tuple(weight.shape)
    return next(child.full_shape for child in module.children() if isinstance(child, Stored))


def _divide_follower(
    module: Any,
    plan: _Plan,
    rows: tuple[tuple[int, int], ...],
    mesh: DeviceMesh,
    peers: Peers,
) -> None:
    """Divide the parameters of a module like its parent, which is divided already."""
    word = "row" if plan.word in ROWS else plan.word
    divided, of_rows = module.follow(word, rows, peers)
    parameters = {
        name: weight
        for name, weight in module._parameters.items()
        if weight is not None and not hasattr(weight, "placements")
    }
    for name, weight in parameters.items():
        module._parameters[name] = _placed(weight, mesh, divided.get(name))
    if not parameters:
        return
    module.__class__ = _class_of(type(module), _Follower, tuple(parameters))
    module._peers, module._sequence, module._rows = peers, plan.sequence, ()
    module._owner_rows, module._of_rows = rows, of_rows
    module._summed = tuple(n for n in parameters if n not in divided) if _has_terms(plan) else ()


def _has_terms(plan: _Plan) -> bool:
    """True if ranks have partial gradients of a module's replicated parameters."""
    return (
        plan.is_inside
        or plan.word in (*ROWS, "sum_gradients", *BY_ROWS)
        or (plan.sequence and plan.word != "whole")
    )


def _placed(weight: nn.Parameter, mesh: DeviceMesh, dim: int | None) -> nn.Parameter:
    """A parameter sharded along a dimension, or replicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placement = Replicate() if dim is None else Shard(dim)
    # src_data_rank=None: all ranks have the same values, or none, so nothing needs to be sent.
    part = distribute_tensor(weight.detach(), mesh, [placement], src_data_rank=None)
    return nn.Parameter(part, requires_grad=weight.requires_grad)


def _shared_parameters(model: nn.Module) -> list[list[str]]:
    """For each shared parameter, the paths of the modules that share it."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for weight in module._parameters.values():
            if weight is not None:
                owners.setdefault(id(weight), []).append(path)
    return [paths for paths in owners.values() if len(paths) > 1]


def _rows(path: str, pieces: tuple[_Piece, ...], peers: Peers) -> tuple[tuple[int, int], ...]:
    """The rows of a whole matrix with which a rank computes, as (first, number) pairs.

    Returns:
        empty if each rank has an equal, contiguous share of the rows.
    """
    size = peers.size
    if len(pieces) < 2 and all(piece.heads % size == 0 for piece in pieces):
        return ()
    rows: list[tuple[int, int]] = []
    first = 0
    for heads, width, is_shared in pieces:
        if heads % size and not (is_shared and size % heads == 0):
            raise SetpointError(
                f"parallel.tensor = {size}: the {heads} heads of {path} cannot be divided among "
                f"that many ranks\nValid: a divisor of {heads}"
                f"{' or a multiple' if is_shared else ''}"
            )
        rows.append((first + peers.rank * heads // size * width, max(1, heads // size) * width))
        first += heads * width
    return tuple(rows)


def _require_fit(path: str, count: int, word: str, size: int) -> None:
    if word in ("vocabulary_rows", "vocabulary_columns", "column_gathered"):
        # All ranks have the same number of rows, except for the last one.
        if count <= (size - 1) * -(-count // size):
            raise SetpointError(
                f"parallel.tensor = {size}: the {count} rows of {path} leave nothing for the last "
                f"rank\nValid: fewer ranks"
            )
    elif count % size:
        noun = "inputs" if word in ROWS else "outputs"
        raise SetpointError(
            f"parallel.tensor = {size}: the {count} {noun} of {path} cannot be divided among that "
            f"many ranks\nValid: a divisor of {count}"
        )


def _behavior(plan: _Plan) -> type[_Part]:
    if plan.word == "column_gathered":
        return _GatheredColumn
    if plan.word == "column" and not plan.is_inside:
        return _LoneColumn
    if plan.word in ("whole", "sequence") and not plan.sequence:
        return _Part
    return _BEHAVIORS.get(plan.word, _Part)


@cache
def _class_of(cls: type[nn.Module], behaves: type[_Part], names: tuple[str, ...]) -> type:
    """A module class with parameters that read as this rank's parts.

    Modules of the same class share one, because a compiler treats different classes separately.
    """
    parts = {name: property(_reader(behaves, name)) for name in names}
    return type(cls.__name__, (behaves, cls), {**parts, "__module__": cls.__module__})


def _reader(behaves: type[_Part], name: str) -> Callable[[Any], Tensor]:
    from torch.distributed.tensor import DTensor

    def read(module: Any) -> Tensor:
        if name in module.__dict__:
            return module.__dict__[name]  # including an adapter's addition to packed experts
        weight = module._parameters[name]
        if not isinstance(weight, DTensor) or weight.device_mesh.ndim > 1:
            # FSDP2 shards it now, and looks up the parameter that it has stored there.
            return weight
        part = weight.to_local()
        if module._rows:
            pieces = [part.narrow(0, first, count) for first, count in module._rows]
            part = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return behaves.computed_with(module, name, part)

    return read


class _Part:
    """Module with a part of its weights, or of the sequence, on this rank.

    Subclasses come before the module's own class in the method resolution order.
    """

    _peers: Peers
    _sequence: bool
    _rows: tuple[tuple[int, int], ...]
    _first: int
    _summed: tuple[str, ...]
    forward: Any

    def computed_with(self, name: str, part: Tensor) -> Tensor:
        """The tensor used in the computation for a parameter."""
        del name
        return part


class _Follower(_Part):
    """Module with parameters divided like those of its parent."""

    _owner_rows: tuple[tuple[int, int], ...]
    _of_rows: tuple[str, ...]

    def computed_with(self, name: str, part: Tensor) -> Tensor:
        if name not in self._of_rows:
            return part
        pieces = [part.narrow(0, first, count) for first, count in self._owner_rows]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _enter(x: Tensor, peers: Peers, sequence: bool) -> Tensor:
    """Enter a divided computation, for which each rank needs all tokens."""
    if torch.is_autocast_enabled(x.device.type):
        # Before communication, not after.
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return gather_parts(x, SEQUENCE, peers, sums=True) if sequence else sum_gradients(x, peers)


def _leave(x: Tensor, peers: Peers, sequence: bool) -> Tensor:
    """Leave a divided computation: sum the partial results of all ranks."""
    return scatter_sum(x, SEQUENCE, peers) if sequence else sum_parts(x, peers)


class _SharedInput(_Part):
    def forward(self, *given: Any, **named: Any) -> Any:
        # Layers of transformers are called with keywords, the input first.
        if given:
            given = (_enter(given[0], self._peers, self._sequence), *given[1:])
        else:
            name = next(iter(named))
            named = {**named, name: _enter(named[name], self._peers, self._sequence)}
        return super().forward(*given, **named)


class _SharedOutput(_Part):
    def forward(self, *given: Any, **named: Any) -> Any:
        return _enter(super().forward(*given, **named), self._peers, self._sequence)


class _LoneColumn(_Part):
    """Linear layer outside of modules with a plan, which enters the divided computation itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_enter(x, self._peers, self._sequence))


class _GatheredColumn(_Part):
    out_features: int

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(_enter(x, self._peers, self._sequence))
        count, width = self.out_features, -(-self.out_features // self._peers.size)
        logits = F.pad(logits, (0, width - logits.shape[-1]))
        return gather_parts(logits, -1, self._peers, sums=False)[..., :count]


class _Row(_Part):
    def forward(self, x: Tensor) -> Tensor:
        return _leave(super().forward(x), self._peers, self._sequence)

    def computed_with(self, name: str, part: Tensor) -> Tensor:
        # A term added by every rank would be counted once per rank.
        return part * 0.0 if name == "bias" and self._peers.rank else part


class _RowWholeInput(_Row):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(keep_part(x, -1, self._peers))


class _VocabularyRows(_Part):
    def forward(self, tokens: Tensor) -> Tensor:
        weight: Any = self.weight  # type: ignore[attr-defined]
        rows = weight.shape[0]
        place = tokens - self._first
        is_local = (place >= 0) & (place < rows)
        vectors = super().forward(place.where(is_local, 0))
        return _leave(vectors * is_local.unsqueeze(-1), self._peers, self._sequence)


class _Sequence(_Part):
    def forward(self, *given: Any, **named: Any) -> Tensor:
        return self._peers.part(super().forward(*given, **named), -2)


class _Whole(_Part):
    def forward(self, x: Tensor, *args: Any, **named: Any) -> Any:
        output = super().forward(gather_parts(x, SEQUENCE, self._peers, sums=False), *args, **named)
        if isinstance(output, tuple):
            return (keep_part(output[0], SEQUENCE, self._peers), *output[1:])
        return keep_part(output, SEQUENCE, self._peers)


_BEHAVIORS: dict[str, type[_Part]] = {
    "shared_input": _SharedInput,
    "shared_output": _SharedOutput,
    "row": _Row,
    "row_whole_input": _RowWholeInput,
    "vocabulary_rows": _VocabularyRows,
    "sequence": _Sequence,
    "whole": _Whole,
}
