"""Cross-section checks of `[optimizer]`: its patterns on the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem, SetpointError
from setpoint.model.config import HuggingFaceModel
from setpoint.optim.frozen import frozen_problems, is_frozen
from setpoint.optim.grouping import unmatched
from setpoint.shapes.parameter import is_pattern
from setpoint.train.build.parameters import described, is_listed
from setpoint.train.rules.vocabulary import known_vocabulary

if TYPE_CHECKING:
    from setpoint.train.config import Job


def listed_pattern_problems(job: Job) -> Iterator[Problem]:
    """Find patterns that match no parameter of a model whose parameters are known."""
    if is_listed(job.model) and _can_be_searched(job):
        yield from _unmatched(job, vocabulary=1)


def built_pattern_problems(job: Job) -> Iterator[Problem]:
    """Find patterns that match no parameter of a model that only building it tells."""
    try:
        yield from _unmatched(job, known_vocabulary(job.tokenizer) or 1)
    except SetpointError as error:
        if not isinstance(job.model, HuggingFaceModel):  # of which a rule of its own says it
            yield Problem("model", str(error))


def _unmatched(job: Job, vocabulary: int) -> Iterator[Problem]:
    # Which names there are does not depend on the vocabulary.
    config, all_of_them = job.optimizer, described(job, vocabulary)[0]
    held = [each for each in all_of_them if not is_frozen(config, each.name)]
    found = [*frozen_problems(config, all_of_them), *(unmatched(config, held) if held else ())]
    for problem in found:
        yield Problem(
            f"optimizer.{problem.path}",
            problem.message,
            valid=problem.valid,
            also=[f"optimizer.{path}" for path in problem.also],
            hint=problem.hint,
        )


def _can_be_searched(job: Job) -> bool:
    """Whether all patterns are regular expressions, which the sections themselves see to."""
    config = job.optimizer
    if job.adapter is not None and not job.adapter.can_be_searched:
        return False
    patterns = [*config.frozen, *(group.pattern for group in config.groups)]
    patterns += [span.pattern for span in config.frozen_spans]
    for field in config.patterns:
        patterns.extend(getattr(config, field))
    return all(is_pattern(each) for each in patterns)
