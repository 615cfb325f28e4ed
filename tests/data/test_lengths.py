"""Lengths of documents come with the batches of every kind of rows, and say what these say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from setpoint.data.loader import SentBatch
from setpoint.shapes.batch import Batch
from setpoint.train.build.components import build_components

from ..train.small import small_job

TWO = (
    "data.sources=[{type=random, documents=20, length=7, alphabet=8}, "
    "{type=random, name=b, documents=30, length=15, alphabet=8}]"
)
WEIGHTS = ("data.sources.0.weight=1", "data.sources.1.weight=3")
PACKED = "data.packing.method=next_fit"


@pytest.mark.parametrize(
    "flags",
    [
        ("data.packing.isolate=true",),
        (PACKED, "data.sources.0.length=5"),
        (PACKED, TWO),
        (PACKED, TWO, *WEIGHTS, "data.packing.pad_to_multiple_of=4"),
        (PACKED, "data.packing.isolate=false", TWO, "model.moe={experts: 2}"),
    ],
)
def test_lengths_of_all_rows(tmp_path: Path, flags: tuple[str, ...]) -> None:
    components = build_components(small_job(tmp_path, *flags))
    step = components.feed.take()
    assert components.eval_feed is not None
    evaluated = next(components.eval_feed.batches(next(iter(components.eval_feed.totals))))
    for batch in (*step.batches, evaluated):
        for same in (batch, sent(batch), batch.padded(3), batch.to(torch.device("cpu"))):
            holds(same)


def sent(batch: Batch) -> Batch:
    """Over the way between processes."""
    function, arguments = SentBatch(batch, 0.0).__reduce__()
    return function(*arguments).batch


def holds(batch: Batch) -> None:
    """Documents begin where the numbers say; within padding more of it may begin."""
    lengths, positions = batch.lengths, batch.positions
    assert lengths is not None and positions is not None
    numbers = positions < 0 if batch.documents is None else batch.documents
    changes = torch.ones_like(numbers, dtype=torch.bool)
    changes[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    begins = set(changes.flatten().nonzero().flatten().tolist())
    *starts, end = lengths.starts.tolist()
    assert begins <= set(starts) and end == numbers.numel()
    assert all((positions.flatten()[start] < 0) for start in set(starts) - begins)
    assert lengths.cumulative.tolist() == [*starts, end] == sorted({*starts, end})
    assert lengths.cumulative.dtype == torch.int32
    assert lengths.longest == int(np.diff(lengths.starts).max())


def test_rows_without_documents_have_none(tmp_path: Path) -> None:
    (batch, *_) = build_components(small_job(tmp_path)).feed.take().batches
    assert batch.lengths is None
