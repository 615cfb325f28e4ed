"""How much data a job has: documents, lengths, tokens, shares, and what is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from setpoint.data.corpus import Corpus

PERCENTILES = (5, 25, 50, 75, 95, 99)


def lengths_of(corpus: Corpus) -> npt.NDArray[np.int64]:
    """(documents,) tokens of each document, without separators."""
    ends = np.append(corpus.starts[1:], len(corpus.tokens)) - 1
    return ends - corpus.starts


def trained_tokens(corpus: Corpus) -> npt.NDArray[np.int64]:
    """(documents,) tokens of each document that are targets, its separator not counted."""
    lengths = lengths_of(corpus)
    if corpus.trained is None:
        return lengths
    return np.array(
        [
            int(np.count_nonzero(corpus.trained[int(start) : int(start + length)]))
            for start, length in zip(corpus.starts, lengths, strict=True)
        ],
        np.int64,
    )


def text_bytes(corpus: Corpus, mine: npt.NDArray[np.bool_]) -> int:
    """Bytes of text that the tokens of some documents stand for."""
    ends = corpus.starts + lengths_of(corpus)
    spans = zip(corpus.starts[mine].tolist(), ends[mine].tolist(), strict=True)
    return sum(int(corpus.token_bytes[corpus.tokens[start:end]].sum()) for start, end in spans)


def source_stats(
    corpora: Sequence[Corpus], names: Sequence[str], sequence_length: int
) -> list[dict[str, Any]]:
    """The facts of each source on one side, in the order of `names`.

    Arguments:
        corpora: of the side; a source may have one of its own, or share one.
    """
    whole = sum(int(lengths_of(corpus).sum()) for corpus in corpora)
    found: list[dict[str, Any]] = []
    for name in names:
        lengths, trained, size, hashes = [], 0, 0, list[str]()
        for corpus in corpora:
            if name not in corpus.sources:
                continue
            mine = corpus.source == corpus.sources.index(name)
            lengths.append(lengths_of(corpus)[mine])
            trained += int(trained_tokens(corpus)[mine].sum())
            files = [corpus.files[int(index)] for index in np.flatnonzero(mine)]
            size += text_bytes(corpus, mine)
            hashes += [file.sha256 for file in files]
        joined = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        tokens = int(joined.sum())
        found.append(
            {
                "source": name,
                "documents": len(joined),
                "bytes": size,
                "tokens": tokens,
                "trained_tokens": trained,
                "share": tokens / whole if whole else 0.0,
                "lengths": percentiles(joined),
                "longer_than_sequence": int((joined > sequence_length).sum()),
                "duplicates": len(hashes) - len(set(hashes)),
            }
        )
    return found


def percentiles(lengths: npt.NDArray[np.int64]) -> dict[str, float]:
    """The mean, the least, the most, and what is between, in tokens; empty without documents."""
    if not len(lengths):
        return {}
    between = np.percentile(lengths, PERCENTILES)
    return {
        "mean": float(lengths.mean()),
        "min": int(lengths.min()),
        **{f"p{p}": float(value) for p, value in zip(PERCENTILES, between, strict=True)},
        "max": int(lengths.max()),
    }


def duplicates(corpora: Sequence[Corpus], other: Corpus | None) -> dict[str, Any]:
    """Documents that are there more than once, by the hash of their content.

    Arguments:
        corpora: the training side.
        other: the held-out side, whose documents may be trained on as well.

    Returns:
        `groups` of equal documents, `documents` that could be left out, `examples` of names, and
        how many of the held-out side are `held_out` ones that are trained on.
    """
    files = [file for corpus in corpora for file in corpus.files]
    counts = Counter(file.sha256 for file in files)
    twice = {digest for digest, count in counts.items() if count > 1}
    names: dict[str, list[str]] = {}
    for file in files:
        if file.sha256 in twice and (len(names) < 3 or file.sha256 in names):
            names.setdefault(file.sha256, []).append(file.name)
    leaked = [file for file in other.files if file.sha256 in counts] if other else []
    return {
        "groups": len(twice),
        "documents": sum(counts[digest] - 1 for digest in twice),
        "examples": [group[:3] for group in names.values()],
        "held_out_in_training": len(leaked),
    }


def histogram(lengths: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Documents by length, in classes that double: (from, up to, documents) each."""
    if not len(lengths):
        return []
    classes = np.frexp(np.maximum(lengths, 0))[1]  # 0: 0; 1: 1; 2: 2 and 3; 3: 4 to 7
    counts = np.bincount(classes)
    first = int(np.flatnonzero(counts)[0])
    return [
        (0 if at == 0 else 1 << (at - 1), 0 if at == 0 else (1 << at) - 1, int(count))
        for at, count in enumerate(counts.tolist())
        if at >= first
    ]
