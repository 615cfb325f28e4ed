"""GGUF files from llama.cpp: metadata, and tensors with quantized blocks made dense.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, blocks: ggml-common.h and
ggml-quants.c there. The package `gguf` reads tensor by tensor with numpy and depends on a tokenizer
library, so these few functions are used instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from setpoint.config import RunError, SetpointError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
LONGEST: Final = 1 << 28
"""Bytes of metadata at most; vocabularies take some MB."""
_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


def _fields(codes: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Bit fields of each byte, (..., fields, bytes)."""
    return torch.stack([(codes >> shift) & mask for shift in shifts], -2)


def _fp16(codes: Tensor) -> Tensor:
    """Scales of blocks, (blocks, n) in fp32 from (blocks, 2 n) bytes."""
    return codes.contiguous().view(torch.float16).float()


def _q8_0(blocks: Tensor) -> Tensor:
    return _fp16(blocks[:, :2]) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _q4_0(blocks: Tensor) -> Tensor:
    return _fp16(blocks[:, :2]) * (_fields(blocks[:, 2:], (0, 4), 15).flatten(1).float() - 8)


def _q4_k(blocks: Tensor, high_bits: int = 0) -> Tensor:
    """8 groups of 32, each with a scale and a minimum of 6 bits.

    Arguments:
        high_bits: bytes with the fifth bit of each number; 0: none.
    """
    factors, packed, codes = _fp16(blocks[:, :4]), blocks[:, 4:16], blocks[:, 16 + high_bits :]
    low, high, rest = packed.view(-1, 3, 4).unbind(1)
    scales = torch.cat([low & 63, (rest & 15) | ((low >> 6) << 4)], 1)
    minima = torch.cat([high & 63, (rest >> 4) | ((high >> 6) << 4)], 1)
    values = _fields(codes.view(-1, 4, 32), (0, 4), 15).reshape(-1, 8, 32)
    if high_bits:
        fifth = blocks[:, 16 : 16 + high_bits].view(-1, 1, high_bits)
        values = values | (_fields(fifth, (*range(8),), 1).reshape(-1, 8, 32) << 4)
    scale, minimum = (factors[:, i : i + 1] * n.float() for i, n in enumerate((scales, minima)))
    return (scale[..., None] * values.float() - minimum[..., None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """16 groups of 16, each with an 8-bit scale; 4 and 2 bits of each number are stored apart."""
    low = _fields(blocks[:, :128].view(-1, 2, 64), (0, 4), 15).reshape(-1, 256)
    high = _fields(blocks[:, 128:192].view(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 256)
    scales = _fp16(blocks[:, 208:]) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    values = (low | (high << 4)).float() - 32
    return (scales[..., None] * values.view(-1, 16, 16)).flatten(1)


class BlockType(NamedTuple):
    """A tensor type: numbers and bytes per block, and the conversion to dense numbers.

    Arguments:
        dense: converts (blocks, bytes) to (blocks, numbers) in fp32; None: the numbers have
            `dtype`.
    """

    name: str
    numbers: int
    size: int
    dtype: torch.dtype = torch.float32
    dense: Callable[[Tensor], Tensor] | None = None


TYPES: Final = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2, torch.float16),
    2: BlockType("Q4_0", 32, 18, dense=_q4_0),
    8: BlockType("Q8_0", 32, 34, dense=_q8_0),
    12: BlockType("Q4_K", 256, 144, dense=_q4_k),
    13: BlockType("Q5_K", 256, 176, dense=partial(_q4_k, high_bits=32)),
    14: BlockType("Q6_K", 256, 210, dense=_q6_k),
    30: BlockType("BF16", 1, 2, torch.bfloat16),
}
"""Types of tensors by their numbers in files."""
OTHERS: Final = {
    3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Types that are refused by name."""


@dataclass(frozen=True, slots=True)
class GGUF:
    """The content of a file; tensors are dense, and those that were quantized are in fp32."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    encodings: frozenset[str]


def read_gguf(path: Path) -> GGUF:
    """Read a GGUF file.

    Raises:
        SetpointError: the version or a tensor type is not supported.
        RunError: the file is damaged.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError, _Damage) as error:
        raise RunError(
            f"{path} is damaged: {error}. Copy or download it again; nothing was loaded."
        ) from error


class _Damage(Exception):
    pass


def _read(path: Path, file: BufferedReader) -> GGUF:
    count, pairs = _header(path, file)
    metadata = {}
    for _ in range(pairs):
        name = _string(file)
        metadata[name] = _value(file, *_unpack(file, "I"))
    infos: dict[str, tuple[tuple[int, ...], BlockType, int]] = {}
    for _ in range(count):
        name, (dims,) = _string(file), _unpack(file, "I")
        if dims > 4:
            raise _Damage(f"{name} has {dims} dimensions")
        shape = _unpack(file, f"{dims}Q")[::-1]  # files have the fastest dimension first
        kind, offset = _unpack(file, "IQ")
        if kind not in TYPES:
            known = ", ".join(encoding.name for encoding in TYPES.values())
            raise SetpointError(
                f"{path}: {name} has the type {OTHERS.get(kind, kind)}, which cannot be read here. "
                f"Known: {known}. llama-quantize --allow-requantize FILE OUT Q8_0 (or F32) "
                f"writes it as one of these"
            )
        if name in infos:
            raise _Damage(f"{name} is listed twice")
        infos[name] = shape, TYPES[kind], offset
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damage(f"general.alignment = {alignment!r}")
    start = -(-file.tell() // alignment) * alignment
    tensors = {}
    for name, (shape, encoding, offset) in infos.items():
        numbers = prod(shape)
        if numbers % encoding.numbers or (shape and shape[-1] % encoding.numbers):
            raise _Damage(f"{name} {shape} is not a whole number of blocks of {encoding.name}")
        file.seek(start + offset)
        size = numbers // encoding.numbers * encoding.size
        content = bytearray(size) if start + offset + size <= path.stat().st_size else bytearray()
        if size and file.readinto(content) != size:
            raise _Damage(f"{name} lacks some of its {size} bytes")
        tensors[name] = _tensor(content, shape, encoding)
    return GGUF(metadata, tensors, frozenset(encoding.name for _, encoding, _ in infos.values()))


def _tensor(content: bytearray, shape: tuple[int, ...], encoding: BlockType) -> Tensor:
    if not content:
        return torch.empty(shape, dtype=encoding.dtype)
    if encoding.dense is None:
        return torch.frombuffer(content, dtype=encoding.dtype).view(shape)
    blocks = torch.frombuffer(content, dtype=torch.uint8).view(-1, encoding.size)
    dense = encoding.dense
    return torch.cat([dense(part) for part in blocks.split(1 << 16)]).view(shape)


def _header(path: Path, file: BufferedReader) -> tuple[int, int]:
    magic = file.read(4)
    if magic != MAGIC:
        kind = "a big-endian GGUF file" if magic == MAGIC[::-1] else "no GGUF file"
        raise SetpointError(f"{path} is {kind}: it begins with {magic!r}")
    (version,) = _unpack(file, "I")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise SetpointError(f"{path} has GGUF version {version}; {known} can be read")
    count, pairs = _unpack(file, "QQ")
    return count, pairs


def _unpack(file: BufferedReader, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))


def _string(file: BufferedReader) -> str:
    (length,) = _unpack(file, "Q")
    if length > LONGEST or file.tell() > LONGEST:
        raise _Damage(f"a string of {length} bytes in its metadata")
    text = file.read(length)
    if len(text) < length:
        raise _Damage("it ends within its metadata")
    return text.decode()


def _value(file: BufferedReader, kind: int, depth: int = 0) -> Any:
    """A value of the metadata: a number, a text, or a list of these."""
    if kind in _SCALARS:
        return _unpack(file, _SCALARS[kind])[0]
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY or depth > 2:
        raise _Damage(f"a value of the type {kind}")
    item, length = _unpack(file, "IQ")
    if length > LONGEST:
        raise _Damage(f"a list of {length} values")
    if item in _SCALARS:
        return list(_unpack(file, f"{length}{_SCALARS[item]}"))
    return [_value(file, item, depth + 1) for _ in range(length)]
