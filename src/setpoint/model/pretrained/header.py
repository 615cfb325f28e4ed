"""The list of tensors at the beginning of a safetensors file, held against the file's size.

Format: https://github.com/huggingface/safetensors (8 bytes of header length, JSON header, data).
Imports no torch, so that `setpoint check` can look into a file of any size.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from setpoint.config import RunError, SetpointError
from setpoint.model.pretrained.pieces import Shape
from setpoint.shapes.stored import Form

WIDTHS: Final = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "C64": 8,
}
"""Bytes of one element, by the format's names."""

FLOATS: Final = ("F64", "F32", "F16", "BF16")
CODES: Final = ("U8", "I8")
"""What weights may be."""

_LONGEST: Final = 100_000_000  # bytes of a header, the limit of the safetensors library


class TensorInfo(NamedTuple):
    """One tensor in a file.

    Arguments:
        start: the first byte, from the beginning of the file.
        encoding: of a tensor that is made dense as it is read; its shape and dtype are those of the
            dense one. None: the file has it as it is.
    """

    file: Path
    dtype: str
    shape: Shape
    start: int
    size: int
    encoding: Encoding | None = None


class Encoding(NamedTuple):
    """What a dense tensor is made of.

    Arguments:
        values: numbers, `float8`, `int8`, `int4` (from -8 on, two in a byte), `e2m1` or places in
            `levels` (the same).
        block: rows and columns with one scale.
        parts: tensors by what they are: codes, scales (uint8: exponents of two), the factor of all
            of these, zeros.
        names: of these tensors.
        divides: whether scales are divided by the factor.
        transposed: whether the last two dimensions of the dense tensor are swapped.
        nested: of scales that are places themselves: how many have one scale, and their mean.
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
        """The same without where it lies."""
        dtypes = {part: info.dtype for part, info in self.parts}
        numbers = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}.get(dtypes["codes"], self.values)
        if numbers == "levels":
            numbers = self.names[-1][-3:]
        scales = dtypes.get("scales")
        kind = "e4m3" if scales == "F8_E4M3" and "factor" in dtypes else "float"
        kind = "exponent" if scales == "U8" else kind
        return Form(numbers, self.block, kind, self.nested[0], "zeros" in dtypes)


class DamagedFile(RunError):
    """A safetensors file that is not whole."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}. Copy or download it again; nothing was loaded."
        )


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Read and verify the header of a safetensors file.

    Raises:
        DamagedFile: if the file is cut short, longer than it says, or not in the format.
        SetpointError: if it cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST):
                raise DamagedFile(path, _too_short(size, length))
            text = file.read(length)
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        header: Any = json.loads(text)
        found = {name: _info(path, 8 + length, entry) for name, entry in _entries(header).items()}
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFile(path, "its header is not one of a safetensors file") from error
    _require_whole(path, found, 8 + length, size)
    return found


def _too_short(size: int, length: int) -> str:
    if size < 8:
        return f"it has {size} bytes, and the length of its header alone takes 8"
    if length > _LONGEST:
        return f"its first 8 bytes, the length of the header, say {length}"
    return f"its header should have {length:,} bytes, and the file has {size:,}"


def _entries(header: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(header, dict):
        raise TypeError(header)
    entries = cast(dict[str, Any], header)
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}


def _info(path: Path, data: int, entry: dict[str, Any]) -> TensorInfo:
    start, end = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    info = TensorInfo(path, str(entry["dtype"]), shape, data + start, end - start)
    width = WIDTHS.get(info.dtype)
    if min(start, *shape, 0) < 0 or (width and math.prod(shape) * width != info.size):
        raise ValueError(entry)
    return info


def _require_whole(path: Path, found: dict[str, TensorInfo], data: int, size: int) -> None:
    """The tensors must fill the file from the header to its end, without gaps."""
    end = data
    for name, info in sorted(found.items(), key=lambda item: (item[1].start, item[1].size)):
        if info.start != end:
            raise DamagedFile(path, f"{name} does not begin where the tensor before it ends")
        end = info.start + info.size
    if size != end:
        kind = "short" if size < end else "long"
        raise DamagedFile(
            path, f"it has {size:,} bytes and should have {end:,}, {abs(end - size):,} too {kind}"
        )
