"""The header of a safetensors file, read and written without torch.

Format: https://github.com/huggingface/safetensors (8 bytes of header length, JSON header, data).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from setpoint.config import RunError, SetpointError
from setpoint.shapes.parameter import Form

Shape = tuple[int, ...]

TORCH_NAMES: Final = {
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Dtypes of the format, with their names in torch."""

WIDTHS: Final = {
    name: next((int(bits) // 8 for bits in ("64", "32", "16") if name.endswith(bits)), 1)
    for name in TORCH_NAMES
}
"""Bytes per element."""

FLOATS: Final = ("F64", "F32", "F16", "BF16")
"""Dtypes of weights."""

CODES: Final = ("U8", "I8")
"""Integer dtypes of quantized codes."""

_LONGEST: Final = 100_000_000  # bytes of a header, the limit of the safetensors library
_POINTER: Final = b"version https://git-lfs"


class TensorInfo(NamedTuple):
    """One tensor in a file.

    Arguments:
        start: the first byte, from the beginning of the file.
        size: number of bytes.
        encoding: the encoding of a tensor that is dequantized on reading; shape and dtype are then
            those of the dense tensor. None: stored as is.
    """

    file: Path
    dtype: str
    shape: Shape
    start: int
    size: int
    encoding: Encoding | None = None


class Encoding(NamedTuple):
    """The quantization of a tensor, and the tensors from which it is dequantized.

    Arguments:
        values: numbers, `float8`, `int8`, `int4` (starting at -8, two per byte), `e2m1`, or indices
            into `levels` (likewise).
        block: rows and columns that share a scale.
        parts: codes, scales (uint8: exponents of two), the factor of all of these, zeros.
        names: the names of these tensors.
        divides: whether scales are divided by the factor.
        transposed: whether the last two dimensions of the dense tensor are swapped.
        nested: for quantized scales: the number of scales that share a scale, and their mean.
    """

    values: str
    block: tuple[int, int]
    parts: tuple[tuple[str, TensorInfo], ...]
    names: tuple[str, ...]
    divides: bool = False
    transposed: bool = False
    nested: tuple[int, float] = (0, 0.0)

    @property
    def form(self) -> Form:
        """The quantization alone, without files."""
        dtypes = {part: info.dtype for part, info in self.parts}
        numbers = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}.get(dtypes["codes"], self.values)
        if numbers == "levels":
            numbers = self.names[-1][-3:]
        scales = dtypes.get("scales")
        kind = "e4m3" if scales == "F8_E4M3" and "factor" in dtypes else "float"
        kind = "exponent" if scales == "U8" else kind
        return Form(numbers, self.block, kind, self.nested[0], "zeros" in dtypes)


class DamagedFile(RunError):
    """An incomplete safetensors file.

    Arguments:
        reason: reason, without the name of the file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{path} is damaged: {reason}. Copy or download it again; nothing was loaded."
        )


def read_header(path: Path, tied: bool = False) -> dict[str, TensorInfo]:
    """Read and verify the header of a safetensors file.

    Arguments:
        tied: whether further names of tied tensors are among the keys.

    Raises:
        DamagedFile: the file is truncated, longer than its header states, or not in the format.
        SetpointError: the file cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST):
                raise DamagedFile(path, lfs_pointer(path) or _too_short(size, length))
            text = file.read(length)
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror}") from error
    tensors, aliases = decode_header(path, text)
    _require_complete(path, tensors, 8 + length, size)
    return tensors | ({name: tensors[owner] for name, owner in aliases.items()} if tied else {})


def decode_header(
    path: Path, text: bytes | bytearray
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Decode the JSON of a header.

    Arguments:
        path: the path of its file, for errors.

    Returns:
        the tensors in header order, and further names of some.

    Raises:
        DamagedFile: the header is not in the format, or a tensor has more or fewer bytes than its
            shape requires.
    """
    try:
        entries: dict[str, Any] = json.loads(text)
        metadata = entries.pop("__metadata__", {})
        begin = 8 + len(text)
        tensors = {name: _info(path, begin, entry) for name, entry in entries.items()}
        return tensors, json.loads(metadata.get("aliases", "{}"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFile(path, "its header is not that of a safetensors file") from error


def encode_header(
    tensors: Iterable[tuple[str, str, Shape]], aliases: Mapping[str, str] | None = None
) -> bytes:
    """The header of a safetensors file, with its length.

    Arguments:
        tensors: name, dtype and shape of each, in the order of their bytes.
        aliases: further names of some.
    """
    # transformers requires the format, which means that matrices have PyTorch's layout.
    metadata = {"format": "pt"} | ({"aliases": json.dumps(aliases)} if aliases else {})
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + math.prod(shape) * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def lfs_pointer(path: Path) -> str:
    """The problem of a file that Git LFS has not fetched yet; empty for other files."""
    with path.open("rb") as file:
        is_pointer = file.read(len(_POINTER)) == _POINTER
    return "it is a Git LFS pointer; fetch the file with `git lfs pull`" if is_pointer else ""


def _too_short(size: int, length: int) -> str:
    if size < 8:
        return f"it has {size} bytes, but the length of its header takes 8"
    if length > _LONGEST:
        return f"its first 8 bytes, the length of the header, give {length}"
    return f"its header should have {length:,} bytes, but the file has {size:,}"


def _info(path: Path, data: int, entry: dict[str, Any]) -> TensorInfo:
    start, end = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    info = TensorInfo(path, str(entry["dtype"]), shape, data + start, end - start)
    width = WIDTHS.get(info.dtype)
    if min(start, *shape, 0) < 0 or (width and math.prod(shape) * width != info.size):
        raise ValueError(entry)
    return info


def _require_complete(path: Path, tensors: dict[str, TensorInfo], data: int, size: int) -> None:
    """Require that the tensors fill the file from the header to its end, without gaps."""
    end = data
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if info.start != end:
            raise DamagedFile(path, f"{name} does not begin where the tensor before it ends")
        end = info.start + info.size
    if size != end:
        kind = "short" if size < end else "long"
        raise DamagedFile(
            path, f"it has {size:,} bytes and should have {end:,}, {abs(end - size):,} too {kind}"
        )
