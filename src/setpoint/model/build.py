"""Build, validate and allocate built-in and custom models."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from setpoint.config import SetpointError, call_component, error_in_words
from setpoint.config.component_sections import ANY_NAME, parameters_of, takes_parameter
from setpoint.config.draft.config import owner_of
from setpoint.model.config import HuggingFaceConfig
from setpoint.model.layers import evaluating
from setpoint.shapes.outcome import Outcome, supports_head
from setpoint.shapes.stored import stored_parts

if TYPE_CHECKING:
    from setpoint.model.config import ImportedModel, ModelConfig


def build_model(
    config: "ModelConfig", vocab_size: int, keys: Mapping[str, Any] | None = None
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


def build_outline(config: "ModelConfig", vocab_size: int) -> nn.Module:
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
        raise SetpointError(f"{title} makes a {type(model).__name__}, not a torch module")
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


def build_imported(config: "ImportedModel", vocab_size: int) -> nn.Module:
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


def skeleton(config: "ModelConfig", vocab_size: int) -> nn.Module:
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
