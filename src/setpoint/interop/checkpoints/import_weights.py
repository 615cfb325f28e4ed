"""`setpoint checkpoint import`: convert another system's checkpoint to Hugging Face or Setpoint.

Weights fill a Setpoint transformer; each optimizer state fills another one, since it has the shapes
and layout of the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from setpoint.checkpoint.manifest import MANIFEST, STATE, TENSORS, Manifest, encode_state
from setpoint.checkpoint.repartition import require_free
from setpoint.config import RunError, SetpointError, record_files, resolve
from setpoint.files.atomic import Written, publishing, write_file
from setpoint.files.tensor_file import encode_tensors
from setpoint.interop.checkpoints.layout import Contents, ForeignSystem
from setpoint.interop.checkpoints.systems import system_of
from setpoint.model.build import skeleton
from setpoint.model.config import LayerNormConfig, TransformerConfig
from setpoint.model.pretrained.config_json import (
    config_from_keys,
    config_of,
    differences,
    family_for,
    read_config,
)
from setpoint.model.pretrained.convert import Family
from setpoint.model.pretrained.fill import Weights
from setpoint.model.pretrained.locate import CONFIG, TOKENIZER_FILES, locate, read_keys
from setpoint.model.pretrained.save_pretrained import SHARD, save_pretrained
from setpoint.model.pretrained.weight_names import ROWS, hf_shapes
from setpoint.optim.config import AdamWConfig
from setpoint.train.build.assets import assets_of
from setpoint.train.config import Job
from setpoint.train.position import Position
from setpoint.train.run_state import WEIGHTS_ONLY


@dataclass(frozen=True, slots=True)
class Foreign:
    """A checkpoint of another system, with its model.

    Arguments:
        config: configuration of the model; None if unknown.
        family: the transformers family of the model.
    """

    system: ForeignSystem
    contents: Contents
    config: TransformerConfig | None
    family: Family | None

    def filled(
        self, config: TransformerConfig, family: str, vocab_size: int, tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        """A Setpoint model with tensors of the checkpoint as its parameters.

        Raises:
            SetpointError: the system's checkpoints cannot contain models of this family.
            RunError: the tensors do not match the model; the error states both shapes of each
                mismatch.
        """
        contents, system = self.contents, self.system
        if family not in system.families:
            raise SetpointError(
                f"{system.title} checkpoints of the model family {family} are not supported.\n"
                f"Valid: {', '.join(system.families)}"
            )
        model = skeleton(config, vocab_size)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        tokens: int = model.vocab_size  # pyright: ignore[reportAssignmentType]
        pieces = system.pieces(config, family, tokens)
        named = system.arranged(tensors, config)
        embedding = next(piece.hf_name for piece in pieces if piece.name == ROWS[0])
        ignored, output = [*system.surplus], f"{system.names['output']}.weight"
        if config.tie_embeddings and output in named:
            ignored.append(re.escape(output))
            if embedding in named and not torch.equal(named[output], named[embedding]):
                raise RunError(
                    f"{contents.path} contains an {output} that differs from {embedding}, but the "
                    f"model has one matrix for both (tie_embeddings). Nothing was loaded."
                )
        for name in (embedding, output):
            if name in named and (padding := named[name].shape[0] - tokens) > 0:
                named[name] = named[name][:tokens]
                contents.note(f"{padding} rows of {name} beyond the vocabulary are dropped")
        if not contents.has_biases:
            for name, shape in hf_shapes(pieces, shapes).items():
                if name.endswith(".bias"):
                    named.setdefault(name, torch.zeros(shape))
        weights = Weights(contents.path, pieces, named, shapes, ignored)
        weights.fill(model, device="cpu", dtype=None)
        return model


def open_foreign(source: str, model: str | None, *, optimizer: bool = False) -> Foreign:
    """Read a checkpoint of another system.

    Arguments:
        source: `[SYSTEM:]PATH`.
        model: argument of `locate` for a model whose configuration is used; None: as in the files
            or in a config.json next to them.
        optimizer: whether to read the optimizer state, too.

    Raises:
        SetpointError: the checkpoint is missing, contains objects other than tensors, or has an
            unsupported model.
        RunError: the checkpoint is damaged.
    """
    system, path = system_of(source)
    if model is not None:  # before gigabytes are read
        place = locate(model, weights=False)
        config = config_of(place)
        family = read_config(place.directory)[1] if not place.is_checkpoint else None
        contents = _read(system, path, optimizer)
        if contents.keys is not None:
            _require_heads(contents, config, model)
        return Foreign(system, contents, config, family or family_for(config))
    contents = _read(system, path, optimizer)
    folder = path if path.is_dir() else path.parent
    keys, origin = contents.keys, contents.path
    if keys is None and (folder / CONFIG).is_file():
        keys, origin = read_keys(folder), folder / CONFIG
    if keys is None:
        return Foreign(system, contents, None, None)
    return Foreign(system, contents, *config_from_keys(keys, origin))


def _require_heads(contents: Contents, config: TransformerConfig, model: str) -> None:
    """Refuse a model with heads that differ from the checkpoint's, which shapes do not reveal."""
    described, _ = config_from_keys(contents.keys or {}, contents.path)
    for field in ("heads", "kv_heads"):
        given, stored = getattr(config, field), getattr(described, field)
        if given != stored:
            raise SetpointError(
                f"{contents.path} is for another model than {model}: model.{field} = {given}, but "
                f"{stored} in the checkpoint\nValid: no --model, as the checkpoint records its "
                f"model"
            )


def _read(system: ForeignSystem, path: Path, optimizer: bool) -> Contents:
    try:
        return system.read(path, optimizer)
    except SetpointError:
        raise
    except Exception as error:  # values of unexpected types raise any error
        raise RunError(
            f"{path} is damaged, or from an unknown version of {system.title}: "
            f"{type(error).__name__}: {error}. Nothing was loaded."
        ) from error


def import_weights(foreign: Foreign, target: Path, dtype: str | None = None) -> None:
    """Write the weights as a directory in Hugging Face format, atomically.

    Tokenizer files next to the weights are copied.

    Arguments:
        dtype: dtype of the weights; None: unchanged.

    Raises:
        SetpointError: the model is unknown, or the target exists.
        RunError: see `Foreign.filled`.
    """
    contents, config, family = foreign.contents, foreign.config, foreign.family
    if config is None or family is None:
        reason = contents.unconverted or f"{contents.path} does not record its model"
        raise SetpointError(
            f"{reason}.\nValid: --model MODEL, a directory with the config.json of the model or "
            f"its id on the hub; or --job SOURCE, a job with that model"
        )
    require_free(target)
    assert config.vocab_size is not None, "every config.json has it"
    model = foreign.filled(config, family.model_type, config.vocab_size, contents.tensors)
    vars(model)["config"] = config
    if not contents.has_biases:
        contents.note("zero biases are added, which GPT-2 in transformers always has")
    folder = contents.path if contents.path.is_dir() else contents.path.parent
    has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    save_pretrained(
        model,
        target,
        dtype=dtype,
        max_shard_size=SHARD,
        family=family.model_type,
        tokenizer=folder if has_tokenizer else None,
    )


def import_checkpoint(foreign: Foreign, job: Job, target: Path) -> int:
    """Write weights, optimizer state and step as a checkpoint of a job, atomically.

    `checkpoint.load` can start a run from it, at the beginning of the data.

    Returns:
        the step.

    Raises:
        SetpointError: the job has another model or optimizer.
        RunError: see `Foreign.filled`.
    """
    require_free(target)
    contents, config = foreign.contents, job.model
    if not isinstance(config, TransformerConfig):
        tag = type(config).__setpoint__.tag
        raise SetpointError(f"model.type = {tag} of the job must be transformer")
    described = foreign.config
    if described is not None:
        if not contents.has_biases:
            absent = dict.fromkeys(("ffn_bias", "qkv_bias", "attention_output_bias"), False)
            described = resolve(described.evolve(norm=LayerNormConfig(bias=False), **absent))
        if conflicts := differences(config, described):
            lines = "".join(
                f"\n  model.{d.field} = {d.value}, but {d.stored} in the checkpoint"
                for d in conflicts
            )
            raise SetpointError(f"{contents.path} is for another model than the job's:{lines}")
    family = (foreign.family or family_for(config)).model_type
    tokenizer = job.tokenizer.build()
    vocab_size = tokenizer.vocab_size
    model = foreign.filled(config, family, vocab_size, contents.tensors)
    weights = model.state_dict()
    tensors: dict[str, Mapping[str, Tensor]] = {"model": weights}
    step = contents.step if contents.step is not None else max(contents.updates.values(), default=0)
    # The steps are assumed to have had the job's batch.
    tokens = step * job.batch.global_size * job.batch.sequence_length
    state: dict[str, Any] = {"position": asdict(Position(step=step, tokens=tokens))}
    if contents.states:
        if not isinstance(job.optimizer, AdamWConfig):
            raise SetpointError(
                f"the state in {contents.path} is that of AdamW, but optimizer.type = "
                f"{type(job.optimizer).__setpoint__.tag}.\nValid: adamw"
            )
        updates = {*contents.updates.values()} or {step}
        if len(updates) > 1:
            raise SetpointError(
                f"{contents.path}: parameters have different step counts, {sorted(updates)}"
            )
        moments = {
            key: dict(foreign.filled(config, family, vocab_size, named).named_parameters())
            for key, named in contents.states.items()
        }
        names = [name for name, _ in model.named_parameters()]
        tensors["optimizer"] = {
            f"{name}/{key}": by_name[name].detach()
            for key, by_name in moments.items()
            for name in names
        } | {f"{name}/step": torch.tensor(float(*updates)) for name in names}
        state["optimizer"] = {
            "type": "AdamW",
            "groups": [{"name": None, "parameters": names, "counts": {}}],
            "parameters": {
                name: {key: {"$tensor": f"{name}/{key}"} for key in ("step", *moments)}
                for name in names
            },
        }
    else:
        state[WEIGHTS_ONLY] = True
    texts = {**record_files(job), **assets_of(config, tokenizer, None)}
    try:
        with publishing(target) as draft:
            files: dict[str, Written] = {}
            for stem, named in tensors.items():
                files[stem + TENSORS] = write_file(draft / (stem + TENSORS), encode_tensors(named))
            files[STATE] = write_file(draft / STATE, [encode_state(state)])
            for name, text in texts.items():
                content = text.encode() if isinstance(text, str) else text
                files[name] = write_file(draft / name, [content])
            manifest = Manifest(step, None, files, state["position"])
            write_file(draft / MANIFEST, [manifest.render()])
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror}") from error
    return step
