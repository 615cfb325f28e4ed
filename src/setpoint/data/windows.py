"""Windows of a corpus: sequences for training and for evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from setpoint.config import SetpointError
from setpoint.data.store import Corpus, DataIdentity, gather
from setpoint.shapes.batch import IGNORE_INDEX, Batch, Lengths

NAMED = 3
"""Rows that a message names."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Windows of S + 1 tokens, of which the model reads S: `setpoint.data.sequences.Sequences`.

    Arguments:
        stride: tokens from the start of one to that of the next.
        count: how many there are; what the last one lacks is padded.
        isolated: whether a window tells the model its documents, and positions start anew in each.

    Raises:
        SetpointError: the sequence length is below 1.
    """

    corpus: Corpus
    sequence_length: int
    stride: int
    count: int
    isolated: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.sequence_length < 1:
            raise SetpointError(
                f"batch.sequence_length: {self.sequence_length} is below 1.\nValid: 1 or more."
            )

    @property
    def identity(self) -> DataIdentity:
        """What they are windows of."""
        return self.corpus.identity

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources; a window is from the source that its first target is from."""
        return self.corpus.sources

    def __len__(self) -> int:
        return self.count

    @property
    def epoch_rows(self) -> int:
        """Rows of an epoch."""
        return self.count

    @property
    def layout(self) -> str:
        """How rows are made of documents; metrics compare where it is equal."""
        return "isolated windows" if self.isolated else "windows"

    def rows(self, rows: npt.NDArray[np.int64]) -> Batch:
        """Some of them, (B,) numbers in 0 .. len - 1, as a batch."""
        return cut(self.corpus, rows * self.stride, self.sequence_length, self.isolated)

    def first(self, count: int | None) -> Corpus:
        """The tokens that the first windows of an evaluation read and predict, as a corpus."""
        corpus = self.corpus
        end = len(corpus.tokens) if count is None else count * self.stride + 1
        tokens = corpus.tokens[: min(end, len(corpus.tokens))]
        predicted = np.ones(len(tokens), np.bool_)
        if corpus.trained is not None:
            predicted = np.array(corpus.trained[: len(tokens)], np.bool_)
        predicted[0] = False
        return corpus.part(tokens, predicted)

    def describe(self, rows: npt.NDArray[np.int64]) -> str:
        """Which documents they begin in."""
        corpus = self.corpus
        starts = rows[:NAMED] * self.stride
        index = np.maximum(np.searchsorted(corpus.starts, starts + 1, "right") - 1, 0)
        places = zip(starts.tolist(), index.tolist(), strict=True)
        said = [f"{corpus.files[number].name} at token {start}" for start, number in places]
        more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
        return f"sequences of {corpus.side} from {', '.join(said)}{more}"

    def names_in(self, indices: npt.NDArray[np.int64]) -> list[list[str | None]]:
        """The name of the document of each token; a separator is its document's end."""
        positions = (indices * self.stride)[:, None] + np.arange(self.sequence_length + 1)
        files, last = self.corpus.files, len(self.corpus.tokens) - 1
        found = np.maximum(np.searchsorted(self.corpus.starts, positions, "right") - 1, 0)
        return [
            [files[number].name if at <= last else None for number, at in zip(*row, strict=True)]
            for row in zip(found.tolist(), positions.tolist(), strict=True)
        ]


def training_windows(corpus: Corpus, sequence_length: int, isolated: bool = False) -> Windows:
    """Cut a corpus into whole windows that do not overlap; what is left at its end is left out.

    Raises:
        SetpointError: the corpus is shorter than one window, or the sequence length is below 1.
    """
    width = sequence_length + 1
    count = len(corpus.tokens) // max(width, 1)
    windows = Windows(corpus, sequence_length, width, count, isolated=isolated)
    require_one_window(corpus, sequence_length)
    return windows


def evaluation_windows(corpus: Corpus, sequence_length: int, isolated: bool = False) -> Windows:
    """Cut a corpus into ceil((T - 1) / S) windows which predict every token but the first once.

    Neighbours share one token (the last target of one is the first input of the next), and the last
    one is padded.

    Raises:
        SetpointError: the sequence length is below 1.
    """
    count = -(-(len(corpus.tokens) - 1) // max(sequence_length, 1))
    return Windows(corpus, sequence_length, sequence_length, count, isolated=isolated)


def cut(
    corpus: Corpus,
    starts: npt.NDArray[np.int64],
    sequence_length: int,
    isolated: bool = False,
) -> Batch:
    """Cut windows of S + 1 tokens; a window that runs past the end of the corpus is padded.

    A separator among the inputs belongs to the document that it begins, so with `isolated`, too,
    each target is of the document of its input.

    Returns:
        the batch. Padding is the separator among the inputs and `IGNORE_INDEX` among the targets,
        and lies at the end, where causal attention lets no other position see it.
    """
    # A corpus ends in a separator, so repeating its last token pads, and adds no bytes.
    windows = gather(corpus.tokens, starts, sequence_length + 1)
    inputs, targets = windows[:, :-1].copy(), windows[:, 1:].copy()
    target_bytes = int(corpus.token_bytes.take(targets).sum())
    tokens = target_tokens = targets.size
    if (starts >= len(corpus.tokens) - sequence_length).any():
        positions = starts[:, None] + np.arange(sequence_length + 1)  # (B, S+1)
        beyond = positions > len(corpus.tokens) - 1
        targets[beyond[:, 1:]] = IGNORE_INDEX
        tokens -= int(beyond[:, :-1].sum())
        target_tokens -= int(beyond[:, 1:].sum())
    if corpus.trained is not None:
        skipped = gather(corpus.trained, starts, sequence_length + 1)[:, 1:] == 0
        target_bytes -= int(corpus.token_bytes[windows[:, 1:][skipped]].sum())
        targets[skipped] = IGNORE_INDEX
        target_tokens = int((targets != IGNORE_INDEX).sum())
    places = documents = None
    if isolated:
        used = np.minimum(len(corpus.tokens) - starts, sequence_length)
        places, documents = isolate(_begins(corpus, starts, sequence_length), used)
    sources = corpus.sources_along(starts + 1, sequence_length)
    return Batch(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        tokens=tokens,
        target_tokens=target_tokens,
        target_bytes=target_bytes,
        positions=places,
        documents=documents,
        lengths=Lengths.of_places(places, documents),
        source=torch.from_numpy(corpus.sources_at(starts + 1)),
        sources=None if sources is None else torch.from_numpy(sources),
    )


def _begins(
    corpus: Corpus, starts: npt.NDArray[np.int64], sequence_length: int
) -> npt.NDArray[np.bool_]:
    """(B, S) where a document begins, with the separator before it, or the window does."""
    begins = np.zeros((len(starts), sequence_length), np.bool_)
    begins[:, 0] = True
    # The first documents that begin within a window, and behind it.
    first = np.searchsorted(corpus.starts, starts + 1)
    behind = np.searchsorted(corpus.starts, starts + 1 + sequence_length)
    for row, start, a, b in zip(
        begins, starts.tolist(), first.tolist(), behind.tolist(), strict=True
    ):
        row[corpus.starts[a:b] - 1 - start] = True
    return begins


def isolate(
    begins: npt.NDArray[np.bool_], used: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions that start anew where documents begin, and documents counted from 0 in each row.

    Arguments:
        begins: (B, S) where a document begins.
        used: (B,) tokens of each row; what is behind them is padding, and -1 in both.
    """
    places = np.arange(begins.shape[1])
    positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    documents = np.cumsum(begins, axis=1) - 1
    padding = places >= used[:, None]
    positions[padding] = documents[padding] = -1
    return torch.from_numpy(positions), torch.from_numpy(documents)


def require_one_window(corpus: Corpus, sequence_length: int) -> None:
    """Refuse training text that is shorter than one window.

    Raises:
        SetpointError: T < S + 1, with the sequence lengths that fit.
    """
    have, need = len(corpus.tokens), sequence_length + 1
    if have >= need:
        return
    # That of one source of a mixture may be short where the others are not.
    named = len(corpus.sources) == 1 and corpus.sources != (corpus.side,)
    of = f" of '{corpus.sources[0]}'" if named else ""
    count = len(corpus.files)
    documents = f"{count} document" + "s" * (count != 1)
    raise SetpointError(
        f"batch.sequence_length: {sequence_length} needs {need} tokens for one window, and the "
        f"training side{of} has {have} ({documents}, {corpus.byte_count} bytes).\n"
        f"Valid: batch.sequence_length up to {have - 1}, or more text in data.sources."
    )
