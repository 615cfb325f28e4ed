"""Export of an inference job's weights as a Hugging Face model, or of its adapter alone."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.adapter.config import AdapterConfig
from setpoint.adapter.low_rank import (
    EmbeddingAdapter,
    ExpertAdapter,
    LinearAdapter,
    LowRank,
    adapters_of,
    merge_all,
)
from setpoint.config import SetpointError, load_record
from setpoint.data.tokenizer import ByteTokenizer, HuggingFaceTokenizer, Tokenizer
from setpoint.data.vocabulary import TOKENIZER, find_tokenizer, read_vocabulary
from setpoint.infer.config import Inference
from setpoint.infer.loaded_model import LoadedModel, load, naming_whole_ones
from setpoint.infer.tasks import ExportTask
from setpoint.model.build import packed_experts
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.pretrained.config_json import family_for
from setpoint.model.pretrained.fill import EMBEDDING
from setpoint.model.pretrained.load import is_built_in
from setpoint.model.pretrained.locate import (
    ADAPTER_CONFIG,
    CONFIG,
    TOKENIZER_FILES,
    Place,
    keys_of_origin,
    tokenizer_of,
)
from setpoint.model.pretrained.save_pretrained import (
    SHARD,
    copy_files,
    publish,
    save_pretrained,
    special_tokens,
)
from setpoint.model.pretrained.weight_names import HEAD, Part, Piece, pieces_of
from setpoint.model.transformer import Transformer
from setpoint.train.config import Job
from setpoint.units.dtype import DType

QWEN2_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?"
"""Distinctive part of the regular expression of Qwen2's pre-tokenizer."""


def require_empty(section: ExportTask) -> None:
    """Require an empty or new output directory, before anything is computed.

    Raises:
        SetpointError: the output is a file, or a directory that is not empty.
    """
    path = Path(os.path.expanduser(section.path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        kind = "is not empty" if path.is_dir() else "is a file"
        raise SetpointError(f"export.path: {path} {kind}; give a new or empty directory")


def export_job(job: Inference, place: Place, loaded: LoadedModel | None) -> tuple[Path, list[str]]:
    """Export a job's weights, from this process only.

    Arguments:
        place: location of the weights.
        loaded: the whole model, if it is in memory.

    Returns:
        the directory, and cautions about the export.
    """
    section = job.export
    assert section is not None
    directory = place.directory
    options: dict[str, Any] = {"dtype": section.dtype, "family": section.family}
    with naming_whole_ones(directory):
        if place.is_checkpoint and is_built_in(job.model) and job.adapter is None:
            # A few tensors at a time, as they were saved.
            model, tokenizer = directory, tokenizer_of(directory, job.tokenizer)
        else:
            loaded = loaded or load(job, place=place)
            model, tokenizer = loaded.model, loaded.tokenizer
        if section.adapter:
            assert job.adapter is not None and isinstance(model, nn.Module)
            if place.is_checkpoint:
                record = load_record(Job, str(place.directory)).values
                options["base"] = record["model"].get("pretrained")
            options["dtype"] = DType(section.dtype).torch()
            path = write_peft(model, job.adapter, section.path, tokenizer=directory, **options)
            quantize = job.adapter.quantize
            return path, [] if quantize is None else [
                f"{path} was trained on a base in {type(quantize).__setpoint__.tag}: on the dense "
                "base it computes other logits; an export with the adapter merged has the base of "
                "training"
            ]
        if job.adapter is not None:
            assert isinstance(model, nn.Module)
            merge_all(model)
        options["max_shard_size"] = section.max_shard_size
        path = export(model, tokenizer, section.path, directory=directory, **options)
    cautions = [tokenizer_caution(path)]
    if isinstance(tokenizer, ByteTokenizer) and not (path / TOKENIZER).is_file():
        cautions.append(
            f"{path} has no tokenizer files, as tokenizer.type = bytes has none; Setpoint reads "
            f"it with --tokenizer bytes; in transformers, token ids are bytes and 256 is the end"
        )
    return path, [caution for caution in cautions if caution]


def export(
    model: nn.Module | Path,
    tokenizer: Tokenizer,
    path: Path,
    *,
    directory: Path | None = None,
    dtype: str | None = None,
    max_shard_size: int = SHARD,
    family: str | None = None,
) -> Path:
    """Write weights in Hugging Face format, atomically.

    Arguments:
        model: a model in memory, or a checkpoint that is read a few tensors at a time.
        directory: directory of the weights, whose files name end-of-text tokens in addition to the
            tokenizer's separator; None: only those of the original model.
        dtype, max_shard_size, family: see `save_pretrained`.

    Raises:
        SetpointError: no model family can express the model, or the files cannot be written.
    """
    files, end, ids = None, None, None
    if directory is not None:
        ids = special_tokens(directory, tokenizer)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        files = find_tokenizer(tokenizer.path).parent
        # The end-of-text token in training, if tokenizer.separator named another. A chat template
        # that writes eos_token keeps its meaning.
        vocabulary, separator = read_vocabulary(tokenizer.path), tokenizer.separator
        named = vocabulary.named.get("eos_token")
        written = named and any(
            "eos_token" in template for template in vocabulary.templates.values()
        )
        if not written and vocabulary.ids.get(named or "") != separator:
            end = next(text for text, number in vocabulary.ids.items() if number == separator)
    return save_pretrained(
        model,
        path,
        dtype=dtype,
        max_shard_size=max_shard_size,
        family=family,
        tokenizer=files,
        token_ids=ids,
        eos_token=end,
    )


def tokenizer_caution(directory: Path) -> str:
    """Caution if transformers reads the exported tokenizer differently; else empty.

    As of version 5, its class for the model_type qwen2 replaces the pre-tokenizer of the files.
    """
    config, tokenizer = directory / CONFIG, directory / TOKENIZER
    if not (config.is_file() and tokenizer.is_file()):
        return ""
    if json.loads(config.read_bytes()).get("model_type") != "qwen2":
        return ""
    split = json.dumps(json.loads(tokenizer.read_bytes()).get("pre_tokenizer"))
    if json.dumps(QWEN2_SPLIT)[1:-1] in split:
        return ""
    return (
        "AutoTokenizer of transformers reads tokenizers of model_type qwen2 with Qwen2's "
        "pre-tokenizer, but this one has another, so that texts get different tokens; load it "
        f"with PreTrainedTokenizerFast.from_pretrained({str(directory)!r})"
    )


CONTIGUOUS = torch.contiguous_format
WEIGHTS = "adapter_model.safetensors"
"""PEFT's file of weights."""
BEFORE = "base_model.model."
"""Prefix of the names of modules in it."""
LINEAR_NAMES = ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector.weight")
EMBEDDING_NAMES = ("lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
"""Names of A, B and the magnitude in PEFT's files."""
RENAMED = (".gate", ".w1", ".w2", ".w3", ".gate_proj", ".up_proj", ".down_proj")
"""Suffixes of modules that PEFT takes for experts in models with packed ones; matrices with these
names are identified by their parameters."""
MERGED = "Valid: export.adapter = false, which writes the model with the adapter merged"
NAMELESS = "the adapter of a model of type = {} has no names that PEFT knows"


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
    """Write a model's adapter in PEFT format.

    Matrices fused in the family but separate in Setpoint, as in GPT-2, become one with the ranks
    added up, and vice versa. The directory appears only when it is complete.

    Arguments:
        base: name or path of the base model.
        family: `model_type` of transformers whose names are used; None: the one of the base model,
            or else the simplest that can express the model.
        tokenizer: a directory from which tokenizer files and chat template are also copied.

    Raises:
        SetpointError: the model has no family in transformers, PEFT's format cannot express the
            adapter, or the files cannot be written.
    """
    if isinstance(model, Transformer):
        form = _form_of_ours(model, family)
    elif isinstance(model, HuggingFaceModel):
        form = _form_of_transformers(model)
    else:
        raise SetpointError(f"export.adapter: {NAMELESS.format(type(model).__name__)}\n{MERGED}")
    document = _document(form, config, base)

    def write(directory: Path) -> None:
        from safetensors.torch import save_file

        tensors = {name: _stored(tensor, dtype) for name, tensor in form.tensors.items()}
        save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
        (directory / ADAPTER_CONFIG).write_text(json.dumps(document, indent=2) + "\n")
        copy_files(TOKENIZER_FILES, tokenizer, directory)

    target = Path(os.path.expanduser(path))
    publish(target, write)
    return target


def _stored(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    # Several matrices may share an A, which files store separately.
    return tensor.detach().to("cpu", dtype or tensor.dtype).clone(memory_format=CONTIGUOUS)


@dataclass(slots=True)
class _Form:
    """An adapter in PEFT format.

    Arguments:
        tensors: tensors by their names in the file.
        ranks, alphas: by module; for packed experts, by parameter.
        parameters: parameters of packed experts.
        saved: fully trained modules.
        is_turned: whether matrices are (inputs, outputs).
        ties: whether a tied embedding is saved for both of its uses.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    is_turned: bool = False
    ties: bool = False

    def add(
        self, module: str, converted: _Made, is_embedding: bool = False, as_parameter: bool = False
    ) -> None:
        """Add the adapter of a matrix.

        Arguments:
            as_parameter: whether to identify the matrix by its parameter instead of its module.
        """
        names = LINEAR_NAMES if not is_embedding else EMBEDDING_NAMES
        for name, tensor in zip(
            names, (converted.a, converted.b, converted.magnitude), strict=True
        ):
            if tensor is not None:
                self.tensors[f"{BEFORE}{module}.{name}"] = tensor
        name = f"{module}.weight" if as_parameter else module
        if as_parameter:
            self.parameters.append(name)
            if converted.magnitude is not None:
                raise _no_place(name, "a matrix with a magnitude (DoRA) besides packed experts")
        self.set_rank(name, converted.b.shape[1], converted.scale)

    def set_rank(self, name: str, rank: int, scale: float) -> None:
        """Record rank and scale of an adapter."""
        self.ranks[name], self.alphas[name] = rank, scale * rank


class _Made(NamedTuple):
    """A (ranks, inputs), B (outputs, ranks), magnitude and scale of a matrix in the file."""

    a: Tensor
    b: Tensor
    magnitude: Tensor | None
    scale: float


def _form_of_ours(model: Transformer, family: str | None) -> _Form:
    """Adapter of a Setpoint transformer, with the names of a family."""
    origin = keys_of_origin(getattr(model, "loaded_from", None)).get("model_type")
    family_config = family_for(model.config, family, origin)
    by_weight = _by_weight(adapters_of(model))
    pieces: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces_of(family_config, model.config, model.vocab_size):
        pieces[piece.hf_name].append(piece)
    form = _Form()
    for hf_name, weight_pieces in pieces.items():
        adapted = [
            (piece, by_weight[piece.name]) for piece in weight_pieces if piece.name in by_weight
        ]
        module = hf_name.removesuffix(".weight")
        if adapted and isinstance(adapted[0][1], EmbeddingAdapter):
            form.add(module, _embedding(adapted[0][1], adapted[0][0]), is_embedding=True)
        elif adapted:
            form.is_turned |= any(piece.transposed for piece in weight_pieces)
            form.add(module, _linear(module, weight_pieces, adapted, by_weight))
    # PEFT saves full modules, whether or not their other parameters are trained.
    trained = _trained_whole(model)
    trained_modules = sorted(
        {
            _module(n)
            for n, weight_pieces in pieces.items()
            if any(p.name in trained for p in weight_pieces)
        }
    )
    parameters = dict(model.named_parameters())
    form.saved += trained_modules
    for hf_name, weight_pieces in pieces.items():
        if _module(hf_name) not in trained_modules:
            continue
        if (
            len(weight_pieces) > 1
            or weight_pieces[0].hf_block is not None
            or _module(hf_name) in form.ranks
        ):
            raise _no_place(hf_name, "part of which is fully trained")
        values, cut = parameters[weight_pieces[0].name], weight_pieces[0].block
        values = values if cut is None else values[: cut.length]
        form.tensors[f"{BEFORE}{hf_name}"] = values.T if weight_pieces[0].transposed else values
        if weight_pieces[0].name == EMBEDDING and model.config.tie_embeddings:
            # PEFT replaces each module that it saves by a copy, so both uses are named.
            form.tensors[f"{BEFORE}{HEAD}"] = values
            form.saved.append(_module(HEAD))
            form.ties = True
    return form


def _form_of_transformers(model: HuggingFaceModel) -> _Form:
    """Adapter of a transformers model."""
    form, inner = _Form(), model.model
    renames = bool(packed_experts(inner))
    experts: dict[str, dict[str, ExpertAdapter]] = defaultdict(dict)
    for name, adapter in adapters_of(inner).items():
        if isinstance(adapter, ExpertAdapter):
            module, _, parameter = name.partition(".adapter.")
            experts[module][parameter] = adapter
            continue
        module = name.removesuffix(".adapter")
        if isinstance(adapter, LinearAdapter):
            form.is_turned |= adapter.inputs_first
            converted = _Made(adapter.a, adapter.b, adapter.magnitude, adapter.scale)
            form.add(module, converted, as_parameter=renames and module.endswith(RENAMED))
        else:
            assert isinstance(adapter, EmbeddingAdapter)
            converted = _Made(adapter.a.T, adapter.b, adapter.magnitude, adapter.scale)
            form.add(module, converted, is_embedding=True)
    for module, adapters in experts.items():
        _add_experts(form, inner.get_submodule(module), module, adapters)
    for module in sorted(map(_module, _trained_whole(inner))):
        target = inner.get_submodule(module)
        if adapters_of(target):
            raise _no_place(module, "which is adapted and fully trained")
        form.saved.append(module)
        for name, values in target.named_parameters():
            form.tensors[f"{BEFORE}{module}.{name}"] = values
        if model.output is not target and getattr(target, "weight", None) is model.output.weight:
            head = next(
                name for name, submodule in inner.named_modules() if submodule is model.output
            )
            form.tensors[f"{BEFORE}{head}.weight"] = model.output.weight
            form.saved.append(head)
            form.ties = True
    return form


def _add_experts(
    form: _Form, module: nn.Module, name: str, adapters: Mapping[str, ExpertAdapter]
) -> None:
    """Add adapters of packed experts, in the layout of PEFT's `target_parameters`.

    PEFT wraps a module once per parameter, the last one outermost. A is (E ranks, inputs), and B
    (outputs, ranks E); the inputs are the last of an expert's two dimensions, unless the module has
    `is_transposed`.
    """
    order = [parameter for parameter in module._parameters if parameter in adapters]
    for depth, parameter in enumerate(reversed(order)):
        adapter = adapters[parameter]
        if adapter.magnitude is not None:
            raise _no_place(f"{name}.{parameter}", "packed experts with magnitudes (DoRA)")
        if len(adapter.a) == 1:
            raise _no_place(f"{name}.{parameter}", "a single packed expert")
        left, right = adapter.a, adapter.b  # (E, dim 1, ranks), (E, ranks, dim 2)
        if adapter.outputs_first:
            left, right = right.mT, left.mT
        if getattr(module, "is_transposed", False):
            left, right = right.mT, left.mT
        inside = f"{BEFORE}{name}" + ".base_layer" * depth
        form.tensors[f"{inside}.lora_A.weight"] = right.flatten(0, 1)
        form.tensors[f"{inside}.lora_B.weight"] = left.permute(1, 2, 0).flatten(1)
        form.parameters.append(f"{name}.{parameter}")
        form.set_rank(f"{name}.{parameter}", adapter.rank, adapter.scale)


def _trained_whole(model: nn.Module) -> list[str]:
    """Trained parameters that are not part of the adapter."""
    named = model.named_parameters()
    return [
        name for name, parameter in named if parameter.requires_grad and ".adapter." not in name
    ]


def _document(form: _Form, config: AdapterConfig, base: str | None) -> dict[str, Any]:
    """Content of adapter_config.json."""
    ranks, alphas = form.ranks, form.alphas
    rank = max(set(ranks.values()), key=[*ranks.values()].count)
    alpha = next(alphas[name] for name in ranks if ranks[name] == rank)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
        # PEFT has no dropout for full parameters; only training uses it.
        "lora_dropout": 0.0 if form.parameters else config.dropout,
        "target_modules": sorted(ranks.keys() - {*form.parameters}),
        **({"target_parameters": sorted(form.parameters)} if form.parameters else {}),
        "modules_to_save": form.saved or None,
        "ensure_weight_tying": form.ties,
        "use_dora": config.has_magnitude,
        "use_rslora": False,  # the scale is in alpha
        "fan_in_fan_out": form.is_turned,
        "bias": "none",
        "init_lora_weights": True,
    }


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _by_weight(adapters: Mapping[str, LowRank]) -> dict[str, LowRank]:
    by_weight: dict[str, LowRank] = {}
    for name, adapter in adapters.items():
        if not isinstance(adapter, LinearAdapter | EmbeddingAdapter):
            raise _no_place(name.rpartition(".adapter")[0], "packed experts")
        by_weight[f"{name.removesuffix('.adapter')}.weight"] = adapter
    return by_weight


def _no_place(name: str, reason: str) -> SetpointError:
    return SetpointError(
        f"export.adapter: PEFT's format has no place for {name}, {reason}\n{MERGED}"
    )


def _embedding(adapter: LowRank, piece: Piece) -> _Made:
    rows = None if piece.block is None else piece.block.length
    return _Made(adapter.a[:rows].T, adapter.b, adapter.magnitude, adapter.scale)


def _linear(
    module: str,
    pieces: list[Piece],
    adapted: list[tuple[Piece, LowRank]],
    known: Mapping[str, LowRank],
) -> _Made:
    if len({adapter.scale for _, adapter in adapted}) > 1:
        raise _no_place(module, "whose parts have different scales")
    parts: dict[tuple[str, int], tuple[Tensor, list[tuple[slice, Tensor]]]] = {}
    magnitudes: list[tuple[slice, Tensor]] = []
    outputs = 0
    for piece in pieces:
        adapter, cut = known.get(piece.name), piece.hf_block
        if adapter is None:
            assert cut is not None and cut.length is not None, "else it has no adapted part"
            outputs = max(outputs, cut.start + cut.length)
            continue
        number, a, b = _rows(adapter, piece.block)
        start, step = (0, 1) if cut is None else (cut.start, cut.step)
        rows = slice(start, start + (len(b) - 1) * step + 1, step)
        outputs = max(outputs, rows.stop)
        parts.setdefault((piece.name, number), (a, []))[1].append((rows, b))
        if adapter.magnitude is not None:
            own_block = piece.block
            lengths = (
                adapter.magnitude if own_block is None else adapter.magnitude[own_block.start :]
            )
            magnitudes.append((rows, lengths[: len(b)]))
    if magnitudes and sum(len(lengths) for _, lengths in magnitudes) < outputs:
        raise _no_place(module, "of whose rows some have no magnitude")
    a = torch.cat([part for part, _ in parts.values()])
    b = a.new_zeros(outputs, a.shape[0])
    column = 0
    for part, blocks in parts.values():
        for rows, block in blocks:
            b[rows, column : column + len(part)] = block
        column += len(part)
    magnitude = a.new_empty(outputs) if magnitudes else None
    for rows, lengths in magnitudes:
        assert magnitude is not None
        magnitude[rows] = lengths
    return _Made(a, b, magnitude, adapted[0][1].scale)


def _rows(adapter: LowRank, cut: Part | None) -> tuple[int, Tensor, Tensor]:
    """Some rows of a matrix: the index of the adapter's piece, with A and B."""
    assert isinstance(adapter, LinearAdapter)
    start = 0 if cut is None else cut.start
    end = adapter.b.shape[0] if cut is None or cut.length is None else start + cut.length
    rows = adapter.b[start:end]
    if not adapter.pieces:
        return 0, adapter.a, rows
    position, rank = 0, adapter.rank
    for index, size in enumerate(adapter.pieces):
        if position <= start and end <= position + size:
            return index, adapter.a[index * rank : (index + 1) * rank], rows
        position += size
    raise SetpointError("an adapter of fused projections is split differently from the projections")
