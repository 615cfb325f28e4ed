"""The data sets of evaluation beside the held-out part of the run's own data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from setpoint.data.prepared.use import named_corpus
from setpoint.track.progress import Work, no_work
from setpoint.train.build.data import build_evaluation_rows

if TYPE_CHECKING:
    from setpoint.data.evaluation import EvaluationRows
    from setpoint.data.sequences import Sequences
    from setpoint.data.tokenizers.tokenizer import Tokenizer
    from setpoint.train.config import Job


COMPARED = 10_000_000
"""Documents up to which it is looked up whether a text is trained on as well."""


def build_datasets(
    job: Job, tokenizer: Tokenizer, show: Work = no_work
) -> dict[str, EvaluationRows]:
    """Read and tokenize them, whole.

    Returns:
        each by its name, in the order given; empty without an evaluation.

    Raises:
        SetpointError: a source cannot be read, a text is empty, or none of its documents is left.
    """
    built: dict[str, EvaluationRows] = {}
    section = job.evaluation
    for index, each in enumerate(section.datasets if section is not None else ()):
        where = f"evaluation.datasets.{index}.sources"
        corpus = named_corpus(
            each.name, each.sources, tokenizer, job.data.prepare, where=where, show=show
        )
        built[each.name] = build_evaluation_rows(job, corpus, each.sources)
    return built


def trained_on(train: Sequences, datasets: Mapping[str, Sequences]) -> Iterator[str]:
    """Look for documents that are both evaluated and trained on."""
    if not datasets:
        return
    if train.identity.tokens is None:
        yield "evaluation: whether its texts are trained on is not looked up in streamed data"
        return
    if len(train.identity.files) > COMPARED:
        yield (
            f"evaluation: whether its texts are trained on is not looked up in "
            f"{len(train.identity.files):,} documents, more than {COMPARED:,}"
        )
        return
    known = {file.sha256 for file in train.identity.files}
    for name, each in datasets.items():
        files = each.identity.files
        shared = [file for file in files if file.sha256 in known]
        if shared:
            yield (
                f"caution: {len(shared):,} of {len(files):,} evaluated documents of {name} "
                f"are also trained on, such as {shared[0].name}"
            )
