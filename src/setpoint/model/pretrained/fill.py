"""Loading of parameters from files, one tensor at a time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import RunError
from setpoint.files.tensor_file import DTYPES, dtype_named
from setpoint.files.tensor_header import FLOATS, Encoding, TensorInfo
from setpoint.model.build import materialize
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import ConstantInit, collect_rules, plain_name
from setpoint.model.pretrained.convert import Family
from setpoint.model.pretrained.read_tensor import TensorReader, require_sound
from setpoint.model.pretrained.weight_names import (
    HEAD,
    ROWS,
    Part,
    Piece,
    Shape,
    files_of,
    hf_shapes,
    require_tensors,
)
from setpoint.shapes.placed import Placeable, as_placed, in_memory, local_ranges, put
from setpoint.shapes.stored import Coded, Stored, stored_weights


class Growth(NamedTuple):
    """New rows of the embedding and the output matrix, for tokens that files do not have.

    Arguments:
        known: vocabulary size of the files; other rows are initialized to the mean of these.
        tokens: vocabulary size of the model.
        stored: rows in the files, with padding.
    """

    known: int
    tokens: int
    stored: int

    def fill(self, local: Tensor, first: int, row: Tensor) -> None:
        """Initialize new rows.

        Arguments:
            local: rows of the matrix from `first` on.
            row: the mean, for the columns of `local`.
        """
        start, end = max(self.known - first, 0), max(self.tokens - first, 0)
        local[start:end] = row.to(local)


class Weights:
    """Tensors of a model in files, checked against the model before any is read.

    Arguments:
        coded: names of tensors that are parts of quantized weights, which keep their dtypes.
        growth: of the embedding and output matrix; None: the vocabularies are equal.

    Raises:
        RunError: if the files contain other tensors than the model.
    """

    def __init__(
        self,
        where: object,
        pieces: Iterable[Piece],
        infos: Mapping[str, TensorInfo],
        shapes: Mapping[str, Shape],
        surplus: Iterable[str] = (),
        coded: Collection[str] = (),
        growth: Growth | None = None,
    ) -> None:
        self.infos, self.shapes, self.coded = infos, dict(shapes), frozenset(coded)
        self.growth = growth
        self.pieces: dict[str, list[Piece]] = {}
        if growth is not None:
            stored = Part(0, 0, growth.stored)
            pieces = [p._replace(block=stored) if p.name in ROWS else p for p in pieces]
        for piece in pieces:
            self.pieces.setdefault(piece.name, []).append(piece)
        all_pieces = (piece for group in self.pieces.values() for piece in group)
        require_tensors(where, hf_shapes(all_pieces, shapes), infos, surplus, coded)

    def fill(
        self,
        module: nn.Module,
        *,
        device: torch.device | str,
        dtype: torch.dtype | None,
        reader: TensorReader | None = None,
    ) -> None:
        """Load all parameters and buffers of a module.

        Tensors on the meta device are allocated; others keep device and dtype. Of sharded ones only
        the local rows are read. Tensors that the module lacks, as a pipeline stage does, are not
        read. Buffers that are in no file get their initial values.

        Arguments:
            dtype: of parameters on the meta device; None: as in the files.
            reader: reads the files; None: this process reads its own parts.
        """
        # Buffers that no file holds have no values when their memory has been made.
        empty = {name for name, buffer in module.named_buffers() if buffer.is_meta}
        if any(p.is_meta and hasattr(p, "to_local") for p in module.parameters()):
            assert dtype is not None, "a job knows in which dtype it keeps divided weights"
            materialize(module, device, dtype)  # in the place that what divides them knows
        with reader or TensorReader() as reader, torch.no_grad():
            for name, parameter in list(module.named_parameters()):
                if plain_name(name) not in self.pieces:
                    continue  # an adapter's: files hold the base
                kept = None if plain_name(name) in self.coded else dtype
                tensor = self._materialize(reader, name, parameter, device, kept)
                if tensor is not None:
                    _set_tensor(module, name, nn.Parameter(tensor, parameter.requires_grad))
            for name, stored in stored_weights(module):
                if plain_name(name) not in self.pieces:
                    continue  # its parts were read
                if any(part.is_meta for part in stored.parameters()):
                    materialize(stored, device, torch.float32)
                for rows in stored.pieces(every=not reader.by_rows):
                    self._store(reader, plain_name(name), stored, rows)
            for name, buffer in list(module.named_buffers()):
                if plain_name(name) in self.pieces:
                    tensor = self._materialize(reader, name, buffer, device, buffer.dtype)
                elif name in empty:
                    tensor = torch.empty_like(buffer, device=device)
                    rule = collect_rules(module)[plain_name(name)]
                    assert isinstance(rule, ConstantInit), "only what is the same in every run"
                    tensor.fill_(rule.value)
                else:
                    continue
                if tensor is not None:
                    _set_tensor(module, name, tensor)

    def read(self, reader: TensorReader, name: str, part: Part | None = None) -> Tensor:
        """A tensor stored unchanged, or a block of it."""
        (piece,) = self.pieces[name]
        assert piece[2:] == (None, None, False)
        return block(reader.read(self.infos[piece.hf_name]), part)

    def rows(self, reader: TensorReader, name: str, shape: Shape, rows: tuple[int, int]) -> Tensor:
        """Some rows of a tensor, in fp32 on the CPU."""
        if rows == (0, shape[0]):  # in the reader's own memory where it can be
            pieces = self.pieces[name]
            return self._assemble(reader, pieces, torch.Size(shape), torch.float32, "cpu")
        ranges = [rows, *((0, size) for size in shape[1:])]
        return self.box(reader, name, ranges, torch.float32)

    def _store(
        self, reader: TensorReader, name: str, stored: Stored, rows: tuple[int, int]
    ) -> None:
        """Load a piece of a quantized weight, in the format of the files if possible."""
        coded = self.coded_rows(reader, name, rows)
        parts = None if coded is None else stored.parts_from(coded)
        if parts is None:
            stored.put(self.rows(reader, name, stored.full_shape, rows), rows[0])
        else:
            stored.take(parts, rows[0])

    def coded_rows(self, reader: TensorReader, name: str, rows: tuple[int, int]) -> Coded | None:
        """A quantized matrix in the files, or an expert's; None if it is not quantized."""
        pieces = self.pieces[name]
        for piece in pieces:
            encoding = self.infos[piece.hf_name].encoding
            is_full = len(pieces) == 1 and piece[2:] == (None, None, False)
            is_expert = piece[2:] == (Part(0, rows[0]), None, True) and rows[1] == rows[0] + 1
            if encoding is None or encoding.transposed or not (is_full or is_expert):
                continue
            return coded_of(self.infos[piece.hf_name], encoding, reader)
        return None

    def _materialize(
        self,
        reader: TensorReader,
        name: str,
        target: Tensor,
        device: torch.device | str,
        dtype: torch.dtype | None,
    ) -> Tensor | None:
        """A new tensor in place of one on the meta device; None if it was filled in place."""
        pieces = self.pieces[plain_name(name)]
        if target.is_meta:
            dtype = dtype or dtype_named(self.infos[pieces[0].hf_name].dtype)
            return self._assemble(reader, pieces, target.shape, dtype, device)
        shard = local_ranges(target) if reader.by_rows and target.ndim else None
        if shard is None:
            full = self._assemble(reader, pieces, target.shape, target.dtype, "cpu")
            put(target, full)
            return None
        self._fill_box(reader, pieces, tuple(target.shape), *shard)
        return None

    def box(
        self, reader: TensorReader, name: str, ranges: Sequence[tuple[int, int]], dtype: torch.dtype
    ) -> Tensor:
        """Read a box of a tensor, by the ranges of its dimensions, on the CPU."""
        local = torch.empty([end - start for start, end in ranges], dtype=dtype)
        self._fill_box(reader, self.pieces[name], self.shapes[name], local, ranges)
        return local

    def _fill_box(
        self,
        reader: TensorReader,
        pieces: list[Piece],
        shape: Shape,
        local: Tensor,
        box: Sequence[tuple[int, int]],
    ) -> None:
        """Read a box of a tensor into `local`."""
        if len(pieces) > 1 or pieces[0].block is not None:
            local.zero_()  # what no piece covers
        for piece in pieces:
            overlap = common(piece, shape, box)
            if overlap is not None:
                within, ranges = overlap
                info, part = self.infos[piece.hf_name], piece.hf_block
                source = reader.read_box(info, ranges) if ranges else reader.read(info)
                if part is not None and part.step > 1:
                    length = (source.shape[part.dim] - 1) // part.step + 1
                    source = block(source, Part(part.dim, 0, length, part.step))
                local[within].copy_(source.T if piece.transposed else source)
        if self.growth is not None and pieces[0].name in ROWS:
            (first, last), columns = box[0], slice(*box[1])
            if first < self.growth.tokens and last > self.growth.known:
                source = reader.read(self.infos[pieces[0].hf_name])[:, columns]
                self.growth.fill(local, first, mean_row(source[: self.growth.known]))

    def _assemble(
        self,
        reader: TensorReader,
        pieces: list[Piece],
        shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Tensor:
        """A tensor assembled from its pieces."""
        only = pieces[0]
        if len(pieces) == 1 and only[2:] == (None, None, False):
            # The reader's own memory, so that nothing is copied; no other piece is cut from it.
            return reader.read(self.infos[only.hf_name]).to(device=device, dtype=dtype)
        full = torch.zeros(shape, dtype=dtype, device=device)
        for piece in pieces:
            source = block(reader.read(self.infos[piece.hf_name]), piece.hf_block)
            block(full, piece.block).copy_(source.T if piece.transposed else source)
            if self.growth is not None and piece.name in ROWS:
                self.growth.fill(full, 0, mean_row(source[: self.growth.known]))
        return full


class PlacedWeights(Weights):
    """Weights saved in shards by several ranks; each rank reads its own part.

    Arguments:
        tensors: by their names in the model.
    """

    def __init__(
        self,
        where: Path,
        tensors: Mapping[str, Tensor | Placeable],
        shapes: Mapping[str, Shape],
        coded: Collection[str] = (),
        growth: Growth | None = None,
    ) -> None:
        if growth is not None:
            tensors = {
                name: _Grown(tensor, growth, shapes[name])
                if name in ROWS and name in shapes
                else tensor
                for name, tensor in tensors.items()
            }
        infos = {
            name: TensorInfo(where, DTYPES.get(t.dtype, str(t.dtype)), tuple(t.shape), 0, 0)
            for name, t in tensors.items()
        }
        super().__init__(where, [Piece(name, name) for name in shapes], infos, shapes, coded=coded)
        self.tensors = tensors

    def box(
        self, reader: TensorReader, name: str, ranges: Sequence[tuple[int, int]], dtype: torch.dtype
    ) -> Tensor:
        del reader
        saved = self.tensors[name]
        if isinstance(saved, Tensor):
            return saved[tuple(slice(start, end) for start, end in ranges)].to(dtype)
        starts, sizes = [a for a, _ in ranges], [b - a for a, b in ranges]
        return saved.box(starts, sizes).to(dtype)

    def read(self, reader: TensorReader, name: str, part: Part | None = None) -> Tensor:
        """See `Weights.read`; only the block is read."""
        del reader
        saved = self.tensors[name]
        if isinstance(saved, Tensor):
            return block(saved, part)
        offset, shape = [0] * len(saved.shape), list(saved.shape)
        if part is not None:
            offset[part.dim], shape[part.dim] = part.start, part.length or 1
        values = saved.box(offset, shape)
        return values.squeeze(part.dim) if part is not None and part.length is None else values

    def rows(self, reader: TensorReader, name: str, shape: Shape, rows: tuple[int, int]) -> Tensor:
        ranges = [rows, *((0, size) for size in shape[1:])]
        return self.box(reader, name, ranges, torch.float32)

    def _materialize(
        self,
        reader: TensorReader,
        name: str,
        target: Tensor,
        device: torch.device | str,
        dtype: torch.dtype | None,
    ) -> Tensor | None:
        del reader
        saved = self.tensors[plain_name(name)]
        if target.is_meta:
            return as_placed(saved, target).to(device=device, dtype=dtype or saved.dtype)
        put(target, saved)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Grown(Placeable):
    """A tensor with rows for new tokens, read when it is placed; see `Placeable`."""

    saved: Tensor | Placeable
    growth: Growth
    full: Shape

    @property
    def dtype(self) -> torch.dtype:
        return self.saved.dtype

    @property
    def shape(self) -> torch.Size:
        if self.saved.shape[0] == self.growth.stored:
            return torch.Size(self.full)
        return self.saved.shape  # of another model, which is said

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        saved, (first, left) = in_memory(self.saved), offset
        columns = slice(left, left + shape[1])
        grown = saved.new_zeros(tuple(shape), device="cpu")
        rows = saved[first : first + shape[0], columns]
        grown[: len(rows)] = rows
        self.growth.fill(grown, first, mean_row(saved[: self.growth.known, columns]))
        return grown


def coded_of(info: TensorInfo, encoding: Encoding, reader: TensorReader) -> Coded:
    """Parts of a quantized tensor as stored in files.

    Raises:
        RunError: scales are not positive, or values are not finite.
    """
    parts = {kind: reader.part(part) for kind, part in encoding.parts}
    for kind, part in parts.items():
        if kind != "absmax" or not encoding.nested[0]:
            require_sound(encoding, kind, part)
    scales = parts.get("scales")
    if scales is not None and scales.dtype != torch.uint8 and (scales.float() == 0).any():
        reader.read(info)  # which refuses blocks that are not zero themselves
    if encoding.divides:
        parts["factor"] = parts["factor"].float().reciprocal()
    return Coded(encoding.form, parts, encoding.nested[1])


def mean_row(rows: Tensor) -> Tensor:
    """Mean of rows in fp64, so that it depends neither on threads nor on sharding."""
    sums = torch.stack([part.sum(0, dtype=torch.float64) for part in rows.split(1024)])
    return sums.sum(0) / len(rows)


def common(
    piece: Piece, shape: Shape, box: Sequence[tuple[int, int]]
) -> tuple[tuple[slice | int, ...], list[tuple[int, int]]] | None:
    """Intersection of a piece with a part of a tensor.

    Arguments:
        shape: of the whole tensor.
        box: ranges of its dimensions in the part.

    Returns:
        its index in the part, and the ranges of the dimensions in the file; None if it is empty.
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


def block(tensor: Tensor, part: Part | None) -> Tensor:
    """A block of a tensor, as a view."""
    if part is None:
        return tensor
    if part.length is None:
        return tensor.select(part.dim, part.start)
    if part.step > 1:
        end = part.start + (part.length - 1) * part.step + 1
        return tensor[(*[slice(None)] * part.dim, slice(part.start, end, part.step))]
    return tensor.narrow(part.dim, part.start, part.length)


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
    """Weights of a directory, checked against a transformer.

    Arguments:
        growth: see `Weights`.

    Raises:
        SetpointError: if there are no readable weights.
        RunError: if they are damaged, or do not fit the model.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    pieces, infos, surplus = files_of(directory, family, config, *rows_of(model))
    if config.tie_embeddings and HEAD in infos:
        _require_tied(directory, infos, pieces[0].hf_name)
    return Weights(directory, pieces, infos, shapes, surplus, growth=growth)


def rows_of(model: nn.Module) -> tuple[dict[str, int], int]:
    """Arguments of `pieces_of` for a model: its embedding rows and vocabulary size."""
    tokens: int = model.vocab_size  # pyright: ignore[reportAssignmentType]
    return {name: p.shape[0] for name, p in model.named_parameters() if name in ROWS}, tokens


def _require_tied(directory: Path, infos: Mapping[str, TensorInfo], embedding: str) -> None:
    """Require that a stored output matrix equals the tied embedding; one of them would be lost."""
    if embedding not in infos or {infos[embedding].dtype, infos[HEAD].dtype} - {*FLOATS}:
        return  # which is reported with all else that is wrong
    with TensorReader() as reader:
        first = reader.read(infos[embedding])
        if not torch.equal(first, reader.read(infos[HEAD])):
            raise RunError(
                f"{directory} has an {HEAD} that differs from {embedding}, although config.json "
                f"ties them (tie_word_embeddings). Set that to false there if the output matrix is "
                f"separate. Nothing was loaded."
            )
