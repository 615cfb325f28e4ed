"""Workers change nothing but who makes the rows; their faults name what they were making."""

import errno
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import RunError, SetpointError
from setpoint.data.config import WorkerOptions
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.loader import Feed, SentBatch
from setpoint.data.order import MixtureSchedule, Sampler, Shares
from setpoint.data.rows import DocumentRows, MixedSequences, RowOrder, training_rows
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.shapes.batch import Batch, Count
from setpoint.train.build.components import build_components

from ..support.snapshots import refused
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

    def batch_of(self, rows: Any) -> Batch:
        if self.wrong in (rows.starts // 9).tolist():
            self.fault()
        return DocumentRows.batch_of(self, rows)


@pytest.fixture
def feeds() -> Iterator[Any]:
    made: list[Feed] = []

    def make(workers: int, sequences: DocumentRows | None = None, **options: Any) -> Feed:
        sequences = sequences or windows()
        sampler = Sampler([RowOrder(sequences, 5)])
        given = {name: options.pop(name) for name in ("prefetch", "timeout") if name in options}
        options = {"micro_size": 3, "accumulation": 2} | options
        loader = WorkerOptions(workers, **given)
        made.append(Feed(sequences, sampler, count, loader=loader, **options))
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
    assert alone.spent.batches == 50 and min(alone.spent.making, helped.spent.making) > 0
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.rand(1) == after  # the generator that dropout uses was left alone


def test_a_closed_feed_goes_on_behind_what_was_taken(feeds: Any) -> None:
    expected, feed = inputs(feeds(0), 6), feeds(2)
    assert inputs(feed, 3) == expected[:3]
    feed.close()
    assert inputs(feed, 3) == expected[3:]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise SetpointError("data.sources: the shard is truncated.")


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
        (refuse, SetpointError, r"the shard is truncated.*It was read for"),
        (divide, RunError, r"failed in a worker:.*ZeroDivisionError: in a row"),
        (lambda: time.sleep(HANG), RunError, r"data.loader.timeout: no rows came within 2 seconds"),
    ],
)
def test_a_fault_in_a_worker_names_the_rows(feeds: Any, fault: Any, kind: Any, words: str) -> None:
    good = windows()
    # A worker may take seconds to start on a busy machine: only the row that hangs is timed.
    feed = feeds(2, Faulty(good, 40, fault), timeout=2.0 if "timeout" in words else HANG)
    began = time.monotonic()
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        inputs(feed, 30)
    assert good.corpus.files[3].name in str(caught.value)
    assert time.monotonic() - began < HANG / 5


def test_a_death_shortly_before_the_timeout_is_a_death(feeds: Any) -> None:
    def die_late() -> None:
        time.sleep(1.5)
        die()

    with pytest.raises(RunError, match="a worker process ended: [0-9]+ by SIGKILL"):
        inputs(feeds(1, Faulty(windows(), 40, die_late), timeout=2.0), 30)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_planning_comes_as_it_is_after_all_batches(
    feeds: Any, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    feed = feeds(workers, accumulation=1)
    take, planned = feed.sampler.take, iter(range(3))

    def fail_after_three(*arguments: Any) -> Any:
        if next(planned, None) is None:
            raise TimeoutError("The read operation timed out")
        return take(*arguments)

    monkeypatch.setattr(feed.sampler, "take", fail_after_three)
    assert len(inputs(feed, 3)) == 3
    with pytest.raises(TimeoutError, match="The read operation timed out"):
        feed.take()


def test_a_worker_killed_in_the_middle_of_a_message_is_noticed(feeds: Any) -> None:
    feed = feeds(1, micro_size=3000, timeout=HANG)  # 200 kB, more than a pipe takes at once
    feed.take()
    (worker,) = multiprocessing.active_children()
    time.sleep(0.5)  # the next message fills the pipe
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(10)
    with pytest.raises(RunError, match=f"{worker.pid} by SIGKILL, which the system sends when"):
        feed.take()


def test_a_stream_that_ends_gives_what_comes_before(feeds: Any) -> None:
    whole = windows()
    mixture = MixedSequences(["t"], [whole])
    sampler = Sampler(
        [RowOrder(whole, 5, "t")], MixtureSchedule(("t",), [Shares(0, (1.0,))], [12], 100)
    )
    feed = Feed(mixture, sampler, count, micro_size=3, loader=WorkerOptions(2))
    try:
        assert len(inputs(feed, 4)) == 4
        with refused():
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

    def failing(process: Any) -> None:
        if started:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        started.append(process)
        start(process)

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", failing)
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


def counting_corpus(size: int) -> Corpus:
    """Bytes in which any three neighbours are unique, so a window is known by its content."""
    text = bytes(itertools.chain.from_iterable((i // 200, i % 200) for i in range(size)))[:size]
    return build_corpus([Document("t/a", text)], ByteTokenizer(), side="train")


def feed_of(corpus: Corpus, *, sequence_length: int, seed: int, **options: int) -> Feed:
    windows = training_rows(corpus, sequence_length)
    return Feed(windows, Sampler([RowOrder(windows, seed)]), count, **options)


def batches_of(feed: Feed) -> Iterator[Batch]:
    while True:
        yield from feed.take().batches


def rows(loader: Feed, steps: int) -> list[tuple[int, ...]]:
    """The windows of the next batches, whole: the inputs and the last target."""
    found: list[tuple[int, ...]] = []
    for batch in itertools.islice(batches_of(loader), steps):
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        whole = torch.cat([batch.inputs, batch.targets[:, -1:]], dim=1)
        found += [tuple(row) for row in whole.tolist()]
    return found


def all_windows(corpus: Corpus, sequence_length: int) -> list[tuple[int, ...]]:
    tokens, width = corpus.tokens.tolist(), sequence_length + 1
    return [tuple(tokens[i : i + width]) for i in range(0, len(tokens) - width + 1, width)]


@given(
    size=st.integers(40, 400),
    sequence_length=st.integers(3, 20),
    micro_size=st.integers(1, 7),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=30, deadline=None)
def test_every_epoch_holds_every_window_once(
    size: int, sequence_length: int, micro_size: int, seed: int
) -> None:
    corpus = counting_corpus(size)
    expected = sorted(all_windows(corpus, sequence_length))
    loader = feed_of(corpus, sequence_length=sequence_length, micro_size=micro_size, seed=seed)
    assert len(loader.sequences) == len(expected)
    stream = rows(loader, 3 * len(expected))  # at least three epochs, batches crossing their ends
    for epoch in range(3):
        part = stream[epoch * len(expected) : (epoch + 1) * len(expected)]
        assert sorted(part) == expected


def test_the_order_of_a_seed_never_changes() -> None:
    # Checkpoints hold a position in this order: if it changed, old runs could not be resumed.
    corpus = counting_corpus(78)
    windows = all_windows(corpus, 9)
    loader = feed_of(corpus, sequence_length=9, micro_size=1, seed=1234)
    found = [windows.index(row) for row in rows(loader, 16)]
    assert found == [7, 2, 3, 4, 5, 6, 1, 0, 0, 6, 3, 4, 2, 1, 7, 5]


def test_epoch_counts_passes_with_their_fraction() -> None:
    loader = feed_of(counting_corpus(78), sequence_length=9, micro_size=3, seed=0)
    assert len(loader.sequences) == 8
    progress = [loader.epoch]
    for _ in range(3):
        loader.take()
        progress.append(loader.epoch)
    assert progress == [0.0, 0.375, 0.75, 1.125]
    state = loader.state_dict()["sources"][""]
    assert (state["taken"], state["epoch"], state["epoch_row"]) == (9, 1, 1)


def test_each_micro_batch_is_counted_by_itself() -> None:
    def first_tokens(batch: Batch) -> Count:
        number = 1 + int(batch.inputs.sum())
        return Count(number, number, float(number))

    sequences = training_rows(counting_corpus(300), 9)
    sampler = Sampler([RowOrder(sequences, 4)])
    step = Feed(sequences, sampler, first_tokens, micro_size=1, accumulation=3).take()
    expected = [first_tokens(batch) for batch in step.batches]
    assert len(set(expected)) == 3 and list(step.counts) == expected
    assert step.rank_total.tokens == sum(each.tokens for each in expected)


@pytest.mark.parametrize("change", [{"size": 401}, {"sequence_length": 8}, {"seed": 1}], ids=str)
def test_a_state_of_another_stream_is_refused(change: dict[str, int]) -> None:
    def make(size: int = 400, sequence_length: int = 9, seed: int = 0) -> Feed:
        return feed_of(
            counting_corpus(size), sequence_length=sequence_length, micro_size=2, seed=seed
        )

    old, new = make(), make(**change)
    new.take()
    before = new.state_dict()
    with refused():
        new.load_state_dict(old.state_dict())
    assert new.state_dict() == before


def test_other_text_of_the_same_size_is_refused(corpus_of: Callable[..., Corpus]) -> None:
    old, new = (
        feed_of(corpus_of(text), sequence_length=2, micro_size=1, seed=0)
        for text in (b"abcdef", b"abcdeg")
    )
    with refused():
        new.load_state_dict(old.state_dict())


def test_a_corpus_shorter_than_a_row_is_refused() -> None:
    corpus = counting_corpus(20)  # 22 tokens
    feed_of(corpus, sequence_length=21, micro_size=1, seed=0)
    with refused():
        feed_of(corpus, sequence_length=22, micro_size=1, seed=0)


def test_ranks_together_are_one_rank_with_a_larger_batch() -> None:
    corpus, data_size = counting_corpus(500), 3
    one = feed_of(corpus, sequence_length=7, micro_size=2 * data_size, seed=5)
    ranks = [
        feed_of(
            corpus, sequence_length=7, micro_size=2, seed=5, data_rank=rank, data_size=data_size
        )
        for rank in range(data_size)
    ]
    for _ in range(2 * len(one.sequences)):
        together = torch.cat([rank.take().batches[0].inputs for rank in ranks])
        assert torch.equal(together, one.take().batches[0].inputs)
        assert all(rank.state_dict() == one.state_dict() for rank in ranks)
