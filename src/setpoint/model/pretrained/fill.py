"""Loading of parameters from files, one tensor at a time, with dequantization row by row.

Loading takes the memory of the model and of one tensor. `setpoint.model.pretrained.tensor_files`
determines which tensors are quantized, and how.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError
from setpoint.files import tensor_file
from setpoint.files.tensor_file import DTYPES, dtype_named, read_box
from setpoint.files.tensor_header import (
    FLOATS,
    DamagedFile,
    Encoding,
    Shape,
    TensorInfo,
)
from setpoint.model.build import materialize
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import ConstantInit, collect_rules, plain_name
from setpoint.model.pretrained.convert import Family
from setpoint.model.pretrained.weight_names import (
    HEAD,
    ROWS,
    Part,
    Piece,
    block,
    files_of,
    hf_shapes,
    require_tensors,
)
from setpoint.shapes.peers import BroadcastReader
from setpoint.shapes.placed import Named, Placeable, local_ranges, put, whole_of
from setpoint.shapes.stored import E2M1, Coded, QuantizedPart, Stored, stored_weights


class Growth(NamedTuple):
    """New rows of the embedding and the output matrix, for tokens missing from the files.

    Arguments:
        known: vocabulary size of the files; further rows are initialized to the mean of these.
        tokens: vocabulary size of the model.
        stored: rows in the files, with padding.
    """

    known: int
    tokens: int
    stored: int


class Weights:
    """Tensors of a model in files or in memory, checked against the model before any is read.

    Arguments:
        where: location of the tensors, for errors.
        tensors: tensors by their names in the files.
        surplus: patterns of names of tensors that are not read.
        coded: names of tensors that are parts of quantized weights, which keep their dtypes.
        growth: new rows of the embedding and output matrix; None: the vocabularies are equal.

    Raises:
        RunError: the tensors are not those of the model.
    """

    def __init__(
        self,
        where: object,
        pieces: Iterable[Piece],
        tensors: Named,
        shapes: Mapping[str, Shape],
        surplus: Iterable[str] = (),
        coded: Collection[str] = (),
        growth: Growth | None = None,
    ) -> None:
        self.tensors, self.shapes, self.coded = tensors, dict(shapes), frozenset(coded)
        self.growth = growth
        self.pieces: dict[str, list[Piece]] = {}
        if growth is not None:
            stored = Part(0, 0, growth.stored)
            pieces = [p._replace(block=stored) if p.name in ROWS else p for p in pieces]
        for piece in pieces:
            self.pieces.setdefault(piece.name, []).append(piece)
        all_pieces = (piece for group in self.pieces.values() for piece in group)
        infos = {name: info_of(tensor) for name, tensor in tensors.items()}
        require_tensors(where, hf_shapes(all_pieces, shapes), infos, surplus, coded)

    def fill(
        self,
        module: nn.Module,
        *,
        device: torch.device | str,
        dtype: torch.dtype | None,
        broadcast: BroadcastReader | None = None,
    ) -> None:
        """Load all parameters and buffers of a module.

        Tensors on the meta device are allocated; others keep device and dtype. Only the local rows
        of sharded tensors are read. Tensors that the module lacks, such as those of other pipeline
        stages, are not read. Buffers that are in no file get their initial values.

        Arguments:
            dtype: dtype of parameters on the meta device; None: as in the files.
            broadcast: see `TensorReader`.
        """
        # Buffers that are in no file have no values after allocation.
        empty = {name for name, buffer in module.named_buffers() if buffer.is_meta}
        if any(p.is_meta and hasattr(p, "to_local") for p in module.parameters()):
            assert dtype is not None, "a job knows in which dtype it keeps divided weights"
            materialize(module, device, dtype)  # allocated where the sharding engine expects it
        reader = TensorReader(broadcast)
        with torch.no_grad():
            for name, parameter in list(module.named_parameters()):
                if plain_name(name) not in self.pieces:
                    continue  # an adapter's: files hold the base
                kept = None if plain_name(name) in self.coded else dtype
                tensor = self._put(reader, name, parameter, device, kept)
                if tensor is not None:
                    _set_tensor(module, name, nn.Parameter(tensor, parameter.requires_grad))
            for name, stored in stored_weights(module):
                if plain_name(name) not in self.pieces:
                    continue  # its parts were read
                if any(part.is_meta for part in stored.parameters()):
                    materialize(stored, device, torch.float32)
                for rows in stored.pieces(every=broadcast is not None):
                    parts = self.parts_from_files(reader, plain_name(name), stored, rows)
                    if parts is None:
                        stored.put(self.read_rows(reader, plain_name(name), rows), rows[0])
                    else:
                        stored.take(parts, rows[0])
            for name, buffer in list(module.named_buffers()):
                if plain_name(name) in self.pieces:
                    tensor = self._put(reader, name, buffer, device, buffer.dtype)
                elif name in empty:
                    tensor = torch.empty_like(buffer, device=device)
                    rule = collect_rules(module)[plain_name(name)]
                    assert isinstance(rule, ConstantInit), "only what is the same in every run"
                    tensor.fill_(rule.value)
                else:
                    continue
                if tensor is not None:
                    _set_tensor(module, name, tensor)

    def _put(
        self,
        reader: TensorReader,
        name: str,
        target: Tensor,
        device: torch.device | str,
        dtype: torch.dtype | None,
    ) -> Tensor | None:
        """A new tensor in place of one on the meta device; None if one was filled in place."""
        name = plain_name(name)
        if target.is_meta:
            return self.read(reader, name, dtype or self._source(name).dtype, device=device)
        shard = local_ranges(target) if reader.broadcast is None and target.ndim else None
        if shard is None:
            put(target, self.read(reader, name, target.dtype))
        else:
            self._fill_box(reader, name, *shard)
        return None

    def parts_from_files(
        self, reader: TensorReader, name: str, stored: Stored, rows: tuple[int, int]
    ) -> dict[str, Tensor] | None:
        """Parts of a matrix, or of an expert's, that the files quantize in the same format."""
        pieces = self.pieces[name]
        for piece in pieces:
            info = info_of(self.tensors[piece.hf_name])
            is_full = len(pieces) == 1 and piece.is_all
            is_expert = piece[2:] == (Part(0, rows[0]), None, True) and rows[1] == rows[0] + 1
            if info.encoding is None or info.encoding.transposed or not (is_full or is_expert):
                continue
            return stored.parts_from(coded_of(info, reader))
        return None

    def read(
        self,
        reader: TensorReader,
        name: str,
        dtype: torch.dtype,
        ranges: Sequence[tuple[int, int]] | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Read a tensor, or the box of it with these ranges of its dimensions."""
        full = [(0, size) for size in self.shapes[name]]
        box = full if ranges is None else [*ranges]
        if box == full and self._is_stored(name):
            # The reader's own memory, to avoid a copy; no other piece is cut from it.
            return reader.read(self._source(name)).to(device=device, dtype=dtype)
        local = torch.empty([end - start for start, end in box], dtype=dtype, device=device)
        self._fill_box(reader, name, local, box)
        return local

    def read_rows(self, reader: TensorReader, name: str, rows: tuple[int, int]) -> Tensor:
        """Read some rows of a tensor, in fp32 on the CPU."""
        others = ((0, size) for size in self.shapes[name][1:])
        return self.read(reader, name, torch.float32, [rows, *others])

    def _source(self, name: str) -> Tensor | Placeable:
        return self.tensors[self.pieces[name][0].hf_name]

    def _is_stored(self, name: str) -> bool:
        """True if a tensor is stored in the same form as in the model."""
        pieces = self.pieces[name]
        return len(pieces) == 1 and pieces[0].is_all

    def _fill_box(
        self, reader: TensorReader, name: str, local: Tensor, box: Sequence[tuple[int, int]]
    ) -> None:
        """Read a box of a tensor into `local`."""
        source, pieces, shape = self._source(name), self.pieces[name], self.shapes[name]
        if self._is_stored(name) and isinstance(source, Placeable) and reader.broadcast is None:
            source.fill(local.detach(), [start for start, _ in box])
            return
        if len(pieces) > 1 or pieces[0].block is not None:
            local.zero_()  # elements outside of all pieces
        is_whole = [*box] == [(0, size) for size in shape]
        for piece in pieces:
            overlap = common(piece, shape, box)
            if overlap is not None:
                within, ranges = overlap
                source, part = self.tensors[piece.hf_name], piece.hf_block
                values = reader.box(source, ranges, is_whole)
                if part is not None and part.step > 1:
                    length = (values.shape[part.dim] - 1) // part.step + 1
                    values = block(values, Part(part.dim, 0, length, part.step))
                local[within].copy_(values.T if piece.transposed else values)
        if self.growth is not None and name in ROWS:
            (first, last), (known, tokens, _) = box[0], self.growth
            if first < tokens and last > known:
                rows = reader.read(self._source(name))[:known, slice(*box[1])]
                local[max(known - first, 0) : tokens - first] = mean_row(rows).to(local)

    def lazily(
        self, names: Mapping[str, Sequence[str]], parts: Mapping[str, QuantizedPart]
    ) -> dict[str, Placeable]:
        """Tensors that are read when they are placed, so that each rank reads only its part.

        Arguments:
            names: tensor names, each with the dtypes that its values are cast to in turn; unknown
                ones are omitted.
            parts: parts of the model's quantized weights, by name.
        """
        last: dict[tuple[str, int], dict[str, Tensor]] = {}
        tensors: dict[str, Placeable] = {}
        for name, dtypes in names.items():
            if name in self.pieces:
                tensors[name] = Frozen(self, name, tuple(dtypes))
            elif name in parts and parts[name].weight in self.pieces:
                part = parts[name]
                tensors[name] = Requantized(self, part.weight, tuple(dtypes), part, last)
        return tensors


def cast_in_turn(tensor: Tensor, dtypes: Sequence[str]) -> Tensor:
    """Cast a tensor to several dtypes, one after the other."""
    for name in dtypes:
        tensor = tensor.to(dtype_named(name))
    return tensor


@dataclass(frozen=True, slots=True, eq=False)
class Frozen(Placeable):
    """A tensor from other weights, read when it is placed; see `Placeable`."""

    weights: Weights
    name: str
    dtypes: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype after all casts."""
        return dtype_named(self.dtypes[-1])

    @property
    def shape(self) -> torch.Size:
        """Shape in the model."""
        return torch.Size(self.weights.shapes[self.name])

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        ranges = [(start, start + size) for start, size in zip(offset, shape, strict=True)]
        values = self.weights.read(TensorReader(), self.name, dtype_named(self.dtypes[0]), ranges)
        return cast_in_turn(values, self.dtypes[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Requantized(Frozen):
    """Part of a weight that is requantized on placement; `name` is that of the weight.

    Arguments:
        last: the parts of the last quantized weight, by name and piece; shared between instances.
    """

    part: QuantizedPart
    last: dict[tuple[str, int], dict[str, Tensor]]

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.part.shape)

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """See `Placeable.box`; of packed experts, only those in the box are quantized."""
        pieces = self.part.module.pieces(every=True)
        starts = list(offset)
        if len(pieces) > 1:
            pieces, starts[0] = pieces[offset[0] : offset[0] + shape[0]], 0
        values = torch.cat([self._parts(rows)[self.part.param] for rows in pieces])
        ranges = zip(starts, shape, strict=True)
        values = values[tuple(slice(start, start + size) for start, size in ranges)]
        return cast_in_turn(values, self.dtypes[1:])

    def _parts(self, rows: tuple[int, int]) -> dict[str, Tensor]:
        name, key = self.name, (self.name, rows[0])
        if any(weight != name for weight, _ in self.last):
            self.last.clear()
        if key not in self.last:
            weights, stored, reader = self.weights, self.part.module, TensorReader()
            parts = weights.parts_from_files(reader, name, stored, rows)
            self.last[key] = parts or stored.parts_of(weights.read_rows(reader, name, rows))
        return self.last[key]


def coded_of(info: TensorInfo, reader: TensorReader) -> Coded:
    """Parts of a quantized tensor as stored in files."""
    encoding = info.encoding
    assert encoding is not None
    parts = {kind: reader.part(part) for kind, part in encoding.parts}
    for kind, part in parts.items():
        if kind != "absmax" or not encoding.nested[0]:
            require_sound(encoding, kind, part)
    scales = parts.get("scales")
    if scales is not None and scales.dtype != torch.uint8 and (scales.float() == 0).any():
        reader.read(FileTensor(info))  # it refuses blocks that are not zero themselves
    if encoding.divides:
        parts["factor"] = parts["factor"].float().reciprocal()
    return Coded(encoding.form, parts, encoding.nested[1])


def mean_row(rows: Tensor) -> Tensor:
    """Mean of rows in fp64, which depends neither on threads nor on sharding."""
    sums = torch.stack([part.sum(0, dtype=torch.float64) for part in rows.split(1024)])
    return sums.sum(0) / len(rows)


def common(
    piece: Piece, shape: Shape, box: Sequence[tuple[int, int]]
) -> tuple[tuple[slice | int, ...], list[tuple[int, int]]] | None:
    """Intersection of a piece with a part of a tensor.

    Arguments:
        shape: shape of the whole tensor.
        box: ranges of its dimensions in the part.

    Returns:
        its index in the part, and the ranges of the dimensions in the file; None if the
        intersection is empty.
    """
    index: list[slice | int] = []
    ranges: list[tuple[int, int]] = []
    for dim, (size, (low, high)) in enumerate(zip(shape, box, strict=True)):
        start, end, single = 0, size, False
        if piece.block is not None and piece.block.dim == dim:
            start, single = piece.block.start, piece.block.length is None
            end = start + (piece.block.length or 1)
        first, last = max(low, start), min(high, end)
        if first >= last:
            return None
        index.append(first - low if single else slice(first - low, last - low))
        if not single:
            ranges.append((first - start, last - start))
    if piece.transposed:
        ranges.reverse()
    if piece.hf_block is not None:
        dim, start, _, step = piece.hf_block
        first, last = ranges[dim]
        ranges[dim] = (start + first * step, start + (last - 1) * step + 1)
    return tuple(index), ranges


def _set_tensor(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, tensor)


EMBEDDING = "embedding.weight"


def weights_of(
    directory: Path,
    family: Family,
    model: nn.Module,
    config: TransformerConfig,
    growth: Growth | None = None,
) -> Weights:
    """Weights from a directory, checked against a transformer."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tokens: int = model.vocab_size  # pyright: ignore[reportAssignmentType]
    pieces, infos, surplus = files_of(directory, family, config, tokens)
    tensors = {name: FileTensor(info) for name, info in infos.items()}
    if config.tie_embeddings and HEAD in tensors:
        _require_tied(directory, tensors, pieces[0].hf_name)
    return Weights(directory, pieces, tensors, shapes, surplus, growth=growth)


def _require_tied(directory: Path, tensors: Mapping[str, FileTensor], embedding: str) -> None:
    """Require that a stored output matrix equals the tied embedding; else one would be lost."""
    pair = [tensors[name] for name in (embedding, HEAD) if name in tensors]
    if len(pair) < 2 or {tensor.info.dtype for tensor in pair} - {*FLOATS}:
        return  # reported with all other problems
    if not torch.equal(*(tensor.whole() for tensor in pair)):
        raise RunError(
            f"{directory} has an {HEAD} that differs from {embedding}, although config.json "
            f"ties them (tie_word_embeddings). Set that to false there if the output matrix is "
            f"separate. Nothing was loaded."
        )


Rows = tuple[int, int] | None
"""First row and end; None: all rows."""


class FileTensor(Placeable):
    """A tensor in a safetensors file, dequantized when it is read.

    Reading raises `DamagedFile` if the file was truncated after its header was read,
    `SetpointError` if it cannot be read, and the errors of `dequantize`.
    """

    __slots__ = ("info",)

    def __init__(self, info: TensorInfo) -> None:
        self.info = info

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.info.shape)

    @property
    def dtype(self) -> torch.dtype:
        """See `Placeable.dtype`.

        Raises:
            SetpointError: torch has no such dtype.
        """
        return _dtype_of(self.info)

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        box = [slice(start, start + size) for start, size in zip(offset, shape, strict=True)]
        if self.info.encoding is None:
            return _read_stored(self.info, box)
        rows = (box[0].start, box[0].stop)
        values = dequantize(self.info.encoding, self.info.shape, rows, self.dtype)
        return values[(slice(None), *box[1:])]


class TensorReader:
    """Reads tensors from files or memory, one after another.

    The last tensor is cached, since several weights of a model may be parts of it.

    Arguments:
        broadcast: the rank that reads whole tensors and sends them to the others, which must read
            the same ones; None: this process reads its own parts.
    """

    def __init__(self, broadcast: BroadcastReader | None = None) -> None:
        self.broadcast = broadcast
        self._last: tuple[Tensor | Placeable, Rows, Tensor] | None = None

    def read(self, source: Tensor | Placeable, rows: Rows = None) -> Tensor:
        """Read a tensor; if it is sharded, on all ranks together."""
        if self._last is not None and self._last[0] is source and self._last[1] == rows:
            return self._last[2]
        self._last = None  # free its memory before allocating the next tensor
        if isinstance(source, Tensor):
            tensor = whole_of(source) if rows is None else whole_of(source)[slice(*rows)]
        elif self.broadcast is not None:
            assert rows is None
            tensor = self.broadcast.tensor(source.whole, source.shape, source.dtype)
        elif rows is None:
            tensor = source.whole()
        else:
            size = (rows[1] - rows[0], *source.shape[1:])
            tensor = source.box((rows[0], *(0 for _ in source.shape[1:])), size)
        self._last = source, rows, tensor
        return tensor

    def box(
        self, source: Tensor | Placeable, ranges: Sequence[tuple[int, int]], whole: bool = False
    ) -> Tensor:
        """Read a box of a tensor; for a matrix, little more than the bytes of the box are read.

        Arguments:
            ranges: first index and end in each dimension.
            whole: whether further boxes follow that make up the whole tensor, which is then read
                once.
        """
        box = tuple(slice(start, end) for start, end in ranges)
        if whole or not box or self.broadcast is not None or isinstance(source, Tensor):
            return self.read(source)[box]
        if len(box) == 2 and box[1] != slice(0, source.shape[1]):
            columns = box[1].stop - box[1].start
            if columns * source.dtype.itemsize >= tensor_file.ROW:
                sizes = [end - start for start, end in ranges]
                return source.box([start for start, _ in ranges], sizes)
        rows = None if ranges[0] == (0, source.shape[0]) else ranges[0]
        return self.read(source, rows)[(slice(None), *box[1:])]

    def block(self, source: Tensor | Placeable, part: Part | None) -> Tensor:
        """Read a block of a tensor."""
        if part is None:
            return self.read(source)
        if isinstance(source, Tensor):
            if part.length is None:  # an expert: other ranks send only its block
                return whole_of(block(source, part))
            return block(self.read(source), part)
        ranges = [(0, size) for size in source.shape]
        ranges[part.dim] = (part.start, part.start + (part.length or 1))
        values = self.box(source, ranges)
        return values.squeeze(part.dim) if part.length is None else values

    def part(self, info: TensorInfo) -> Tensor:
        """Read a whole tensor as stored."""
        if self.broadcast is None:
            return read_rows(info)
        sent = self.broadcast.tensor(
            lambda: read_rows(info).view(-1).view(torch.uint8), (info.size,), torch.uint8
        )
        return sent.view(dtype_named(info.dtype)).view(info.shape)


def info_of(tensor: Tensor | Placeable) -> TensorInfo:
    """Dtype and shape of a tensor in memory, as for one in a file."""
    if isinstance(tensor, FileTensor):
        return tensor.info
    dtype = DTYPES.get(tensor.dtype, str(tensor.dtype))
    return TensorInfo(Path(), dtype, tuple(tensor.shape), 0, 0)


def read_rows(info: TensorInfo, rows: Rows = None) -> Tensor:
    """Read rows of a tensor as stored."""
    box = [slice(0, size) for size in info.shape]
    if rows is not None:
        box[0] = slice(*rows)
    return _read_stored(info, box)


def _read_stored(info: TensorInfo, box: Sequence[slice]) -> Tensor:
    tensor = torch.empty([one.stop - one.start for one in box], dtype=_dtype_of(info))
    try:
        with info.file.open("rb") as file:
            read_box(file.fileno(), info, box, tensor)
    except OSError as error:
        if error.errno == errno.ENODATA:
            raise DamagedFile(info.file, "it was truncated while it was being read") from error
        raise SetpointError(f"{info.file} cannot be read: {error.strerror}") from error
    return tensor


def _dtype_of(info: TensorInfo) -> torch.dtype:
    try:
        return dtype_named(info.dtype)
    except KeyError:
        raise SetpointError(
            f"{info.file} cannot be read: its dtype {info.dtype} is not supported"
        ) from None


AT_ONCE: Final = 2**22
"""Weights dequantized at a time, at most or one row of blocks, in fp32."""

LEVELS: Final = {
    "e2m1": (*E2M1, *(-level for level in E2M1)),
    "int4": tuple(float(code) for code in range(-8, 8)),
}
"""Values of 4-bit codes."""


def dequantize(
    encoding: Encoding, shape: Shape, rows: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Dequantize rows of a tensor, piece by piece.

    Arguments:
        shape: shape of the whole tensor.
        rows: first row and end.
        dtype: dtype of the result, which is rounded from fp32.

    Raises:
        RunError: scales are not positive, or values are not finite.
    """
    first, last = rows
    values = torch.empty((last - first, *shape[1:]), dtype=dtype)
    width = values[0].numel() if last > first else 1
    step = max(1, AT_ONCE // width)
    reader = _DenseRows(encoding)
    for start in range(first, last, step):
        end = min(start + step, last)
        if encoding.values == "levels":
            piece = reader.by_levels(start, end, width).view(end - start, *shape[1:])
        else:
            piece = reader.by_scales(start, end)
        if not piece.isfinite().all():
            scales = "absmax" if encoding.values == "levels" else "scales"
            raise unsound(encoding, scales, "that make the weights non-finite")
        values[start - first : end - first] = piece.mT if encoding.transposed else piece
    return values


def require_sound(encoding: Encoding, part: str, numbers: Tensor) -> None:
    """Refuse non-finite values and negative scales.

    A block of zeros may have scale zero.

    Raises:
        RunError: see `unsound`.
    """
    if part not in ("scales", "factor", "absmax") and not numbers.is_floating_point():
        return
    is_scale = part in ("scales", "factor", "absmax", "nested_absmax")
    for piece in numbers.flatten().split(AT_ONCE):
        piece = piece.float()
        if not piece.isfinite().all():
            raise unsound(encoding, part, "that are not finite")
        if is_scale and (piece < 0).any():
            raise unsound(encoding, part, "below zero")
    if part == "factor" and not numbers:
        raise unsound(encoding, part, "that are zero")


def unsound(encoding: Encoding, part: str, fault: str) -> RunError:
    """Error about invalid values in a part of a quantized tensor."""
    infos = dict(encoding.parts)
    name = encoding.names[[*infos].index(part)]
    return RunError(
        f"{infos[part].file}: {name} has values {fault}, so that {encoding.names[0]} cannot be "
        f"dequantized. Copy or download the file again, or quantize the model again; nothing was "
        f"loaded"
    )


class _DenseRows:
    """Dequantized rows of a tensor; scales shared by all rows are read once."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.parts = dict(encoding.parts)
        self.factor = None
        if "factor" in self.parts:
            factor = read_rows(self.parts["factor"]).float().reshape(())
            require_sound(encoding, "factor", factor)
            self.factor = factor.reciprocal() if encoding.divides else factor
        if encoding.values == "levels":
            self.absmax = self._absmax()
            self.levels = read_rows(self.parts["levels"]).float()

    def by_scales(self, start: int, end: int) -> Tensor:
        """Rows of (..., rows, columns)."""
        codes = read_rows(self.parts["codes"], (start, end))
        require_sound(self.encoding, "codes", codes)
        if codes.dim() == 4:  # blocks apart
            codes = codes.flatten(2)
        levels = LEVELS.get(self.encoding.values)
        values = codes.float() if levels is None else _unpack(codes, levels)
        scales = self._block_values("scales", start, end, values.dim())
        if self.parts["scales"].dtype == "U8":  # exponents of powers of two
            scales = torch.exp2(scales - 127)
        require_sound(self.encoding, "scales", scales)
        if "zeros" in self.parts:
            values = values - self._spread(self._block_values("zeros", start, end, 2), values)
        if (scales == 0).any() and ((self._spread(scales, values) == 0) & (values != 0)).any():
            raise unsound(self.encoding, "scales", "that are zero although the weights are not")
        if self.factor is not None:
            scales = scales * self.factor
        return values * self._spread(scales, values)

    def _block_values(self, part: str, start: int, end: int, dims: int) -> Tensor:
        """Values of a part for each row, or a single row for all."""
        info, high = self.parts[part], self.encoding.block[0]
        if not info.shape:
            return read_rows(info).float().reshape(1, 1)
        if dims > 2:  # a row has all of its blocks
            return read_rows(info, (start, end)).float()
        above, below = start // high, -(-end // high)
        blocks = read_rows(info, (above, below)).float().view(below - above, -1)
        if len(blocks) == 1 or high == 1:
            return blocks
        return blocks.repeat_interleave(high, 0)[start - above * high :][: end - start]

    def _spread(self, scales: Tensor, values: Tensor) -> Tensor:
        columns = values.shape[-1]
        if scales.shape[-1] in (1, columns):
            return scales
        return scales.repeat_interleave(self.encoding.block[1], -1)[..., :columns]

    def _absmax(self) -> Tensor:
        codes = read_rows(self.parts["absmax"])
        size, offset = self.encoding.nested
        if not size:
            require_sound(self.encoding, "absmax", codes)
            return codes.float()
        levels = read_rows(self.parts["nested_levels"]).float()
        outer = read_rows(self.parts["nested_absmax"]).float()
        return levels[codes.int()] * outer.repeat_interleave(size)[: len(codes)] + offset

    def by_levels(self, start: int, end: int, width: int) -> Tensor:
        """Flattened values of some rows; blocks run across row boundaries."""
        first, last = start * width, end * width
        codes = read_rows(self.parts["codes"], (first // 2, -(-last // 2))).flatten()
        places = torch.stack((codes >> 4, codes & 15), -1).flatten()[first % 2 :][: last - first]
        blocks = torch.arange(first, last).div(self.encoding.block[1], rounding_mode="floor")
        return self.levels[places.int()] * self.absmax[blocks]


def _unpack(codes: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Two values per byte, the first in the low half."""
    codes = codes.view(torch.uint8)
    return torch.tensor(levels)[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()]
