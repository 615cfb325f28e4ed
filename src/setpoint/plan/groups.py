"""Which parameter will fall into which group, before anything is built."""

from __future__ import annotations

from setpoint.config import SetpointError
from setpoint.model.config import Transformer
from setpoint.optim.grouping import GroupRow, gather, group_rows
from setpoint.train.build.parameters import trained
from setpoint.train.config import Job
from setpoint.train.rules.model import known_vocabulary


def planned_groups(job: Job) -> list[GroupRow]:
    """Put the parameters that a job will train into their groups.

    Raises:
        SetpointError: the vocabulary is not known here, or the model cannot be built.
    """
    return group_rows(gather(job.optimizer, trained(job, vocabulary_of(job))), job.optimizer.lr)


def vocabulary_of(job: Job) -> int:
    """Look up how many tokens there will be.

    Returns:
        the size of the tokenizer's vocabulary, or else that of the model's.

    Raises:
        SetpointError: neither is known here.
    """
    vocabulary = known_vocabulary(job.tokenizer)
    if vocabulary is None and isinstance(job.model, Transformer):
        vocabulary = job.model.vocab_size
    if vocabulary is None:
        raise SetpointError(
            "the groups of parameters cannot be counted: the vocabulary of the tokenizer, which "
            "is not here, decides how large the model is"
        )
    return vocabulary
