"""The cross-entropy and the targets of each source, in a step."""

import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from setpoint.shapes.batch import Batch, BySource
from setpoint.train.build.components import build_components
from setpoint.train.config import Job

from .small import loop_of, small_job

LETTERS = ("abcd", "wxyz")
"""Of the two sources, so that a target says which it is from."""
SEPARATOR = 256


def job_of(folder: Path, *flags: str, weights: bool = False) -> Job:
    """Lines of two files, each a document of its own."""
    draw = random.Random(0)
    sources: list[str] = []
    for name, letters, weight in zip("ab", LETTERS, (3, 1), strict=True):
        lines = ["".join(draw.choices(letters, k=draw.randint(3, 14))) for _ in range(200)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
        weighed = f", weight: {weight}" if weights else ""
        sources.append(
            f"{{type: text, name: {name}, paths: ['{folder}/{name}.txt'], "
            f'separator: "\\n"{weighed}}}'
        )
    given = f"data.sources=[{', '.join(sources)}]"
    return small_job(folder, given, "evaluation=null", "data.held_out=0", "model.dropout=0", *flags)


def sources_of(batch: Batch) -> torch.Tensor:
    """The source of each target by its letter; a separator ends the document of its input."""
    letters = batch.targets.where((batch.targets != SEPARATOR) & (batch.targets >= 0), batch.inputs)
    return (letters >= ord("w")).long()


CASES = {
    "mixture": (("loss=chunked_cross_entropy", "loss.chunk_size=7"), True),
    "packed": (("data.packing.method=first_fit_decreasing",), False),
    "packed mixture": (("data.packing.method=next_fit", "loss=chunked_cross_entropy"), True),
    "weights": (("loss.z_loss=0.1", "loss.token_weights={98: 0.5, 120: 0}"), False),
    "imported": (("loss=import", "loss.target=torch.nn.CrossEntropyLoss"), False),
    "by a worker": (("data.loader.workers=1",), False),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_of_each_source(tmp_path: Path, name: str) -> None:
    """As the model in fp64 gives them, over two micro-batches."""
    flags, weights = CASES[name]
    job = job_of(tmp_path, *flags, weights=weights)
    components = build_components(job)
    model = deepcopy(components.model).double()
    loop = loop_of(job, components=components)
    taken, take = [], components.feed.take
    components.feed.take = lambda: taken.append(take()) or taken[-1]
    result = loop.step()
    components.feed.close()
    nats, targets, mixed = torch.zeros(2, dtype=torch.float64), torch.zeros(2), False
    for batch, count in zip(taken[0].batches, taken[0].counts, strict=True):
        where = {"positions": batch.positions, "documents": batch.documents}
        logits = model(batch.inputs, **{k: v for k, v in where.items() if v is not None})
        each = F.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
        valid = batch.targets >= 0 if count.valid is None else count.valid
        for number in range(2):
            own = (sources_of(batch) == number) & valid
            nats[number] += each[own].sum()
            targets[number] += own.sum()
        mixed = mixed or batch.sources is not None
    assert mixed == (not weights)
    assert list(result.by_source.targets) == targets.tolist() and min(targets) > 0
    assert sum(result.by_source.sequences) == job.batch.global_size
    torch.testing.assert_close(
        torch.tensor(result.by_source.nats).double(), nats, rtol=2e-6, atol=0
    )
    mean = sum(result.by_source.nats) / sum(result.by_source.targets)
    assert mean == pytest.approx(result.cross_entropy, rel=1e-6)


def test_they_change_no_number(tmp_path: Path) -> None:
    job = job_of(tmp_path, "loss=chunked_cross_entropy")
    found: list[tuple[float, float, float]] = []
    for several in (True, False):
        components = build_components(job)
        assert components.objective.loss.per_token
        components.objective.loss.per_token = several
        loop = loop_of(job, components=components)
        results = [loop.step() for _ in range(3)]
        assert all(bool(result.by_source.nats) == several for result in results)
        found += [tuple((each.loss, each.cross_entropy, each.grad_norm) for each in results)]
    assert found[0] == found[1]


def test_one_source_has_none(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    components = build_components(job)
    assert not components.objective.loss.per_token
    result = loop_of(job, components=components).step()
    assert result.by_source == BySource()
