"""Loading of a job's model with its weights and tokenizer."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from setpoint.adapter.config import AdapterConfig
from setpoint.adapter.low_rank import adapt, merge_all
from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import verify_directory
from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.config import RunError, SetpointError, load_record
from setpoint.data.tokenizer import ChatTokenizer, Tokenizer
from setpoint.data.vocabulary import ChatFacts
from setpoint.infer.adopt import find_weights
from setpoint.infer.config import Inference
from setpoint.infer.distributed import Division, ModelRunner
from setpoint.infer.prompts import Prompt
from setpoint.infer.rules import UNTRAINED
from setpoint.model.build import inputs_first, move_buffers, packed_experts, parameter_kinds
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.model.parameters import fused_parts_of
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.load import (
    is_built_in,
    load_model,
)
from setpoint.model.pretrained.locate import Place, tokenizer_of
from setpoint.model.pretrained.save_pretrained import ends_of
from setpoint.parallel.world import World, choose_device, reader_of
from setpoint.precision.mixed_precision import compute_in
from setpoint.shapes.parameter import Parameter
from setpoint.train.config import Job
from setpoint.units.dtype import DType


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for inference.

    Arguments:
        runner: runner that calls the model, in evaluation mode.
        compute: dtype of matrix products: `"fp32"`, `"bf16"` or `"fp16"`.
        context: maximum number of tokens.
        opening: tokens that precede a text to continue.
        stops: end-of-text tokens.
    """

    runner: ModelRunner
    tokenizer: Tokenizer
    device: torch.device
    compute: str
    stored: str
    context: int
    opening: tuple[int, ...]
    stops: tuple[int, ...]
    place: Place

    def computing(self) -> AbstractContextManager[object]:
        """Context that sets the dtype of matrix products."""
        return compute_in(self.compute, self.stored, self.device)

    @property
    def model(self) -> nn.Module:
        """The model, or this rank's part of it."""
        return self.runner.model

    @property
    def facts(self) -> ChatFacts | None:
        """The tokenizer's control tokens and chat format; None if it has none."""
        return getattr(self.tokenizer, "chat", None)

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """Tokens of a text prompt, preceded by the opening.

        Returns:
            the tokens; the separator if there would be none.
        """
        if prompt.ids is not None:
            tokens = [*self.opening, *prompt.ids]
        elif prompt.is_whole:
            encoder = cast(ChatTokenizer, self.tokenizer)
            tokens = encoder.encode_pieces(prompt.pieces).tokens.tolist()
        else:
            tokens = [*self.opening, *self.tokenizer.encode(prompt.text.encode()).tolist()]
        return tokens or [self.tokenizer.separator]


def load(job: Inference, world: World | None = None, place: Place | None = None) -> LoadedModel:
    """Build and load the model of a job; each rank reads its own part.

    Arguments:
        job: complete and resolved.
        world: this process's rank; None: a single process.
        place: location of the weights; None: find it.

    Raises:
        SetpointError: the weights are missing, or the tokenizer does not suit the model.
        RunError: the weights are damaged, or do not match the model; nothing is loaded.
    """
    world = world or World(choose_device(job.parallel))
    place = place or find_weights(job.weights.path, job.weights.checkpoint, weights=True)
    offload = job.parallel.uses_fsdp and job.parallel.sharding.offload
    division = Division(job, world)
    given: dict[str, Any] = {
        "device": torch.device("cpu") if offload else world.device,
        "dtype": DType(job.weights.dtype).torch(),
        "divide": division.divide,
        "broadcast": reader_of(job.parallel, world),
    }
    if place.is_checkpoint:
        tokenizer = tokenizer_of(place.directory, job.tokenizer)
        model = _load_checkpoint(job, place, tokenizer.vocab_size, given)
    else:
        tokenizer = job.tokenizer.build()
        if getattr(tokenizer, "added", ()):
            raise SetpointError(f"tokenizer.added: {UNTRAINED}\nValid: []")
        model = _load_hugging_face(job, place, tokenizer.vocab_size, given)
    if offload:
        move_buffers(model, world.device)
    return LoadedModel(
        runner=division.runner(model.eval()),
        tokenizer=tokenizer,
        device=world.device,
        compute=job.precision.compute,
        stored=job.weights.dtype,
        context=job.model.max_sequence_length,
        opening=_opening(place, tokenizer),
        stops=ends_of(place.directory, tokenizer),
        place=place,
    )


def _opening(place: Place, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that precede a text, as in the run's training data."""
    if not place.is_checkpoint:
        return tokenizer.opening
    sources = load_record(Job, str(place.directory)).values["data"]["sources"]
    if all(source["type"] == "conversations" for source in sources):
        return ()  # their template writes the opening
    return (tokenizer.separator,) if getattr(tokenizer, "separates", True) else ()


def add_adapter(config: AdapterConfig, section: ModelConfig, model: nn.Module) -> None:
    """Add an adapter to a model as in training, before its weights are loaded.

    Arguments:
        section: the model's configuration.

    Raises:
        SetpointError: the adapter does not suit the model.
    """
    kinds, turned, packed = parameter_kinds(model), inputs_first(model), packed_experts(model)
    parameters = [
        Parameter(
            name, tuple(parameter.shape), kinds[name], 1.0, name in turned, packed.get(name, "")
        )
        for name, parameter in model.named_parameters()
    ]
    fused = fused_parts_of(section) if isinstance(section, TransformerConfig) else {}
    adapt(config, model, parameters, fused)


def _load_checkpoint(
    job: Inference, place: Place, vocab_size: int, given: Mapping[str, Any]
) -> nn.Module:
    with naming_whole_ones(place.directory):
        adapter = job.adapter

        def prepare(model: nn.Module) -> None:
            if adapter is not None:
                add_adapter(adapter, job.model, model)

        def divide(model: nn.Module) -> None:
            if job.merges_adapter and not is_built_in(job.model):  # it has its values already
                merge_all(model)
            given["divide"](model)

        more = {**given, "prepare": prepare, "divide": divide}
        model = load_model(place, job.model, vocab_size, **more)
        if job.merges_adapter and is_built_in(job.model):
            merge_all(model)
        return model


@contextmanager
def naming_whole_ones(checkpoint: Path) -> Iterator[None]:
    """Add the intact checkpoints of the same run to the error about a damaged one.

    Raises:
        RunError: states the damage, and the intact checkpoints.
    """
    try:
        yield
    except DamagedCheckpoint as error:
        complete = [name for name in _whole_beside(checkpoint) if name != error.path.name]
        hint = (
            f"; {' or '.join(complete)} can be used instead"
            if complete
            else "; no other is complete"
        )
        raise RunError(f"{error}{hint}") from error


def _load_hugging_face(
    job: Inference, place: Place, tokens: int, given: Mapping[str, Any]
) -> nn.Module:
    if isinstance(job.model, HuggingFaceConfig):
        return load_model(place, job.model, tokens, **given)
    rows = read_config(place.directory)[0].vocab_size
    assert rows is not None
    if tokens > rows:
        raise SetpointError(
            f"tokenizer: it has {tokens} tokens, but the model in {place.directory} has {rows}; "
            f"it belongs to another model"
        )
    return load_model(place, job.model, rows, **given)


def _whole_beside(checkpoint: Path) -> list[str]:
    """Intact checkpoints of the same run."""
    names: list[str] = []
    for directory in list_checkpoints(checkpoint.parent).values():
        try:
            verify_directory(directory)
        except SetpointError:
            continue
        names.append(directory.name)
    return names
