"""Parallelism of transformers models: tensor plans, pipeline stages, experts, and their limits."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import unwrap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.huggingface.attention_interface import ATTENDING, NAME
from setpoint.model.moe.dispatch import TensorParallelDispatcher
from setpoint.model.moe.experts import Assignments, assign, gather, row_groups, spread, sum_choices
from setpoint.model.parameters import LAYER, part_names
from setpoint.shapes.placed import local_part
from setpoint.shapes.protocols import ExpertPart
from setpoint.shapes.stored import CHILD

if TYPE_CHECKING:
    from setpoint.model.moe.dispatch import TokenDispatcher
    from setpoint.parallel.config import Parallel
    from setpoint.shapes.peers import Peers

M = TypeVar("M", bound=nn.Module)


def decoder_of(model: Any) -> Any:
    """The part of a causal language model that returns hidden states."""
    decoder = model.base_model
    if decoder is not model:
        return decoder
    # Some models name another part as their base (Llama 4).
    parts = (part for part in model.children() if hasattr(part, "get_input_embeddings"))
    return next(parts, model)


# Tensor parallelism: transformers' own plans in Setpoint's words, and plans for attention that
# these leave out; see `setpoint.shapes.protocols.TensorDivisible`.

WORDS = {
    "colwise": "column",
    "rowwise": "row",
    "rowwise_rep": "row",
    "rowwise_split_input": "row_whole_input",
    "colwise_gather_output": "column_gathered",
    "colwise_rep": "column_gathered",
    "embedding_rowwise": "vocabulary_rows",
    "replicated_with_grad_allreduce": "sum_gradients",
}
"""Styles of transformers' tensor-parallel plans, with Setpoint's."""

ELSEWHERE = (
    "moe_tp_experts", "packed_colwise", "packed_rowwise", "grouped_gemm", "ep_router",
    "ep_dispatch_experts", "moe_identity_expert", "replicate",
)  # fmt: skip
"""Styles for packed experts, which `parallel.expert` and `expert_tensor` divide, and for replicated
modules."""

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
LATENT = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}


def tensor_plan(model: Any) -> dict[str, str]:
    """Tensor-parallel plan of a model.

    Raises:
        SetpointError: the model has no plan, or one with unsupported styles.
    """
    given: dict[str, str] = getattr(model, "_tp_plan", None) or {}
    kind = type(model).__name__
    unknown = sorted(set(given.values()) - WORDS.keys() - set(ELSEWHERE))
    if unknown:
        raise SetpointError(
            f"parallel.tensor: the plan of transformers for {kind} divides modules by "
            f"{', '.join(unknown)}, but supported are only {', '.join(WORDS)}\nValid: 1"
        )
    plan: dict[str, str] = {}
    for pattern, word in given.items():
        if word in ELSEWHERE:
            continue
        matches = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        for path, module in model.named_modules():
            # Styles for parameters are those of experts, where no module has the name.
            if matches.fullmatch(path):
                plan[path] = WORDS[word] + _heads_of(model, path, module)
    for path, module in model.named_modules():
        if not any(name.startswith(f"{path}.") for name in plan):
            plan |= _attention_plan(model, path, module)
    if not plan:
        raise SetpointError(
            f"parallel.tensor: transformers has no tensor-parallel plan for {kind}\nValid: 1"
        )
    return plan


def _heads_of(model: Any, path: str, module: nn.Module) -> str:
    """Number and size of the heads in a projection's outputs, as a suffix of `column`."""
    keys = model.config.get_text_config()
    heads = getattr(keys, "num_attention_heads", None)
    key_heads = getattr(keys, "num_key_value_heads", None) or heads
    count = {"q_proj": heads, "k_proj": key_heads, "v_proj": key_heads}.get(path.split(".")[-1])
    if not count or not isinstance(module, nn.Linear) or module.out_features % count:
        return ""
    return f" {count}*{module.out_features // count}"


def _attention_plan(model: Any, path: str, module: nn.Module) -> dict[str, str]:
    """Divide attention by heads, if its projections have the usual names."""
    children = dict(module.named_children())
    heads = model.config.get_text_config().num_attention_heads
    if LATENT <= children.keys() <= LATENT | {"q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj"}:
        columns = {
            name: f"column {heads}*{children[name].out_features // heads}"
            for name in ("q_proj", "q_b_proj", "kv_b_proj")
            if name in children
        }
        named = {"": "shared_input", **columns, "o_proj": "row"}
    elif children.keys() == PROJECTIONS:
        columns = {
            name: "column" + _heads_of(model, name, children[name])
            for name in ("q_proj", "k_proj", "v_proj")
        }
        named = {"": "shared_input", **columns, "o_proj": "row"}
    else:
        return {}
    parameters = dict(module.named_parameters(recurse=False))
    if parameters.keys() - {"sinks"}:
        return {}
    named |= dict.fromkeys(parameters, "part")
    return {f"{path}.{name}".rstrip("."): word for name, word in named.items()}


# Pipeline stages.

LAYERS = "layers"
USUAL = ("embed_tokens", LAYERS, "norm")
"""Modules in forward order, for families without a pipeline plan."""


def parts_of(model: Any) -> list[str]:
    """Names of the pipeline parts; `output` includes everything after the layers.

    Raises:
        SetpointError: the order of the modules is unknown, or stages cannot compute the balance
            loss.
    """
    kind = type(model).__name__
    names, decoder = _module_order(model), decoder_of(model)
    is_usual = all(isinstance(getattr(decoder, name, None), nn.Module) for name in names)
    layers = getattr(decoder, LAYERS, None)
    if not is_usual or LAYERS not in names or not isinstance(layers, nn.ModuleList):
        raise SetpointError(
            f"parallel.pipeline: {kind} of transformers has neither a pipeline plan nor "
            f"{', '.join(USUAL)}\nValid: 1"
        )
    if getattr(model.config, "output_router_logits", False):
        raise SetpointError(
            "parallel.pipeline: model.overrides.output_router_logits = true requests a balance "
            "loss over the routers of all layers together, but each stage has only some of them\n"
            "Valid: 1, or output_router_logits = false"
        )
    return part_names(len(decoder.layers))


def modules_of(model: Any, part: str) -> list[nn.Module]:
    """The modules of a part."""
    decoder, names = decoder_of(model), _module_order(model)
    if part.startswith(LAYER):
        return [decoder.layers[int(part.removeprefix(LAYER))]]
    middle = names.index(LAYERS)
    if part == "embedding":
        return [getattr(decoder, name) for name in names[:middle]]
    after = [getattr(decoder, name) for name in names[middle + 1 :]]
    return [*after, model.get_output_embeddings()]


def keep_parts(model: Any, parts: Sequence[str]) -> Any:
    """Copy a model with some of its parts; other parts pass on the residual stream unchanged."""
    names, full_decoder = _module_order(model), decoder_of(model)
    stage, decoder = _shallow_copy(model), _shallow_copy(full_decoder)
    path = next(name for name, child in model.named_children() if child is full_decoder)
    setattr(stage, path, decoder)
    kept = {int(name.removeprefix(LAYER)) for name in parts if name.startswith(LAYER)}
    decoder.layers = StageLayers(full_decoder.layers, kept)
    is_first, is_last = "embedding" in parts, "output" in parts
    output = model.get_output_embeddings()
    tied = output is not None and output.weight is model.get_input_embeddings().weight
    middle = names.index(LAYERS)
    for name in names[:middle] if not is_first else ():
        is_embedding = getattr(full_decoder, name) is model.get_input_embeddings()
        if not is_embedding:
            setattr(decoder, name, nn.Identity())
        elif not (is_last and tied):
            setattr(decoder, name, None)
    if not is_last:
        for name in names[middle + 1 :]:
            setattr(decoder, name, nn.Identity())
        head = next(name for name, child in model.named_children() if child is output)
        setattr(stage, head, None)
    return stage


def _shallow_copy(module: M) -> M:
    """A copy that shares its modules, but in which they can be replaced."""
    copied = copy.copy(module)
    for key, value in vars(copied).items():
        if isinstance(value, dict):
            copied.__dict__[key] = value.copy()
    return copied


class StageLayers(nn.ModuleList):
    """Some layers of a list, under their original names.

    Iteration yields all layers; layers of other stages return their input.
    """

    def __init__(self, layers: nn.ModuleList, kept: set[int]) -> None:
        super().__init__()
        self.total = len(layers)
        for number in sorted(kept):
            self.add_module(str(number), layers[number])

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Any]:
        return (self._modules.get(str(number), _identity) for number in range(self.total))

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def _identity(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states


def _module_order(model: Any) -> list[str]:
    """Names of the decoder's modules in the order of the forward pass."""
    keys = model.config.get_text_config()
    return list(getattr(keys, "base_model_pp_plan", None) or USUAL)


# Packed experts, dispatched as Setpoint's own.


def use_experts(model: nn.Module, dispatcher: TokenDispatcher) -> list[ExpertPart]:
    """See `setpoint.shapes.protocols.HasExperts`.

    Raises:
        SetpointError: the model has no packed experts, or their width cannot be divided.
    """
    peers = None
    inner = unwrap(dispatcher)  # a compiled model wraps the dispatcher
    if isinstance(inner, TensorParallelDispatcher) and inner.divides:
        peers = inner.peers
    parts: list[ExpertPart] = []
    for path, experts in experts_of(model):
        parts.append(_part(path, experts, peers))
        experts.dispatcher = dispatcher
    if not parts:
        raise SetpointError(
            f"parallel.expert: {type(model).__name__} of transformers does not store the experts "
            f"of each projection in one tensor\nValid: 1"
        )
    return parts


def experts_of(model: nn.Module) -> list[tuple[str, Any]]:
    """Packed experts, by path."""
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(getattr(module, "_is_expert_parallel", None), bool)
    ]


class _Widths(NamedTuple):
    """Dimensions of the inner width of experts.

    Arguments:
        widths: by parameter, the dimension that ranks divide.
        halves: by parameter, the dimension in which all gates precede all values of the other
            projection; ranks keep all of it, but compute with their part of each half.
    """

    widths: dict[str, int]
    halves: dict[str, int]


def _widths(experts: Any) -> _Widths:
    names = experts._parameters.keys()
    transposed = getattr(experts, "is_transposed", True)
    into, out = (2, 1) if transposed else (1, 2)
    dims = {name: into for name in names if name in ("gate_up_proj", "up_proj")}
    dims |= {name: 1 for name in names if name in ("gate_up_proj_bias", "up_proj_bias")}
    widths = {"down_proj": out}
    halves: dict[str, int] = {}
    for name, dim in dims.items():
        has_halves = name.startswith("gate") and getattr(experts, "is_concatenated", True)
        (halves if has_halves else widths)[name] = dim
    return _Widths(widths, halves)


def why_no_width(path: str, experts: Any, size: int) -> str | None:
    """Reason why ranks cannot divide the width of experts, or None."""
    dims = _widths(experts)
    unknown = experts._parameters.keys() - {*dims.widths, *dims.halves, "down_proj_bias"}
    if unknown:
        return f"it is not known how {', '.join(sorted(unknown))} of {path} are divided"
    if any(True for part in experts.children() for _ in part.parameters()):
        return (
            f"the experts of {path} have adapters, whose rank dimension cannot be divided among "
            f"ranks"
        )
    width = experts.down_proj.shape[dims.widths["down_proj"]]
    return f"{size} ranks cannot divide experts of {width}, as in {path}" if width % size else None


def _part(path: str, experts: Any, peers: Peers | None) -> ExpertPart:
    dims = _widths(experts)
    why = None if peers is None else why_no_width(path, experts, peers.size)
    if peers is not None and why is not None:
        raise SetpointError(f"parallel.expert_tensor = {peers.size}: {why}\nValid: 1")
    parameters = dict(experts._parameters)
    readers = {name: _reader(name, dims.halves.get(name), peers) for name in parameters}
    experts._first = next(iter(parameters))
    experts.__class__ = _class_of(type(experts), tuple(readers.items()))
    undivided = tuple(name for name in parameters if name not in dims.widths)
    experts._summed = undivided if peers is not None else ()
    return ExpertPart(experts, dims.widths)


@cache
def _class_of(cls: type, readers: tuple[tuple[str, property], ...]) -> type:
    # Adapters come before division: they change the weights that experts compute with.
    *adapters, base = cls.__bases__ if len(cls.__bases__) > 1 else (cls,)
    bases = (*adapters, _Experts, base)
    return type(cls.__name__, bases, {**dict(readers), "__module__": cls.__module__})


@cache
def _reader(name: str, halves: int | None, peers: Peers | None) -> property:
    """A parameter in the form with which this rank computes."""

    def read(experts: Any) -> Tensor:
        if name in experts.__dict__:
            return experts.__dict__[name]  # with the update of an adapter
        weight = experts._parameters[name]
        mesh = getattr(weight, "device_mesh", None)
        if mesh is not None and mesh.ndim > (1 if peers is None else 2):
            # FSDP2 shards it now, and looks for the parameter that it has registered.
            return weight
        part = local_part(weight)
        if peers is not None and halves is not None:
            both = part.unflatten(halves, (2, -1))
            return peers.part(both, halves + 1).flatten(halves, halves + 1)
        if peers is not None and name == "down_proj_bias" and peers.rank:
            return part * 0.0  # else each rank would add it
        return part

    return property(read)


def _expert_count(experts: Any) -> int:
    """The number of experts on all ranks."""
    first = experts._parameters[experts._first]
    return (
        experts._modules[CHILD][experts._first].full_shape[0] if first is None else first.shape[0]
    )


class _Experts:
    """Experts of which this rank has some, as a mixin before the module's own class."""

    _first: str
    dispatcher: Any

    @property
    def num_experts(self) -> int:
        """The number of experts on this rank."""
        return getattr(self, self._first).shape[0]

    @num_experts.setter
    def num_experts(self, count: int) -> None:
        del count

    def forward(self, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        assigned, _ = assign(index, _expert_count(self))
        return self.dispatcher(self.compute, hidden_states, weights, assigned)()

    def compute(self, x: Tensor, weights: Tensor, assigned: Assignments) -> Tensor:
        """See `PackedExperts.forward`; gradient factors are not supported."""
        slots, ends, factors = assigned
        assert factors is None
        rows = gather(x, slots, weights.shape[1])
        row_weights = weights.flatten().index_select(0, slots).unsqueeze(1)
        if len(rows):
            results = self.results_of(rows, row_weights, ends)
        else:
            # A row of zeros, so that gradients take the same path on all ranks.
            results = self.results_of(
                rows.sum(0, keepdim=True), row_weights.sum(0, keepdim=True), ends.clamp(min=1)
            )[:0]
        choices = spread(results, slots, weights.numel()).unflatten(0, weights.shape)
        return sum_choices(choices)

    def results_of(self, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        """Weighted results of rows that are sorted by expert."""
        index = row_groups(len(rows), ends)
        above: Any = super()
        return above.forward(rows, index.unsqueeze(1), weights).to(rows.dtype)


# Checks before training.


class Undivided(NamedTuple):
    """A field of `parallel` along which a model cannot be divided."""

    field: str
    why: str


def undivided(hf: Any, parallel: Parallel) -> Iterator[Undivided]:
    """Axes along which a model cannot be divided.

    Arguments:
        hf: a `HuggingFaceModel` on the meta device, with the job's adapter.
    """
    model: Any = hf.model
    kind = type(model).__name__
    degrees = parallel.degrees
    if degrees["tensor"] > 1:
        yield from _undivided_matrices(model, degrees["tensor"])
    if degrees["pipeline"] > 1:
        try:
            parts = parts_of(model)
            if parallel.pipelining.split is None:
                yield from _too_many_stages(kind, parts, parallel)
        except SetpointError as error:
            yield Undivided("pipeline", _reason(error))
        if hf.logits is None:
            why = f"the output matrix of {kind} has a bias"
            yield Undivided("pipeline", why)
    for axis in ("ring", "ulysses"):
        if degrees[axis] > 1:
            yield from _undivided_sequences(hf, axis, degrees)
    if parallel.divides_experts:
        yield from _undivided_experts(model, parallel)


def _too_many_stages(kind: str, parts: list[str], parallel: Parallel) -> Iterator[Undivided]:
    ranks = parallel.degrees["pipeline"]
    count = parallel.pipelining.stages(ranks)
    if count > len(parts):
        stages = count // ranks
        total = f"{ranks} ranks with {stages} stages each = {count}" if stages > 1 else f"{count}"
        why = f"{total} stages exceed the {len(parts)} parts of {kind}: the embedding, "
        yield Undivided("pipeline", f"{why}{len(parts) - 2} layers and the output")


def _undivided_matrices(model: Any, size: int) -> Iterator[Undivided]:
    try:
        plan = tensor_plan(model)
    except SetpointError as error:
        yield Undivided("tensor", _reason(error))
        return
    for path, word in plan.items():
        name, _, pieces = word.partition(" ")
        module: Any = model.get_submodule(path.rpartition(".")[0] if name == "part" else path)
        if pieces:
            shared = "key-value " if path.endswith(("k_proj", "v_proj")) else ""
            count, unit = int(pieces.partition("*")[0]), f"{shared}heads"
        elif name == "column":
            count, unit = module.out_features, "outputs"
        elif name in ("row", "row_whole_input"):
            count, unit = module.in_features, "inputs"
        elif name == "part":
            count, unit = module.get_parameter(path.rpartition(".")[2]).shape[0], "elements"
        else:
            continue
        if count % size:
            yield Undivided("tensor", f"{size} ranks cannot divide the {count} {unit} of {path}")
            return
    rows = model.config.get_text_config().vocab_size
    if rows <= (size - 1) * -(-rows // size):
        yield Undivided(
            "tensor", f"{size} ranks leave none of the {rows} vocabulary rows for the last one"
        )


def _undivided_sequences(hf: Any, axis: str, degrees: Mapping[str, int]) -> Iterator[Undivided]:
    keys: Any = hf.model.config
    text = keys.get_text_config()
    kind = type(hf.model).__name__
    kinds = set(getattr(text, "layer_types", None) or ()) - ATTENDING - {"attention"}
    if hf.attention != NAME or kinds:
        cause = f"layers of {', '.join(sorted(kinds))}" if kinds else f"{hf.attention} attention"
        yield Undivided(axis, f"{kind} needs whole sequences, because it has {cause}")
    elif hf.balances:
        yield Undivided(
            axis, "model.overrides.output_router_logits = true needs the routers of whole sequences"
        )
    elif axis == "ring" and hf.demands.sinks:
        yield Undivided(axis, f"{kind} has attention sinks, which a ring does not support")
    elif axis == "ulysses":
        heads = text.num_attention_heads // degrees["tensor"]
        if heads % degrees[axis]:
            why = f"{degrees[axis]} ranks cannot divide the {heads} heads of a rank"
            yield Undivided(axis, why)


def _undivided_experts(model: nn.Module, parallel: Parallel) -> Iterator[Undivided]:
    ranks, inner = parallel.expert, parallel.expert_tensor
    all_experts = experts_of(model)
    kind = type(model).__name__
    if not all_experts:
        axis = "expert" if ranks > 1 else "expert_tensor"
        yield Undivided(axis, f"{kind} has no packed experts")
    for path, experts in all_experts:
        count = next(experts.parameters()).shape[0]
        if count % ranks:
            yield Undivided("expert", f"{ranks} ranks cannot divide the {count} experts of {kind}")
            return
        why = why_no_width(path, experts, inner) if inner > 1 else None
        if why is not None:
            yield Undivided("expert_tensor", why)
            return


def _reason(error: SetpointError) -> str:
    """The part of an error message between the field and the valid values."""
    return str(error).partition(": ")[2].partition("\n")[0]
