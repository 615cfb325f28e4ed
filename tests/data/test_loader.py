"""Workers change nothing but who makes the rows; their faults name what they were making."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from setpoint.config import RunError, SetpointError
from setpoint.data.corpus import build_corpus
from setpoint.data.document import Document
from setpoint.data.loader import Feed, SentBatch
from setpoint.data.order import RowOrder
from setpoint.data.rows import DocumentRows, MixedSequences, training_rows
from setpoint.data.sampler import EpochCursor, MixtureSchedule, Sampler, Shares
from setpoint.data.tokenizers.tokenizer import ByteTokenizer
from setpoint.shapes.batch import Batch, Count
from setpoint.train.build.components import build_components

from ..train.small import small_job

HANG = 300


def count(batch: Batch) -> Count:
    return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))


def windows() -> DocumentRows:
    text = bytes(np.random.default_rng(0).integers(0, 256, 900, np.uint8))
    documents = [Document(f"t/{k}", text[k * 90 : k * 90 + 90]) for k in range(10)]
    return training_rows(build_corpus(documents, ByteTokenizer(), side="train"), 8)


class Faulty(DocumentRows):
    """Rows one of which cannot be made."""

    def __init__(self, good: DocumentRows, wrong: int, fault: Any) -> None:
        super().__init__(good.corpus, 8, numbered=good.numbered, count=len(good))
        self.wrong, self.fault = wrong, fault

    def rows(self, rows: Any) -> Batch:
        if self.wrong in (rows.starts // 9).tolist():
            self.fault()
        return DocumentRows.rows(self, rows)


@pytest.fixture
def feeds() -> Iterator[Any]:
    made: list[Feed] = []

    def make(workers: int, sequences: DocumentRows | None = None, **options: Any) -> Feed:
        sequences = sequences or windows()
        sampler = Sampler([EpochCursor(sequences, RowOrder(sequences, 5))])
        options = {"micro_size": 3, "accumulation": 2} | options
        made.append(Feed(sequences, sampler, count, workers=workers, **options))
        return made[-1]

    yield make
    for feed in made:
        feed.close()


def inputs(feed: Feed, steps: int) -> list[Any]:
    return [[each.inputs.tolist() for each in feed.take().batches] for _ in range(steps)]


def test_the_stream_and_its_state_are_those_without_workers(feeds: Any) -> None:
    torch.manual_seed(3)
    alone, helped = feeds(0), feeds(2, prefetch=3)
    for _ in range(25):
        assert inputs(alone, 1) == inputs(helped, 1)
        assert (alone.state_dict(), alone.epoch) == (helped.state_dict(), helped.epoch)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.rand(1) == after  # the generator that dropout uses was left alone


@pytest.mark.parametrize("workers", [0, 1])
def test_what_batches_cost_is_measured(feeds: Any, workers: int) -> None:
    good = windows()
    wait = lambda: time.sleep(0.2)  # noqa: E731
    feed = feeds(workers, Faulty(good, 40, wait), micro_size=100)
    feed.take()  # of two micro-batches, that is, of an epoch and more
    assert feed.spent.batches == 2
    assert 0.2 <= feed.spent.making < 100 and 0 < feed.spent.planning < 100


@pytest.mark.parametrize(("first", "then"), [(2, 1), (2, 0), (0, 2)])
def test_resumed_with_another_number_of_workers(feeds: Any, first: int, then: int) -> None:
    expected = inputs(feeds(0), 9)
    feed = feeds(first)
    assert inputs(feed, 4) == expected[:4]
    state = json.loads(json.dumps(feed.state_dict()))
    resumed = feeds(then, micro_size=6, accumulation=1)
    resumed.load_state_dict(state)
    assert [batch[0] for batch in inputs(resumed, 5)] == [
        [row for batch in step for row in batch] for step in expected[4:]
    ]


def test_a_closed_feed_goes_on_behind_what_was_taken(feeds: Any) -> None:
    expected, feed = inputs(feeds(0), 6), feeds(2)
    assert inputs(feed, 3) == expected[:3]
    feed.close()
    assert inputs(feed, 3) == expected[3:]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise SetpointError("data.sources: the shard is cut short.")


def divide() -> None:
    raise ZeroDivisionError("in a row")


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (
            die,
            RunError,
            r"a worker process ended: [0-9]+ by SIGKILL, which .*Worker [0-9]+ was making",
        ),
        (refuse, SetpointError, r"the shard is cut short.*It was read for"),
        (divide, RunError, r"failed in a worker:.*ZeroDivisionError: in a row"),
        (lambda: time.sleep(HANG), RunError, r"data.loader.timeout: no rows came within 2 seconds"),
    ],
)
def test_a_fault_in_a_worker_names_the_rows(feeds: Any, fault: Any, kind: Any, words: str) -> None:
    good = windows()
    sequences = Faulty(good, 40, fault)
    # A worker may take seconds to start on a busy machine: only the row that hangs is timed.
    feed = feeds(2, sequences, timeout=2.0 if "timeout" in words else 60.0)
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        inputs(feed, 30)
    assert good.corpus.files[3].name in str(caught.value)


def test_a_stream_that_ends_gives_what_comes_before(feeds: Any) -> None:
    whole = windows()
    mixture = MixedSequences(["t"], [whole])
    sampler = Sampler(
        [EpochCursor(whole, RowOrder(whole, 5, "t"))],
        MixtureSchedule(("t",), [Shares(0, (1.0,))], [12], 100),
    )
    feed = Feed(mixture, sampler, count, micro_size=3, workers=2)
    try:
        assert len(inputs(feed, 4)) == 4
        with pytest.raises(SetpointError, match="as often as its epochs allow, after 12"):
            feed.take()
    finally:
        feed.close()


def test_a_loader_of_torch_that_ran_before_changes_nothing(feeds: Any) -> None:
    """Its handler of ended processes stays, and would raise wherever the main process is."""
    list(torch.utils.data.DataLoader([1, 2], num_workers=1))
    feed = feeds(1)
    feed.take()
    handler = signal.getsignal(signal.SIGCHLD)
    assert not getattr(handler, "__module__", "").startswith("torch")


def test_a_worker_that_hangs_does_not_outlast_its_loader(
    feeds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the process would wait for it, and it hears no signal that it could answer."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.05)
    feed = feeds(workers=1)
    feed.take()
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    feed.close()
    worker.join(10)
    assert worker.exitcode == -signal.SIGKILL


# PyTorch's iterator, half made, complains when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_of_a_loader_that_cannot_start_all_of_them_are_ended(
    feeds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = multiprocessing.Process.start, list[Any]()

    def refused(process: Any) -> None:
        if started:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        started.append(process)
        start(process)

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refused)
    with pytest.raises(RunError, match="worker processes cannot be started"):
        feeds(workers=2).take()
    started[0].join(10)
    assert started[0].exitcode == -signal.SIGKILL


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
