"""Packed rows with each document in a row of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Places of the tokens of packed rows where each document has a row.

    Arguments:
        valid: (B, S) which tokens are no padding.
        row, column: (tokens,) the place of each of these.
    """

    valid: Tensor
    row: Tensor
    column: Tensor
    shape: tuple[int, int]

    def put(self, packed: Tensor) -> Tensor:
        """Lay (B, S, ...) values into rows of documents, with zeros as padding."""
        apart = packed.new_zeros(*self.shape, *packed.shape[2:])
        apart[self.row, self.column] = packed[self.valid]
        return apart

    def take(self, apart: Tensor) -> Tensor:
        """Lay values of documents back into packed rows."""
        packed = apart.new_zeros(*self.valid.shape, *apart.shape[2:])
        packed[self.valid] = apart[self.row, self.column]
        return packed


def rows_apart(documents: Tensor, positions: Tensor) -> Rows:
    """Find the places of packed documents in rows of their own; see `positions_in`."""
    valid = documents >= 0
    row, column = (positions == 0).flatten().cumsum(0)[valid.flatten()] - 1, positions[valid]
    return Rows(valid, row, column, (int(row.max()) + 1, int(column.max()) + 1))


def positions_in(documents: Tensor) -> Tensor:
    """(B, S) positions that restart in each document; -1 for padding."""
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = documents != documents.roll(1, dims=1)
    begins[:, 0] = True
    starts = places.where(begins, 0).cummax(dim=1).values
    return (places - starts).where(documents >= 0, -1)
