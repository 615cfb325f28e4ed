"""What a run came to, as a table."""

from __future__ import annotations

from typing import TextIO

from setpoint.config import SHORT, fingerprint
from setpoint.data.corpus import Corpus
from setpoint.data.ngram import ngram_baselines
from setpoint.track.console import short_time
from setpoint.track.summary import print_table
from setpoint.train.config import Job
from setpoint.train.evaluation.evaluate import eval_slice
from setpoint.train.record.context import Outcome
from setpoint.train.run_status import command_again, goodput_of, outlook

ENDINGS = {
    0: "finished",
    130: "interrupted",
}


def print_summary(job: Job, outcome: Outcome, stream: TextIO | None = None) -> None:
    """Print what was trained, how well, how fast, and where the record lies."""
    at, before = outcome.ended, outcome.started
    state, reason = ENDINGS.get(outcome.status) or f"stopped by {outcome.cause}", outcome.reason
    if reason is not None:
        state = reason if outcome.status else f"{state} early: {reason}"
    rows = [
        ("state", state),
        ("fingerprint", fingerprint(outcome.job)[:SHORT]),
        ("parameters", f"{outcome.parts.parameter_count:,}"),
        *adapter_rows(outcome),
        ("steps", f"{at.step:,}"),
        ("tokens", f"{at.tokens:,}"),
        ("epochs", f"{at.epochs:.3f}"),
        ("training time", short_time(at.seconds)),
    ]
    if at.seconds > before.seconds:
        speed = (at.tokens - before.tokens) / (at.seconds - before.seconds)
        rows.append(("tokens/s", f"{speed:,.0f}"))
    if outcome.loss is not None:
        over = f", mean of {outcome.loss_steps} steps" if outcome.loss_steps > 1 else ""
        rows.append(("training loss", f"{outcome.loss:.4f}{over}"))
    spent = goodput_of(outcome.directory)
    if spent.share is not None:
        rows.append(("goodput", f"{spent.share:.0%} of {short_time(spent.wall)}: {spent.line()}"))
    if outcome.head is not None:
        rows.append(("chain head", outcome.head))
    rows += [
        (f"{name.replace('_', '-')} {metric}", f"{value:.4f}")
        for name, score in outcome.scores.items()
        for metric, value in (("loss", score.loss), ("accuracy", score.accuracy))
        if value is not None
    ]
    print_table(f"{job.name}: {outcome.directory}", rows, stream=stream)
    if outcome.status:
        again = command_again(job, outcome.directory)
        root, keeps = outcome.directory / "checkpoints", job.checkpoint.write
        left = outlook(root, before.step, again, keeps)
        print(left, file=stream, flush=True)
    # Whoever stops a run waits for it to leave, so nothing is counted then.
    finished, section = outcome.status == 0, job.evaluation
    if finished and outcome.score is not None and section is not None and section.baselines:
        _print_baselines(job, outcome, outcome.score.bits_per_byte, stream)


def adapter_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """What is adapted, trained and frozen; nothing without an adapter."""
    found = outcome.parts.adapter
    return [] if found is None else [("adapter", found.line())]


def _print_baselines(job: Job, outcome: Outcome, bits: float, stream: TextIO | None) -> None:
    parts = outcome.parts
    assert parts.held_out is not None
    corpora = [corpus for corpus in parts.corpora if isinstance(corpus, Corpus)]
    counted = ngram_baselines(corpora, eval_slice(job, parts.held_out))
    rows = [
        ("unigram (how frequent is the byte)", f"{counted.unigram:.3f}"),
        ("bigram (given the byte before)", f"{counted.bigram:.3f}"),
        ("smoothed 3-gram (given two before)", f"{counted.trigram:.3f}"),
        (f"this model after {outcome.ended.step:,} steps", f"{bits:.3f}"),
    ]
    print_table("held-out bits per byte, less is better", rows, stream=stream)
