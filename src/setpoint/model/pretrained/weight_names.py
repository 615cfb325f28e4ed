"""Correspondence between tensors in Hugging Face files and those of the transformer.

A piece is a block of a model tensor that equals a block of a tensor in the files, possibly
transposed. A model's list of pieces serves both directions: it determines which tensors the files
must contain, how to fill a parameter, and how to write a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from setpoint.config import RunError, SetpointError
from setpoint.files.tensor_header import CODES, FLOATS, Shape, TensorInfo
from setpoint.model.parameters import embedding_rows, fused_parts_of, parameters_of
from setpoint.model.pretrained.tensor_files import dense_tensors, list_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from setpoint.model.config import TransformerConfig


class Part(NamedTuple):
    """Range in one dimension of a tensor.

    Arguments:
        length: number of indices; None: a single index, without the dimension.
        step: stride.
    """

    dim: int
    start: int
    length: int | None = None
    step: int = 1

    @property
    def end(self) -> int:
        """End of the range."""
        return self.start + ((self.length or 1) - 1) * self.step + 1


class Piece(NamedTuple):
    """A block of a model tensor, and the equal block of a tensor in Hugging Face files."""

    name: str
    hf_name: str
    block: Part | None = None
    hf_block: Part | None = None
    transposed: bool = False

    @property
    def is_all(self) -> bool:
        """True if both blocks are whole tensors of the same layout."""
        return self[2:] == (None, None, False)


def block_shape(shape: Shape, part: Part | None) -> Shape:
    """The shape of a block."""
    if part is None:
        return shape
    size = () if part.length is None else (part.length,)
    return (*shape[: part.dim], *size, *shape[part.dim + 1 :])


def block(tensor: Tensor, part: Part | None) -> Tensor:
    """A block of a tensor, as a view."""
    if part is None:
        return tensor
    index = part.start if part.length is None else slice(part.start, part.end, part.step)
    return tensor[(*[slice(None)] * part.dim, index)]


def hf_shapes(pieces: Iterable[Piece], shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Shapes that the tensors in the files must have."""
    file_shapes: dict[str, Shape] = {}
    for piece in pieces:
        block = block_shape(shapes[piece.name], piece.block)
        block = block[::-1] if piece.transposed else block
        part = piece.hf_block
        if part is not None:
            # A tensor made of several pieces extends to the end of the last.
            end = max(part.end, file_shapes.get(piece.hf_name, (0,) * 9)[part.dim])
            block = (*block[: part.dim], end, *block[part.dim + 1 :])
        file_shapes[piece.hf_name] = block
    return file_shapes


def renamed(pieces: Iterable[Piece], rename: Callable[[str], str]) -> list[Piece]:
    """The same pieces, with the tensors in the files renamed."""
    return [piece._replace(hf_name=rename(piece.hf_name)) for piece in pieces]


def tensor_shapes(config: TransformerConfig, tokens: int) -> dict[str, Shape]:
    """Shapes of the tensors of a transformer: parameters and router biases."""
    shapes = {p.name: tuple(p.shape) for p in parameters_of(config, tokens)}
    moe = config.moe
    if moe is not None and getattr(moe.router, "bias_rate", None) is not None:
        for layer in range(config.layers):
            if moe.has_experts(layer):
                shapes[f"layers.{layer}.feed_forward.router.bias"] = (moe.experts,)
    return shapes


class HfModule(NamedTuple):
    """A module in Hugging Face files.

    Arguments:
        name: `{}` stands for the number of an expert.
        fused: modules of the model that are concatenated along the outputs; (): a single module.
        transposed: whether the matrix is (inputs, outputs).
        packed: whether it contains all experts.
        interleaved: whether the outputs of fused packed modules alternate.
    """

    name: str
    fused: tuple[str, ...] = ()
    transposed: bool = False
    packed: bool = False
    interleaved: bool = False


Names = Mapping[str, str | HfModule]
"""Hugging Face modules by the names of modules of the model; those of a layer are relative to
it."""


def fused(
    name: str,
    *modules: str,
    transposed: bool = False,
    packed: bool = False,
    interleaved: bool = False,
) -> dict[str, str | HfModule]:
    """Entries of `Names` for modules that share one matrix in the files."""
    return dict.fromkeys(modules, HfModule(name, modules, transposed, packed, interleaved))


QKV: Final = ("attention.query", "attention.key", "attention.value")
DECODER: Names = {
    "embedding": "embed_tokens",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "feed_forward.router": "mlp.gate",
    "feed_forward.experts.gate": "mlp.experts.{}.gate_proj",
    "feed_forward.experts.up": "mlp.experts.{}.up_proj",
    "feed_forward.experts.down": "mlp.experts.{}.down_proj",
    "norm": "norm",
    "output": "lm_head",
}
"""Module names of Llama's decoder, and of Qwen's experts."""

_LAYER: Final = re.compile(r"(layers\.\d+)\.(.*)")
_EXPERT: Final = re.compile(r"(.*\.experts)\.(\d+)(\..*)")


class _ParameterBlock(NamedTuple):
    """A block of a parameter that is one tensor in the files, or part of one.

    Arguments:
        name: of the parameter.
        layer: `layers.3`, or empty.
        rows: number of outputs; for biases and norms, of elements.
    """

    name: str
    layer: str
    module: str
    kind: str
    rows: int
    part: Part | None = None
    expert: int = 0
    inputs_first: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """Tensor names of a family.

    Arguments:
        names: Hugging Face modules by the names of modules of the model.
        layer: name of a layer, with `{}` for its number.
        surplus: patterns of tensor names, without the prefix, that files may contain but that are
            not read; `{beyond}` stands for layer numbers beyond the last.
        interleaved: rotated pairs are adjacent rows of the projections, not rows of two halves of a
        head.
    """

    names: Names = field(default_factory=lambda: DECODER)
    layer: str = "model.layers.{}"
    surplus: tuple[str, ...] = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
    interleaved: bool = False

    @property
    def base(self) -> str:
        """Prefix of all tensor names except the output matrix's."""
        return f"{self.layer.partition('.')[0]}."

    def surplus_of(self, config: TransformerConfig) -> list[str]:
        """Patterns of tensor names to skip, with and without the prefix."""
        beyond = "|".join(str(config.layers + index) for index in range(8))
        patterns = [pattern.replace("{beyond}", beyond) for pattern in self.surplus]
        return [f"({re.escape(self.base)})?{pattern}" for pattern in patterns]

    def pieces(self, config: TransformerConfig) -> list[Piece]:
        """List the pieces of a model, in the order of its layers and modules."""
        blocks = list(_blocks(config, self.names))
        rows = {(b.layer, b.module, b.kind): b.rows for b in blocks}
        order = {module: index for index, module in enumerate(self.names)}
        rotated = _rotated(config) if self.interleaved else {}
        pieces: list[tuple[tuple[int, int, int, bool], Piece]] = []
        for b in blocks:
            entry = self.names[b.module]
            hf = HfModule(entry) if isinstance(entry, str) else entry
            number = int(b.layer.rpartition(".")[2]) if b.layer else -1
            before = self.layer.format(number) if b.layer else self.base[:-1]
            name = hf.name.format(b.expert)
            if b.module != "output":
                name = f"{before}.{name}"
            name = f"{name}.{b.kind}" if b.kind else name
            hf_block = None
            transposed = b.kind == "weight" and hf.transposed != b.inputs_first
            if hf.packed:
                count, dim = len(hf.fused), 1 if b.module.endswith("_bias") else 2
                transposed, index = False, hf.fused.index(b.module)
                if hf.interleaved:
                    hf_block = Part(dim, index, b.rows, count)
                elif count > 1:
                    hf_block = Part(dim, index * b.rows, b.rows)
            elif hf.fused:
                index = hf.fused.index(b.module)
                start = sum(rows[b.layer, module, b.kind] for module in hf.fused[:index])
                dim = 1 if hf.transposed and b.kind == "weight" else 0
                hf_block = Part(dim, start, b.rows)
            piece = Piece(b.name, name, b.part, hf_block, transposed)
            place = number if b.layer or "embedding" in b.module else config.layers
            key = (place, order[b.module], b.expert, b.kind == "bias")
            if b.module in rotated:
                pieces += [(key, half) for half in _paired(piece, b.rows, *rotated[b.module])]
            else:
                pieces.append((key, piece))
        return [piece for _, piece in sorted(pieces, key=lambda pair: pair[0])]


def _blocks(config: TransformerConfig, names: Names) -> Iterator[_ParameterBlock]:
    merged = fused_parts_of(config)
    for name, shape in tensor_shapes(config, config.vocab_size or 1).items():
        match = _LAYER.fullmatch(name)
        layer, path = match.groups() if match else ("", name)
        if match := _EXPERT.fullmatch(path):
            module, _, kind = f"{match[1]}{match[3]}".rpartition(".")
            hf = names[module]
            if isinstance(hf, HfModule) and hf.packed:
                raise SetpointError(
                    "model.moe.packed = false: the files store all experts of a layer in one tensor"
                    "\nValid: true"
                )
            yield _ParameterBlock(name, layer, module, kind, shape[0], expert=int(match[2]))
        elif isinstance(hf := names.get(path), HfModule) and hf.packed:
            yield _ParameterBlock(name, layer, path, "", shape[-1])
        elif ".experts." in path:
            # Packed matrices are (experts, inputs, outputs).
            for expert in range(shape[0]):
                part = Part(0, expert)
                yield _ParameterBlock(name, layer, path, "weight", shape[2], part, expert, True)
        elif sizes := merged.get(name.rpartition(".")[0]):
            for index, module in enumerate(QKV):
                part = Part(0, sum(sizes[:index]), sizes[index])
                kind = path.rpartition(".")[2]
                yield _ParameterBlock(name, layer, module, kind, sizes[index], part)
        elif path in names:
            yield _ParameterBlock(name, layer, path, "", shape[0])
        else:
            module, _, kind = path.rpartition(".")
            yield _ParameterBlock(name, layer, module, kind, shape[0])


def _rotated(config: TransformerConfig) -> dict[str, tuple[int, int, int]]:
    """Modules with rotated outputs: head size, and the first and last rotated row of a head."""
    if config.mla is None:
        size = config.head_dim
        return dict.fromkeys(QKV[:2], (size, 0, config.rope_dim or size))
    nope, rope = config.mla.nope_head_dim, config.mla.rope_head_dim
    heads = (nope + rope, nope, nope + rope)
    rank = config.mla.kv_rank
    shared = {"attention.key_value_down": (rank + rope, rank, rank + rope)}
    return {**dict.fromkeys(("attention.query", "attention.query_up"), heads), **shared}


def _paired(piece: Piece, rows: int, size: int, first: int, last: int) -> Iterator[Piece]:
    """Split a piece so that adjacent rotated rows in the file become the two halves of a head."""
    first_row = 0 if piece.block is None else piece.block.start
    first_hf_row = 0 if piece.hf_block is None else piece.hf_block.start
    half = (last - first) // 2
    cuts = (  # rows of a head: first here, first in the file, number, and distance in the file
        (0, 0, first, 1),
        (first, first, half, 2),
        (first + half, first + 1, half, 2),
        (last, last, size - last, 1),
    )
    for head in range(0, rows, size):
        for row, hf_row, length, step in cuts:
            if length:
                yield piece._replace(
                    block=Part(0, first_row + head + row, length),
                    hf_block=Part(0, first_hf_row + head + hf_row, length, step),
                )


HEAD: Final = "lm_head.weight"
"""Name of the output matrix in Hugging Face files."""
ROWS: Final = ("embedding.weight", "output.weight")
"""Matrices with one row per token."""
_SHOWN = 3


def files_of(
    directory: Path, family: TensorNames, config: TransformerConfig, tokens: int
) -> tuple[list[Piece], dict[str, TensorInfo], list[str]]:
    """Match the tensors in a directory with those of a transformer.

    Returns:
        the pieces of the model, the tensors of the directory, and patterns of tensor names that
        belong to no piece and are skipped.
    """
    infos = dense_tensors(directory)
    pieces = pieces_of(family, config, tokens)
    if not any(name.startswith(family.base) for name in infos):
        # Names as saved by the class without a head, and by the first GPT-2.
        pieces = renamed(pieces, lambda name: name.removeprefix(family.base))
    surplus = family.surplus_of(config)
    if config.tie_embeddings:
        surplus.append(re.escape(HEAD))
    return pieces, infos, surplus


def pieces_of(family: TensorNames, config: TransformerConfig, tokens: int) -> list[Piece]:
    """Pieces of a model in a family."""
    if embedding_rows(config, tokens) == tokens:
        return family.pieces(config)
    kept = Part(0, 0, tokens)
    return [
        piece._replace(block=kept) if piece.name in ROWS else piece
        for piece in family.pieces(config)
    ]


def require_files(directory: Path, family: TensorNames, config: TransformerConfig) -> None:
    """Require that file headers match the model described by their config.json."""
    assert config.vocab_size is not None, "every config.json has it"
    require_depth(directory, config)
    shapes = tensor_shapes(config, config.vocab_size)
    pieces, infos, surplus = files_of(directory, family, config, config.vocab_size)
    require_tensors(directory, hf_shapes(pieces, shapes), infos, surplus)


def require_depth(directory: Path, config: TransformerConfig) -> None:
    """Require at least as many tensors as layers, before a model is built.

    Raises:
        RunError: there are fewer tensors.
    """
    count = len(list_tensors(directory))
    if config.layers > count:
        raise RunError(
            f"{directory}: config.json has {config.layers} layers, but the files contain only "
            f"{count} tensors. Nothing was loaded."
        )


def require_tensors(
    where: object,
    expected: Mapping[str, Shape],
    infos: Mapping[str, TensorInfo],
    surplus: Iterable[str] = (),
    coded: Collection[str] = (),
) -> None:
    """Require that files contain exactly the expected tensors, in shape and dtype.

    Arguments:
        coded: names of tensors that may have integer dtypes: parts of quantized weights.

    Raises:
        RunError: the tensors differ; each kind of mismatch is listed with the first few names and a
            count.
    """
    patterns = [re.compile(pattern) for pattern in surplus]
    missing = [f"{name} {_text(shape)}" for name, shape in expected.items() if name not in infos]
    beyond = [
        f"{name} {_text(info.shape)}"
        for name, info in infos.items()
        if name not in expected and not any(pattern.fullmatch(name) for pattern in patterns)
    ]
    common = [name for name in expected if name in infos]
    shapes = [
        f"{name} {_text(infos[name].shape)}, the model's is {_text(expected[name])}"
        for name in common
        if infos[name].shape != expected[name]
    ]
    kinds = [
        f"{name} {infos[name].dtype}"
        for name in common
        if infos[name].dtype not in (*FLOATS, *(CODES if name in coded else ()))
    ]
    mismatches = [
        mismatch(missing, "missing"),
        mismatch(beyond, "not in the model"),
        mismatch(shapes, "of another shape"),
        mismatch(kinds, f"of an unsupported dtype (supported: {', '.join(FLOATS)})"),
    ]
    if message := unlike(where, mismatches):
        raise RunError(message)


def unlike(where: object, mismatches: Iterable[str]) -> str:
    """Message about files that do not fit a model; empty if there are no mismatches."""
    lines = "\n  ".join(filter(None, mismatches))
    return lines and f"{where} does not fit the model, so nothing was loaded:\n  {lines}"


def mismatch(names: Sequence[str], fault: str) -> str:
    """The first few tensors with a fault, and their number; empty if there are none."""
    if not names:
        return ""
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    count = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return f"{count} {fault}: {'; '.join(names[:_SHOWN])}{more}"


def _text(shape: Shape) -> str:
    return f"({', '.join(str(size) for size in shape)})"
