"""The checks and the arithmetic that need a resolved job, but neither torch nor a device."""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config import Problem, SetpointError
from setpoint.config.checker import describe
from setpoint.data.config import Bytes, Text
from setpoint.model.config import Transformer
from setpoint.model.size import estimate_size
from setpoint.train.batch import batch_sum
from setpoint.train.config import Job
from setpoint.train.naming import run_directory_of

# 256 bytes and the separator; the tokenizer itself needs numpy. A test compares the two.
BYTES_VOCABULARY = 257
UNNAMED = "named after the seed, which is null here and drawn at the start"


class Preflight:
    """What a preflight found.

    Arguments:
        facts: what the run would be, by name: numbers, or words.
        problems: what would stop it.
        skipped: what could not be verified here, and why.
    """

    __slots__ = ("facts", "problems", "skipped")

    def __init__(
        self, facts: dict[str, int | str], problems: list[Problem], skipped: list[str]
    ) -> None:
        self.facts = facts
        self.problems = problems
        self.skipped = skipped

    def to_json(self) -> dict[str, object]:
        """The findings for machines.

        Returns:
            a mapping of plain values.
        """
        return {"facts": self.facts, "skipped": self.skipped}


def preflight(job: Job) -> Preflight:
    """Look at a resolved job from outside.

    Arguments:
        job: the resolved configuration.

    Returns:
        facts, problems and what was left out.
    """
    batch = job.batch
    tokens = batch.global_size * batch.sequence_length
    ranks = job.parallel.world_size
    facts: dict[str, int | str] = {
        "run directory": run_directory_of(job) if job.seed is not None else UNNAMED,
        "duration": str(job.duration),
        "batch": batch_sum(batch.global_size, batch.micro_size, batch.accumulation, ranks),
        "tokens per update": tokens,
    }
    skipped = ["the device, which training finds out with torch"]
    if isinstance(job.model, Transformer):
        vocabulary = vocabulary_size(job)
        if vocabulary is not None:
            size = estimate_size(
                job.model, vocab_size=vocabulary, sequence_length=batch.sequence_length
            )
            facts["parameters"] = size.parameters
            facts["FLOPs per token"] = size.flops_per_token
    else:
        skipped.append("the number of parameters, which only the model itself knows")
    return Preflight(facts, [*_paths(job)], skipped)


def vocabulary_size(job: Job) -> int | None:
    """The number of tokens the tokenizer has, where that is known without building it.

    Arguments:
        job: the resolved configuration.

    Returns:
        the size, or None.
    """
    return BYTES_VOCABULARY if isinstance(job.tokenizer, Bytes) else None


def _paths(job: Job) -> Iterator[Problem]:
    for index, source in enumerate(job.data.sources):
        if isinstance(source, Text):
            # Most jobs have no such source, and listing files needs modules of its own.
            from setpoint.data.sources.text import TextSource

            _, errors = TextSource(source, where=f"data.sources.{index}").search()
            for path, error in errors.items():
                yield _problem(job, path, error)


def _problem(job: Job, path: str, error: SetpointError) -> Problem:
    """An error of the data, which names the field first and what is valid last, as a finding."""
    message, _, valid = str(error).removeprefix(f"{path}: ").partition("\nValid: ")
    value, origin = describe(job, (), path)
    hint = f"Valid: {valid}" if valid else ""
    return Problem(path, message, hint=hint, value=value, origin=origin)
