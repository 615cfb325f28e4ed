"""Tokens in a row: one array in memory, or many that lie in mapped files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

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
        self.parts = tuple(parts)
        self.ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)
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


def gather(row: TokenRow, starts: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Cut windows, (B,) starts -> (B, width); past the end the last item is repeated."""
    found = np.empty((len(starts), width), np.int64)
    size = len(row)
    for window, start in zip(found, starts.tolist(), strict=True):
        have = min(width, size - start)
        if have > 0:
            window[:have] = row[start : start + have]
        if have < width:
            window[max(have, 0) :] = row[size - 1 :][0]
    return found
