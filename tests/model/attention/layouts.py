"""Layouts of all kinds: rows of two, of eleven positions each."""

import torch

from setpoint.model.attention.backends import RowLayout

BATCH, LENGTH = 2, 11
CPU = torch.device("cpu")
LEFT_PADDED = torch.tensor([[*range(11)], [-1, -1, -1, *range(8)]])
RIGHT_PADDED = torch.tensor([[*range(7), -1, -1, -1, -1], [*range(11)]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2], [5, 5, 5, 5, 5, 5, 9, 9, 9, 9, 9]])
ANEW = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]])


def layout(queries: int = LENGTH, **parts) -> RowLayout:
    return RowLayout(queries=queries, keys=LENGTH, batch=BATCH, device=CPU, **parts)


LAYOUTS = {
    "plain": layout(),
    "shifted": layout(positions=torch.arange(5, 5 + LENGTH)[None]),
    "documents": layout(documents=DOCUMENTS),
    "documents, positions anew": layout(documents=DOCUMENTS, positions=ANEW, padded=True),
    "left padding": layout(positions=LEFT_PADDED, padded=True),
    "right padding": layout(positions=RIGHT_PADDED, padded=True),
    "padding and documents": layout(positions=RIGHT_PADDED, padded=True, documents=DOCUMENTS),
    "last one": layout(queries=1),
    "last four": layout(queries=4),
    "last four, left padding": layout(queries=4, positions=LEFT_PADDED, padded=True),
    "last four, documents": layout(queries=4, documents=DOCUMENTS),
    "last six, right padding": layout(queries=6, positions=RIGHT_PADDED, padded=True),
    "chunks": layout().chunked(4),
    "last four, chunks": layout(queries=4).chunked(3),
    "documents in chunks": layout(documents=DOCUMENTS, positions=ANEW, padded=True).chunked(2),
    "left padding, chunks": layout(positions=LEFT_PADDED, padded=True).chunked(5),
}


def counting(layout: RowLayout) -> torch.Tensor:
    """(B, S) of the queries that are not padding."""
    if layout.positions is None:
        return torch.ones(layout.batch, layout.queries, dtype=torch.bool, device=layout.device)
    return (layout.positions[:, -layout.queries :] >= 0).expand(layout.batch, -1)
