"""Parts of transformers' models that the stages of a pipeline hold."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.huggingface.logits import decoder_of
from setpoint.model.parameters import LAYER, part_names

M = TypeVar("M", bound=nn.Module)
LAYERS = "layers"
USUAL = ("embed_tokens", LAYERS, "norm")
"""Names of what tokens go through, in families without a plan for pipelines."""


def require_parts(model: Any) -> None:
    """Refuse a model that is not cut at its layers.

    Raises:
        SetpointError: it does not say in which order tokens go through its parts, or stages cannot
            compute its balance loss.
    """
    kind = type(model).__name__
    names, decoder = _path(model), decoder_of(model)
    is_usual = all(isinstance(getattr(decoder, name, None), nn.Module) for name in names)
    layers = getattr(decoder, LAYERS, None)
    if not is_usual or LAYERS not in names or not isinstance(layers, nn.ModuleList):
        raise SetpointError(
            f"parallel.pipeline: {kind} of transformers has no plan for pipelines, and no "
            f"{', '.join(USUAL)}\nValid: 1"
        )
    if getattr(model.config, "output_router_logits", False):
        raise SetpointError(
            "parallel.pipeline: model.overrides.output_router_logits = true asks for a balance "
            "loss over the routers of all layers together, and each stage has some of them\n"
            "Valid: 1, or output_router_logits = false"
        )


def parts_of(model: Any) -> list[str]:
    """Name the parts; `output` is what follows the layers, too."""
    require_parts(model)
    return part_names(len(decoder_of(model).layers))


def modules_of(model: Any, part: str) -> list[nn.Module]:
    """The modules of a part."""
    decoder, names = decoder_of(model), _path(model)
    if part.startswith(LAYER):
        return [decoder.layers[int(part.removeprefix(LAYER))]]
    middle = names.index(LAYERS)
    if part == "embedding":
        return [getattr(decoder, name) for name in names[:middle]]
    after = [getattr(decoder, name) for name in names[middle + 1 :]]
    return [*after, model.get_output_embeddings()]


def keep_parts(model: Any, parts: Sequence[str]) -> Any:
    """Make a model that shares some parts of another, and lets the stream go through the rest."""
    names, whole = _path(model), decoder_of(model)
    made, decoder = shallow(model), shallow(whole)
    path = next(name for name, child in model.named_children() if child is whole)
    setattr(made, path, decoder)
    kept = {int(name.removeprefix(LAYER)) for name in parts if name.startswith(LAYER)}
    decoder.layers = Layers(whole.layers, kept)
    is_first, is_last = "embedding" in parts, "output" in parts
    output = model.get_output_embeddings()
    tied = output is not None and output.weight is model.get_input_embeddings().weight
    middle = names.index(LAYERS)
    for name in names[:middle] if not is_first else ():
        is_embedding = getattr(whole, name) is model.get_input_embeddings()
        if not is_embedding:
            setattr(decoder, name, nn.Identity())
        elif not (is_last and tied):
            setattr(decoder, name, None)
    if not is_last:
        for name in names[middle + 1 :]:
            setattr(decoder, name, nn.Identity())
        head = next(name for name, child in model.named_children() if child is output)
        setattr(made, head, None)
    return made


def shallow(module: M) -> M:
    """A copy whose modules are the same, and can be replaced by others."""
    made = copy.copy(module)
    for key, value in vars(made).items():
        if isinstance(value, dict):
            made.__dict__[key] = value.copy()
    return made


class Layers(nn.ModuleList):
    """Some layers of a list under the names that they had, with nothing between them.

    To those who go through it, it has all layers; those that are not here return their input.
    """

    def __init__(self, whole: nn.ModuleList, kept: set[int]) -> None:
        super().__init__()
        self.total = len(whole)
        for number in sorted(kept):
            self.add_module(str(number), whole[number])

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Any]:
        return (self._modules.get(str(number), _pass) for number in range(self.total))

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def _pass(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states


def _path(model: Any) -> list[str]:
    """Names of what tokens go through in the decoder."""
    keys = model.config.get_text_config()
    return list(getattr(keys, "base_model_pp_plan", None) or USUAL)
