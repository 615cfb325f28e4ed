"""Tokens in a row: one array in memory, or many that lie in mapped files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

TokenArray = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids in the smallest unsigned type that holds the vocabulary."""


class TokenRow(Protocol):
    """What windows are cut from; an array is one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its items."""
        ...

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, key: npt.NDArray[np.int64], /) -> npt.NDArray[Any]: ...


class JoinedRow:
    """Arrays of one type as one row, none of which is copied.

    Arguments:
        parts: such as the files of prepared data, mapped into memory.
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        # Plain arrays: slices of mapped ones take five times as long.
        self.parts = tuple(np.asarray(part) for part in parts)
        sizes = np.array([len(part) for part in self.parts], np.int64)
        self.ends = np.cumsum(sizes)
        self.firsts = self.ends - sizes
        self.dtype: np.dtype[Any] = np.result_type(*self.parts) if self.parts else np.dtype("u2")

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.parts else 0

    @overload
    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, key: npt.NDArray[np.int64], /) -> npt.NDArray[Any]: ...

    def __getitem__(self, key: Any, /) -> npt.NDArray[Any]:
        """Items of a range, or at positions, an array of any shape."""
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self._range(start, stop)
            key = np.arange(start, stop, step)
        where = np.searchsorted(self.ends, key, "right")
        found = np.empty(key.shape, self.dtype)
        for number in np.unique(where).tolist():
            here = where == number
            part = self.parts[number]
            found[here] = part[key[here] - (self.ends[number] - len(part))]
        return found

    def _range(self, start: int, stop: int) -> npt.NDArray[Any]:
        number = int(np.searchsorted(self.ends, start, "right"))
        pieces: list[npt.NDArray[Any]] = []
        while start < stop:
            part = self.parts[number]
            first = int(self.ends[number]) - len(part)
            pieces.append(part[start - first : stop - first])
            start, number = int(self.ends[number]), number + 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, self.dtype)

    def gather(self, starts: npt.NDArray[np.int64], width: int) -> npt.NDArray[Any] | None:
        """Windows that lie in one part each, (B,) starts -> (B, width); None: some do not."""
        if not self.parts:
            return None
        numbers = np.searchsorted(self.ends, starts, "right")
        if numbers.max(initial=0) >= len(self.parts):
            return None
        if (starts + width > self.ends[numbers]).any():
            return None
        firsts = (starts - self.firsts[numbers]).tolist()
        found = np.empty((len(starts), width), self.dtype)
        for place, number, first in zip(found, numbers.tolist(), firsts, strict=True):
            place[:] = self.parts[number][first : first + width]
        return found


def gather(row: TokenRow, starts: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Cut windows, (B,) starts -> (B, width); past the end the last item is repeated."""
    size = len(row)
    if isinstance(row, np.ndarray) and (starts <= size - width).all():
        views = as_strided(row, (size - width + 1, width), row.strides * 2, writeable=False)
        return views[starts].astype(np.int64)
    if isinstance(row, JoinedRow):
        whole = row.gather(starts, width)
        if whole is not None:
            return whole.astype(np.int64)
    found = np.empty((len(starts), width), np.int64)
    for window, start in zip(found, starts.tolist(), strict=True):
        have = min(width, size - start)
        if have > 0:
            window[:have] = row[start : start + have]
        if have < width:
            window[max(have, 0) :] = row[size - 1 :][0]
    return found
