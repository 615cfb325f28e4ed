"""Build, validate, allocate and inspect built-in and custom models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from setpoint.config import SetpointError, call_component, error_in_words
from setpoint.config.component_sections import ANY_NAME, parameters_of, takes_parameter
from setpoint.config.draft.config import owner_of
from setpoint.model.config import HuggingFaceConfig
from setpoint.shapes.outcome import Outcome, supports_head
from setpoint.shapes.parameter import Kind
from setpoint.shapes.protocols import KnowsKinds
from setpoint.shapes.stored import stored_parts

if TYPE_CHECKING:
    from setpoint.model.config import ImportedModel, ModelConfig, TransformerConfig
    from setpoint.model.transformer import Transformer


def build_model(
    config: ModelConfig, vocab_size: int, keys: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build the model of a section: a module from (B, S) int64 tokens to (B, S, V) logits.

    A custom model gets `vocab_size` if it accepts it, and is tried on two tokens.

    Arguments:
        keys: config.json of a transformers model; None: the one named in the section.

    Raises:
        SetpointError: a custom model cannot be built, or is not such a module.
    """
    owner = owner_of(type(config))
    if owner.__module__.partition(".")[0] == "setpoint":
        elsewhere = {} if keys is None else {"keys": keys}
        return config.build(vocab_size=vocab_size, **elsewhere)
    title = (
        f"model.type = {type(config).__setpoint__.tag} ({owner.__module__}.{owner.__qualname__})"
    )
    parameters = parameters_of(owner)
    takes_any = parameters is None or any(one.kind.name == ANY_NAME for one in parameters.values())
    try:
        if takes_any or takes_parameter(parameters, "vocab_size"):
            model = config.build(vocab_size=vocab_size)
        else:
            model = config.build()
    except SetpointError:
        raise
    except Exception as error:
        raise SetpointError(f"{title} cannot be built: {error_in_words(error)}") from error
    require_language_model(model, title, vocab_size)
    return model


def build_transformer(config: TransformerConfig, *, vocab_size: int) -> Transformer:
    """Build a transformer of dense layers, or one in which some layers have experts."""
    if config.moe is None:
        from setpoint.model.transformer import Transformer

        return Transformer(config, vocab_size=vocab_size)
    from setpoint.model.moe.layer import MoETransformer

    return MoETransformer(config, vocab_size=vocab_size)


def build_outline(config: ModelConfig, vocab_size: int) -> nn.Module:
    """Build a model on the meta device, or on the CPU if its code needs values.

    Raises:
        SetpointError: the model cannot be built.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return build_model(config, vocab_size)
        except SetpointError:
            if isinstance(config, HuggingFaceConfig):
                raise
            # A user's code may need values; only its error on the CPU matters.
            return build_model(config, vocab_size)


def require_language_model(model: object, title: str, vocab_size: int) -> None:
    """Call a model with two tokens to validate it.

    Raises:
        SetpointError: it does not map tokens to logits, or declares `supports_head` without
            supporting it.
    """
    if not isinstance(model, nn.Module):
        name = type(model).__name__
        raise SetpointError(f"{title} makes an object of type {name}, not a torch module")
    if torch.get_default_device().type == "meta":
        return  # a model without values cannot be tried
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    # Trying it must not advance the random state.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(model):
        try:
            logits = model(tokens)
        except Exception as error:
            raise SetpointError(
                f"{title} cannot be called with (B, S) int64 tokens: {error_in_words(error)}"
            ) from error
        if supports_head(model):
            _require_head(model, tokens, title)
    shape = (1, 2, vocab_size)
    if not isinstance(logits, Tensor) or logits.shape != shape:
        shaped = isinstance(logits, Tensor)
        got = f"tensor of shape {tuple(logits.shape)}" if shaped else type(logits).__name__
        raise SetpointError(
            f"{title} returns a {got} for tokens of shape (1, 2); it must return logits of shape "
            f"{shape}"
        )


def _require_head(model: nn.Module, tokens: Tensor, title: str) -> None:
    try:
        outcome = model(tokens, head=lambda hidden, projection: projection.logits(hidden))
    except Exception as error:
        raise SetpointError(
            f"{title} has supports_head = True but cannot be called with a head (a function of "
            f"hidden states and a Projection): {error_in_words(error)}"
        ) from error
    if not isinstance(outcome, Outcome):
        raise SetpointError(
            f"{title} has supports_head = True but returns a {type(outcome).__name__} when called "
            f"with a head; it must return an Outcome with the result of the head"
        )


def build_imported(config: ImportedModel, vocab_size: int) -> nn.Module:
    """Build the model of an `import` section, and validate it with two tokens.

    Raises:
        SetpointError: the target does not build a module that maps tokens to logits.
    """
    model = call_component(config, (), {"vocab_size": vocab_size}, optional=("vocab_size",))
    require_language_model(model, f"model.target = {config.target}", vocab_size)
    return model


class _NoInitialization(TorchFunctionMode):
    """Context that skips the initialization of torch modules.

    On the meta device, initialization draws nothing, but takes seconds to import its code.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: dict[str, Any] = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def skeleton(config: ModelConfig, vocab_size: int) -> nn.Module:
    """Build a transformer on the meta device."""
    with torch.device("meta"), _NoInitialization():
        return config.build(vocab_size=vocab_size)


def materialize(module: nn.Module, device: torch.device | str, dtype: torch.dtype) -> None:
    """Allocate uninitialized memory for tensors on the meta device.

    Like `nn.Module.to_empty`, whose imports take a third of a second even for plain tensors.

    Arguments:
        dtype: dtype of parameters; buffers, and parts of quantized weights, keep their own.
    """
    keep = {id(part) for part in stored_parts(module).values()}

    def allocate(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.to(device)
        casts = isinstance(tensor, nn.Parameter) and id(tensor) not in keep
        tensor_dtype = dtype if casts else tensor.dtype
        if type(tensor) in (Tensor, nn.Parameter):
            return torch.empty(tensor.shape, dtype=tensor_dtype, device=device)
        return torch.empty_like(tensor, dtype=tensor_dtype, device=device)

    module._apply(allocate)


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move a model's buffers to a device while FSDP2 keeps its parameters on the host."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


# Inspection.


_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)
# `LlamaRMSNorm`, `BatchNorm1d`, `RMSNormGated`; not `NormalizedLinear`.
_NORM = re.compile(r"Norm(?![a-z])")
_ROUTER = re.compile(r"Router(?![a-z])")
_BIAS = re.compile(r"bias$|(^|_)bias_")
_OUTPUTS = ("output", "lm_head", "embed_out", "unembed", "unembedding")
_GATES = ("gate", "router", "shared_gate", "shared_expert_gate")


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Find the repeated blocks of a model, such as the layers of a transformer.

    These are the members of the list or dictionary of modules with the most parameters, because
    lists of experts or heads are within a layer. A sequence qualifies if its members have one
    class; dictionaries that contain such a list, and lists of embeddings, do not.

    Returns:
        qualified names and modules, in order and each once; empty if nothing repeats.
    """
    best, most = [], 0
    for prefix, holder in model.named_modules():
        layers = _members(prefix, holder)
        # The first wins: nothing inside it can have more.
        size = sum(p.numel() for p in holder.parameters()) if layers else 0
        if size > most:
            best, most = layers, size
    return best


def _members(prefix: str, holder: nn.Module) -> list[tuple[str, nn.Module]]:
    """Named members of a holder of layers; empty for other modules."""
    members = list(holder.named_children())
    if not members or any(_is_no_layer(module) for _, module in members):
        return []
    if isinstance(holder, nn.Sequential):
        if len(members) < 2 or len({type(module) for _, module in members}) > 1:
            return []
    elif not isinstance(holder, nn.ModuleList | nn.ModuleDict):
        return []
    return [(f"{prefix}.{name}" if prefix else name, module) for name, module in members]


def _is_no_layer(module: nn.Module) -> bool:
    if isinstance(module, nn.Embedding):
        return True
    # A list cannot be called; a subclass with a forward pass can.
    is_list = isinstance(module, nn.ModuleList | nn.ModuleDict)
    return is_list and type(module).forward is nn.Module.forward


def count_parameters(module: nn.Module) -> int:
    """Count the elements of all parameters: shared ones once, sharded ones in full."""
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore each module's mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def parameter_kinds(model: nn.Module) -> dict[str, Kind]:
    """Classify each parameter of a model, which may be on the meta device.

    The kind follows from the module or, for classes from neither PyTorch nor Setpoint, from names.
    The weight of an `nn.Embedding` is an embedding, even if it is also the output matrix. All
    parameters of a norm are of kind norm. The output is `get_output_embeddings()`, or a linear
    layer at the top level with such a name. A router is a module with such a name, or a gate next
    to experts.
    """
    outputs = {id(weight) for weight in _output_weights(model)}
    owners = dict(model.named_modules())
    kinds: dict[str, Kind] = {}
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        module = owners[path]
        if isinstance(module, KnowsKinds):
            kinds[name] = module.parameter_kinds()[leaf]
        elif _is_norm(module, parameter.ndim):
            kinds[name] = "norm"
        elif _BIAS.search(leaf):
            kinds[name] = "bias"
        elif isinstance(module, nn.Embedding):
            kinds[name] = "embedding"
        elif id(parameter) in outputs and parameter.ndim >= 2:
            kinds[name] = "output"
        elif _is_router(owners, path):
            kinds[name] = "router"
        else:  # of a convolution, or a user's experts, it is unknown which dimensions are matrices
            kinds[name] = ("vector", "vector", "matrix", "tensor")[min(parameter.ndim, 3)]
    return kinds


def inputs_first(model: nn.Module) -> set[str]:
    """Names of (inputs, outputs) matrices, which transformers' `Conv1D` has (GPT-2)."""
    return {
        f"{path}.weight" if path else "weight"
        for path, module in model.named_modules()
        if any(
            cls.__name__ == "Conv1D" and cls.__module__.startswith("transformers.")
            for cls in type(module).__mro__
        )
    }


def packed_experts(model: nn.Module) -> dict[str, Literal["inputs_first", "outputs_first"]]:
    """Packed experts of transformers models: the order of their matrices, by name."""
    orders: dict[str, Literal["inputs_first", "outputs_first"]] = {}
    for path, module in model.named_modules():
        # An attribute of transformers' experts, except Llama 4's.
        transposed = getattr(module, "is_transposed", None)
        if type(module).__name__ == "Llama4TextExperts":
            transposed = True
        elif not isinstance(getattr(module, "_is_expert_parallel", None), bool):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3:
                orders[f"{path}.{name}"] = "inputs_first" if transposed else "outputs_first"
    return orders


def _is_norm(module: nn.Module, dims: int) -> bool:
    if isinstance(module, _NORMS):
        return True
    title = type(module).__name__
    # A linear layer with a fixed weight norm has the word in its name as well.
    return title.endswith("Norm") or (dims < 2 and _NORM.search(title) is not None)


def _is_router(owners: dict[str, nn.Module], path: str) -> bool:
    parent, _, leaf = path.rpartition(".")
    if not path:
        return False
    if any(_ROUTER.search(kind.__name__) for kind in type(owners[path]).__mro__):
        return True
    # Some routers are modules with a linear layer inside.
    if parent and _ROUTER.search(type(owners[parent]).__name__):
        return True
    return leaf in _GATES and hasattr(owners[parent], "experts")


def _output_weights(model: nn.Module) -> Iterator[Any]:
    """Weights of the output layer, of the model itself or of the one it wraps."""
    for module in (model, *model.children()):
        getter = getattr(module, "get_output_embeddings", None)
        try:
            head = getter() if callable(getter) else None
        except (AttributeError, RuntimeError):  # raised by models that have none
            head = None
        weight = _weight_of(head)
        if weight is not None:
            yield weight
            return
    for name in _OUTPUTS:
        head = getattr(model, name, None)
        if isinstance(head, nn.Linear):
            yield _weight_of(head)


def _weight_of(module: Any) -> nn.Parameter | None:
    """The parameter itself, since the attribute may be its local shard."""
    parameters = module.named_parameters(recurse=False) if isinstance(module, nn.Module) else ()
    return dict(parameters).get("weight")
