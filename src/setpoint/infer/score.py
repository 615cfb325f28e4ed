"""How well a model predicts texts."""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from setpoint.config import RunError, resolve
from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import EvaluationFeed
from setpoint.data.loader import loader_options
from setpoint.data.prepared.use import named_corpus
from setpoint.data.windows import evaluation_windows
from setpoint.infer.config import Inference
from setpoint.infer.load import Loaded
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy
from setpoint.loss.figures import bits_per_byte, perplexity
from setpoint.model.layers import evaluating
from setpoint.shapes.batch import Batch
from setpoint.shapes.outcome import Projection, supports_head, takes_documents
from setpoint.track.progress import Work, no_work


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts a text.

    Arguments:
        loss: mean cross-entropy over tokens, in nats.
        perplexity: exp(loss), as it is, without an upper limit.
        bits_per_byte: all bits, those of separators too, over the bytes of the text.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int


def score_texts(loaded: Loaded, job: Inference, show: Work = no_work) -> dict[str, Score]:
    """Evaluate a model on all texts of a job.

    Arguments:
        job: complete and resolved; its evaluation is not null.

    Raises:
        SetpointError: a text cannot be read.
        RunError: a loss is no finite number.
    """
    assert job.evaluation is not None
    return {
        name: score(
            loaded,
            corpus,
            sequence_length=job.batch.sequence_length,
            micro_size=job.batch.micro_size,
            sequences=job.evaluation.sequences,
            isolated=job.data.packing.isolate,
            name=name,
            show=show,
            loader=loader_options(job.data.loader.of_evaluation, loaded.device),
        )
        for name, corpus in corpora(loaded, job, show)
    }


def corpora(loaded: Loaded, job: Inference, show: Work = no_work) -> Iterator[tuple[str, Corpus]]:
    """The texts of a job, tokenized, one after the other.

    Arguments:
        job: complete and resolved; its evaluation is not null.

    Raises:
        SetpointError: a text cannot be read, or is empty.
    """
    assert job.evaluation is not None
    if job.evaluation.sides:
        train, held_out = job.data.build(tokenizer=loaded.tokenizer, show=show)
        for side in job.evaluation.sides:
            corpus = train[0] if side == "train" else held_out
            assert isinstance(corpus, Corpus), "the configuration is refused otherwise"
            yield side, corpus
    for index, each in enumerate(job.evaluation.sets):
        where = f"evaluation.sets.{index}.sources"
        corpus = named_corpus(
            each.name, each.sources, loaded.tokenizer, job.data.prepare, where=where, show=show
        )
        yield each.name, corpus


def score(
    loaded: Loaded,
    corpus: Corpus,
    *,
    sequence_length: int,
    micro_size: int,
    sequences: int | None = None,
    isolated: bool = False,
    name: str = "the text",
    show: Work = no_work,
    loader: Mapping[str, Any] | None = None,
) -> Score:
    """Evaluate a model on a text; every token counts, each exactly once.

    Arguments:
        sequence_length: tokens that the model sees at once; a shorter text is one sequence.
        sequences: how many to evaluate, from the start; None: all.
        isolated: whether each document is read by itself.
        name: of the text, for errors and `show`.
        loader: options of `EvaluationFeed`; None: the batches are made here.

    Raises:
        RunError: the loss is no finite number.
    """
    nats, tokens, size, done = 0.0, 0, 0, 0
    sequence_length = min(sequence_length, len(corpus.tokens) - 1)
    windows = evaluation_windows(corpus, sequence_length, isolated)
    feed = EvaluationFeed({name: (windows, sequences)}, micro_size=micro_size, **(loader or {}))
    total, what = feed.totals[name], f"evaluating {name}, sequences"
    with closing(feed), evaluating(loaded.model), torch.no_grad():
        for batch in feed.batches(name):
            show(what, done, total)
            moved = batch.to(loaded.device)
            with loaded.computing():
                nats += _nats(loaded.model, moved)
            tokens += batch.target_tokens
            size += batch.target_bytes
            done += len(batch.inputs)
    show(what, total, total)
    loss = nats / tokens
    if not loss < math.log(torch.finfo(torch.float64).max):
        raise RunError(
            f"the loss on {name} is {loss}, which has no perplexity: the weights are broken, or "
            f"the format {loaded.compute} is too narrow for them"
        )
    if not size:
        raise RunError(f"the {tokens} tokens of {name} stand for no bytes")
    return Score(loss, perplexity(loss), bits_per_byte(nats, size), tokens, size)


def _nats(model: torch.nn.Module, batch: Batch) -> float:
    """The sum of the cross-entropy; logits of all tokens are held only if the model gives them.

    Raises:
        RunError: documents are to be isolated, and the model does not take them.
    """
    targets = batch.targets
    places = {"positions": batch.positions, "documents": batch.documents}
    given = {name: each for name, each in places.items() if each is not None}
    if not supports_head(model):
        if given and not takes_documents(model):
            raise RunError(
                f"data.packing.isolate = true needs a model that takes documents, and a "
                f"{type(model).__name__} takes tokens alone; set it to false"
            )
        return float(_PLAIN(model(batch.inputs, **given), targets).nats)

    def head(hidden: Tensor, projection: Projection) -> Any:
        return _CHUNKED.from_hidden(hidden, projection, targets)

    return float(model(batch.inputs, **given, head=head).result.nats)


_PLAIN = resolve(CrossEntropy()).build()
_CHUNKED = resolve(ChunkedCrossEntropy()).build()
