"""Evaluation: the loss of a model on texts."""

import math
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setpoint.checkpoint.places import CHECKPOINTS
from setpoint.config import RunError, load_record, resolve, to_plain
from setpoint.data.config import Packing, WorkerOptions
from setpoint.data.corpus import Corpus
from setpoint.data.loader import NO_WORKERS, EvaluationFeed
from setpoint.data.packing import evaluation_rows
from setpoint.data.sides import named_corpus
from setpoint.files.atomic import read_json
from setpoint.infer.config import Inference
from setpoint.infer.distributed import ModelRunner
from setpoint.infer.loaded_model import LoadedModel
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy
from setpoint.model.build import evaluating
from setpoint.model.config import marks_padding
from setpoint.model.pretrained.locate import Place
from setpoint.shapes.batch import Batch, Count
from setpoint.shapes.outcome import Projection, position_arguments, takes_documents
from setpoint.shapes.protocols import Work, no_work
from setpoint.shapes.scoring import EvalSums, Score, score_text
from setpoint.track.config import ENVIRONMENT
from setpoint.train.config import Job

WINDOWS = resolve(Packing(method="concatenate"))
MULTIPLE = 128
"""Padding multiple for rows of documents: a block of FlexAttention."""


class EvaluatedText(NamedTuple):
    """A text of an inference job, with the packing of its documents."""

    name: str
    corpus: Corpus
    packing: Packing


def score_texts(loaded: LoadedModel, job: Inference, show: Work = no_work) -> dict[str, Score]:
    """Evaluate a model on all texts of a job.

    Arguments:
        job: complete and resolved; its evaluation is not null.

    Raises:
        SetpointError: a text cannot be read.
        RunError: a loss is not finite.
    """
    assert job.evaluation is not None
    return {
        name: score(
            loaded,
            corpus,
            sequence_length=job.batch.sequence_length,
            micro_size=job.batch.micro_size,
            sequences=job.evaluation.sequences,
            packing=packing,
            marked=marks_padding(job.model),
            name=name,
            show=show,
            loader=job.data.loader.of_evaluation.on(loaded.device.type),
        )
        for name, corpus, packing in texts(loaded, job, show)
    }


def texts(loaded: LoadedModel, job: Inference, show: Work = no_work) -> Iterator[EvaluatedText]:
    """Tokenized texts of a job, one after another.

    Arguments:
        job: complete and resolved; its evaluation is not null.

    Raises:
        SetpointError: a text cannot be read, or is empty.
    """
    assert job.evaluation is not None
    data = job.data
    if job.evaluation.sides:
        train, held_out = data.build(tokenizer=loaded.tokenizer, show=show)
        if "held_out" in job.evaluation.sides and loaded.runner.world.is_main:
            _print_changes(loaded.place, job, held_out)
        for side in job.evaluation.sides:
            corpora, sources = (
                (train, data.sources)
                if side == "train"
                else ((held_out,), data.validation or data.sources)
            )
            for corpus in corpora:  # one per source in the training data of a mixture
                assert isinstance(corpus, Corpus), "the configuration is refused otherwise"
                name = f"stdlib:{side}" if job.data_is_unknown else side
                name += f":{corpus.sources[0]}" if len(corpora) > 1 else ""
                yield EvaluatedText(name, corpus, data.packing_of(sources))
    for index, data_set in enumerate(job.evaluation.sets):
        where = f"evaluation.sets.{index}.sources"
        corpus = named_corpus(
            data_set.name, data_set.sources, loaded.tokenizer, data.prepare, where=where, show=show
        )
        yield EvaluatedText(data_set.name, corpus, data.packing_of(data_set.sources))


def _print_changes(place: Place, job: Inference, held_out: Corpus | None) -> None:
    """Caution that the held-out documents of a run are no longer those of its training."""
    folder = place.directory.parent
    path = folder.parent / ENVIRONMENT
    if not (place.is_checkpoint and folder.name == CHECKPOINTS and path.is_file()):
        return
    recorded = (read_json(path).get("data") or {}).get("held_out")
    given, own = to_plain(job.data), load_record(Job, str(place.directory)).values["data"]
    same_fields = all(given[name] == own[name] for name in ("sources", "validation", "held_out"))
    if same_fields and recorded and held_out and recorded["digest"] != held_out.identity.digest:
        sys.stderr.write(
            "caution: held_out differs from the held-out text of the run: its files have changed\n"
        )


def score(
    loaded: LoadedModel,
    corpus: Corpus,
    *,
    sequence_length: int,
    micro_size: int,
    sequences: int | None = None,
    packing: Packing = WINDOWS,
    marked: bool = False,
    name: str = "the text",
    show: Work = no_work,
    loader: WorkerOptions = NO_WORKERS,
) -> Score:
    """Evaluate a model on a text; each trained token counts once.

    Arguments:
        sequence_length: tokens that the model sees at once; a shorter stream is one sequence.
        sequences: number of sequences to evaluate, from the start; None: all.
        packing: packing of documents into rows.
        marked: see `evaluation_rows`.
        name: name of the text, for errors and `show`.
        loader: options of worker processes; by default there are none.

    Raises:
        SetpointError: no document is left, or one is too long, which the section treats as an
            error.
        RunError: the loss is not finite, or the model does not support documents.
    """
    model, runner, world = loaded.model, loaded.runner, loaded.runner.world
    isolates = takes_documents(model)
    if packing.method == "concatenate":
        sequence_length = min(sequence_length, len(corpus.tokens) - 1)
        if packing.isolate and not isolates:
            raise RunError(
                f"data.packing.isolate = true needs a model that accepts documents, but a "
                f"{type(model).__name__} accepts only tokens; set it to false"
            )
    rows = evaluation_rows(
        corpus, packing, sequence_length, isolates=isolates, marked=marked, multiple=MULTIPLE
    )
    if rows.note and world.is_main:
        sys.stderr.write(f"{name}: {rows.note}\n")
    feed = EvaluationFeed(
        {name: (rows, sequences)},
        micro_size=micro_size,
        data_rank=world.data_rank,
        data_size=world.data_size,
        loader=loader,
    )

    def sums(batch: Batch, valid: Tensor | None) -> EvalSums:
        with loaded.computing():
            return EvalSums(_nats(runner, batch), None)

    with closing(feed), evaluating(model), torch.no_grad():
        result = score_text(
            feed,
            name,
            count=lambda batch: Count(
                batch.tokens, batch.target_tokens, float(batch.target_tokens)
            ),
            sums=sums,
            token_bytes=loaded.tokenizer.token_bytes,
            ranks=world,
            sequence=runner.sequence,
            show=show,
        )
    if not result.loss < math.log(torch.finfo(torch.float64).max):
        raise RunError(
            f"the loss on {name} is {result.loss}, so there is no perplexity: the weights are "
            f"damaged, or the range of {loaded.compute} is too small for them"
        )
    return result


def _nats(runner: ModelRunner, batch: Batch) -> Tensor:
    """Sum of the cross-entropy; all logits are materialized only if the model supports no head.

    Returns:
        0 on ranks without the last layers.
    """
    given = position_arguments(runner.model, batch)
    if not runner.has_head:
        return _PLAIN(runner(batch.inputs, **given), batch.targets).nats

    def head(hidden: Tensor, projection: Projection) -> Any:
        return _CHUNKED.from_hidden(hidden, projection, batch.targets)

    outcome = runner(batch.inputs, **given, head=head)
    if not runner.has_result:
        return torch.zeros((), device=batch.inputs.device)
    return outcome.result.nats


_PLAIN = resolve(CrossEntropy()).build()
_CHUNKED = resolve(ChunkedCrossEntropy()).build()
