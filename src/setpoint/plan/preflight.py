"""The checks and the arithmetic that need a resolved job, but neither torch nor a device."""

from __future__ import annotations

from collections.abc import Collection

from setpoint.config.hooks import Need
from setpoint.config.verify import Verification, verify
from setpoint.data.config import Bytes
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
        found: what the checks found.
    """

    __slots__ = ("cautions", "facts", "problems", "skipped")

    def __init__(self, facts: dict[str, int | str], found: Verification) -> None:
        self.facts = facts
        self.problems = found.problems
        self.cautions = found.cautions
        self.skipped = [str(check) for check in found.skipped]

    def to_json(self) -> dict[str, object]:
        """The findings for machines.

        Returns:
            a mapping of plain values.
        """
        cautions = [caution.to_json() for caution in self.cautions]
        return {"facts": self.facts, "cautions": cautions, "skipped": self.skipped}


def preflight(job: Job, able: Collection[Need] = ("files",)) -> Preflight:
    """Look at a resolved job from outside.

    Arguments:
        job: the resolved configuration.
        able: what the checks may use, beside the values.

    Returns:
        facts, problems, cautions and what was left out.
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
    report = Preflight(facts, verify(job, able))
    if isinstance(job.model, Transformer):
        vocabulary = vocabulary_size(job)
        if vocabulary is not None:
            size = estimate_size(
                job.model, vocab_size=vocabulary, sequence_length=batch.sequence_length
            )
            facts["parameters"] = size.parameters
            facts["FLOPs per token"] = size.flops_per_token
    else:
        unknown = "model: the number of parameters, which only the model itself knows"
        report.skipped.append(unknown)
    return report


def vocabulary_size(job: Job) -> int | None:
    """The number of tokens the tokenizer has, where that is known without building it.

    Arguments:
        job: the resolved configuration.

    Returns:
        the size, or None.
    """
    return BYTES_VOCABULARY if isinstance(job.tokenizer, Bytes) else None
