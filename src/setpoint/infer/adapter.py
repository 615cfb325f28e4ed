"""The adapter of a run: put beneath its model to be filled, merged, or written in PEFT's format."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from setpoint.adapter.apply import adapt
from setpoint.adapter.config import AdapterConfig
from setpoint.adapter.low_rank import EmbeddingAdapter, LinearAdapter, LowRank, adapters_of
from setpoint.config import SetpointError
from setpoint.model.config import ModelConfig, Transformer
from setpoint.model.kinds import inputs_first, packed_experts, parameter_kinds
from setpoint.model.parameters import fused_parts_of
from setpoint.model.pretrained.compare import HEAD, pieces_of
from setpoint.model.pretrained.hub import TOKENIZER_FILES
from setpoint.model.pretrained.peft_files import CONFIG, WEIGHTS
from setpoint.model.pretrained.pieces import Part, Piece
from setpoint.model.pretrained.save import copy_files, publish
from setpoint.model.pretrained.tensors import EMBEDDING, rows_of
from setpoint.model.pretrained.write_config import family_for
from setpoint.model.transformer import Transformer as TransformerModule
from setpoint.shapes.parameter import Parameter

CONTIGUOUS = torch.contiguous_format
BEFORE = "base_model.model."
"""What stands before the names of modules in PEFT's files."""


def add_adapter(config: AdapterConfig, section: ModelConfig, model: nn.Module) -> None:
    """Put an adapter beneath a model, as training did, for its weights to be filled in.

    Arguments:
        section: the configuration of the model.

    Raises:
        SetpointError: it does not fit the model.
    """
    kinds, turned, packed = parameter_kinds(model), inputs_first(model), packed_experts(model)
    parameters = [
        Parameter(name, tuple(each.shape), kinds[name], 1.0, name in turned, packed.get(name, ""))
        for name, each in model.named_parameters()
    ]
    fused = fused_parts_of(section) if isinstance(section, Transformer) else {}
    adapt(config, model, parameters, fused)


def write_peft(
    model: nn.Module,
    config: AdapterConfig,
    path: Path,
    *,
    dtype: torch.dtype | None = None,
    family: str | None = None,
    base: str | None = None,
    tokenizer: Path | None = None,
) -> Path:
    """Write the adapter of a model as PEFT does: adapter_model.safetensors, adapter_config.json.

    Matrices that theirs fuses and ours keeps apart, as GPT-2's, become one with the ranks added up,
    and the other way round. The directory appears under its name when it is complete.

    Arguments:
        base: the name or path of the model that it belongs to.
        family: `model_type` of transformers whose names are used; None: the plainest that fits.
        tokenizer: a directory whose tokenizer files and chat template are copied, too.

    Raises:
        SetpointError: the model has no names in transformers, or PEFT's format has no place for
            some of the adapter; or it cannot be written.
    """
    if not isinstance(model, TransformerModule):
        raise SetpointError(
            f"export.adapter: the adapter of a {type(model).__name__} has no names that PEFT "
            f"knows\nValid: a model of type = transformer, or export.adapter = false"
        )
    tensors, document = _peft_form(model, config, family, base)

    def write(directory: Path) -> None:
        from safetensors.torch import save_file

        wanted = {name: _stored(each, dtype) for name, each in tensors.items()}
        save_file(wanted, directory / WEIGHTS, metadata={"format": "pt"})
        (directory / CONFIG).write_text(json.dumps(document, indent=2) + "\n")
        copy_files(TOKENIZER_FILES, tokenizer, directory)

    target = Path(os.path.expanduser(path))
    publish(target, write)
    return target


def _stored(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    # One A may be that of several matrices, which files hold apart.
    return tensor.detach().to("cpu", dtype or tensor.dtype).clone(memory_format=CONTIGUOUS)


def _peft_form(
    model: TransformerModule, config: AdapterConfig, family: str | None, base: str | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the configuration of PEFT's files."""
    adapters, found = adapters_of(model), family_for(model.config, family)
    by_weight = _by_weight(adapters)
    pieces: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces_of(found, model.config, *rows_of(model)):
        pieces[piece.theirs].append(piece)
    trained = {
        name for name, each in model.named_parameters()
        if each.requires_grad and ".adapter." not in name
    }  # fmt: skip
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    is_turned = False
    for theirs, of in pieces.items():
        own = [(piece, by_weight[piece.ours]) for piece in of if piece.ours in by_weight]
        module = theirs.removesuffix(".weight")
        if own:
            if isinstance(own[0][1], EmbeddingAdapter):
                made = _embedding(own[0][1], own[0][0])
                names = ("lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
            else:
                is_turned |= any(piece.transposed for piece in of)
                made = _linear(module, of, own, by_weight)
                names = ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector.weight")
            a, b, magnitude, scale = made
            for name, each in zip(names, (a, b, magnitude), strict=True):
                if each is not None:
                    tensors[f"{BEFORE}{module}.{name}"] = each
            ranks[module], alphas[module] = b.shape[1], scale * b.shape[1]
    # PEFT keeps modules whole, trained or not what else is in them.
    whole = sorted({_module(n) for n, of in pieces.items() if any(p.ours in trained for p in of)})
    held, saved = dict(model.named_parameters()), [*whole]
    for theirs, of in pieces.items():
        if _module(theirs) not in whole:
            continue
        if len(of) > 1 or of[0].of_theirs is not None or _module(theirs) in ranks:
            raise _no_place(theirs, "which is trained whole in part")
        values, cut = held[of[0].ours], of[0].of_ours
        values = values if cut is None else values[: cut.length]
        tensors[f"{BEFORE}{theirs}"] = values.T if of[0].transposed else values
        if of[0].ours == EMBEDDING and model.config.tie_embeddings:
            # PEFT puts a copy in the place of each module that it saves, so both uses are named.
            tensors[f"{BEFORE}{HEAD}"] = values
            saved.append(_module(HEAD))
    rank = max(set(ranks.values()), key=[*ranks.values()].count)
    alpha = next(alphas[name] for name in ranks if ranks[name] == rank)
    return tensors, {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {name: each for name, each in alphas.items() if each != alpha},
        "lora_dropout": config.dropout,
        "target_modules": sorted(ranks),
        "modules_to_save": saved or None,
        "ensure_weight_tying": _module(HEAD) in saved and model.config.tie_embeddings,
        "use_dora": config.has_magnitude,
        "use_rslora": False,  # the scale is in alpha
        "fan_in_fan_out": is_turned,
        "bias": "none",
        "init_lora_weights": True,
    }


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _by_weight(adapters: Mapping[str, LowRank]) -> dict[str, LowRank]:
    found: dict[str, LowRank] = {}
    for name, adapter in adapters.items():
        if not isinstance(adapter, LinearAdapter | EmbeddingAdapter):
            raise _no_place(name.rpartition(".adapter")[0], "packed experts")
        found[f"{name.removesuffix('.adapter')}.weight"] = adapter
    return found


def _no_place(name: str, what: str) -> SetpointError:
    return SetpointError(
        f"export.adapter: PEFT's format has no place for {name}, {what}\n"
        f"Valid: export.adapter = false, which writes the model with the adapter merged"
    )


def _embedding(adapter: LowRank, piece: Piece) -> tuple[Tensor, Tensor, Tensor | None, float]:
    rows = None if piece.of_ours is None else piece.of_ours.length
    return adapter.a[:rows].T, adapter.b, adapter.magnitude, adapter.scale


def _linear(
    module: str, of: list[Piece], own: list[tuple[Piece, LowRank]], known: Mapping[str, LowRank]
) -> tuple[Tensor, Tensor, Tensor | None, float]:
    """A (ranks, inputs), B (outputs, ranks), magnitude and scale of a matrix of theirs."""
    if len({adapter.scale for _, adapter in own}) > 1:
        raise _no_place(module, "whose parts have different scales")
    parts: list[tuple[Tensor, Tensor, int]] = []
    magnitudes: list[Tensor] = []
    outputs = 0
    for piece in of:
        start = 0 if piece.of_theirs is None else piece.of_theirs.start
        adapter = known.get(piece.ours)
        if adapter is None:
            outputs = max(outputs, start + (piece.of_theirs or Part(0, 0, 0)).length)  # pyright: ignore[reportOperatorIssue]
            continue
        a, b, length = _rows(adapter, piece.of_ours)
        outputs = max(outputs, start + length)
        parts.append((a, b, start))
        if adapter.magnitude is not None:
            cut = piece.of_ours
            rows = slice(None) if cut is None else slice(cut.start, cut.start + length)
            magnitudes.append(adapter.magnitude[rows])
    if magnitudes and len(magnitudes) < len(of):
        raise _no_place(module, "of whose rows some have no magnitude")
    if len(parts) == 1 and parts[0][1].shape[0] == outputs:
        a, b, _ = parts[0]
    else:
        a = torch.cat([a for a, _, _ in parts])
        b = a.new_zeros(outputs, a.shape[0])
        at = 0
        for part_a, part_b, start in parts:
            b[start : start + part_b.shape[0], at : at + part_a.shape[0]] = part_b
            at += part_a.shape[0]
    return a, b, torch.cat(magnitudes) if magnitudes else None, own[0][1].scale


def _rows(adapter: LowRank, cut: Part | None) -> tuple[Tensor, Tensor, int]:
    """The A and B of some rows of a matrix of ours."""
    assert isinstance(adapter, LinearAdapter)
    if cut is None and not adapter.pieces:
        return adapter.a, adapter.b, adapter.b.shape[0]
    start = 0 if cut is None else cut.start
    length = adapter.b.shape[0] if cut is None or cut.length is None else cut.length
    rows = adapter.b[start : start + length]
    if not adapter.pieces:
        return adapter.a, rows, length
    at, rank = 0, adapter.rank
    for index, size in enumerate(adapter.pieces):
        if at == start and size == length:
            return adapter.a[index * rank : (index + 1) * rank], rows, length
        at += size
    raise SetpointError("an adapter of fused projections is divided otherwise than these are")
