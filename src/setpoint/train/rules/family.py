"""Cross-section checks of models of transformers: the model, and the ranks that divide it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from setpoint.config import ConfigError, Problem, SetpointError, draft_of, resolve
from setpoint.model.config import HuggingFaceModel
from setpoint.model.divisors import nearest_divisors
from setpoint.model.pretrained.check import check_config, declared_vocabulary
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.locate import locate_here
from setpoint.train.rules.pipelining import split_problems
from setpoint.train.rules.vocabulary import known_vocabulary

if TYPE_CHECKING:
    from setpoint.model.huggingface.language_model import HuggingFaceModel as LanguageModel
    from setpoint.train.config import Job


def family_problems(job: Job) -> Iterator[Problem]:
    """Find why transformers makes no model of the section, or ranks cannot divide it.

    An id of the hub is left alone, and files that cannot be read, as others say why.
    """
    section = job.model
    assert isinstance(section, HuggingFaceModel)
    if find_spec("transformers") is None or find_spec("torch") is None:
        return
    from setpoint.model.huggingface.build import try_huggingface
    from setpoint.model.huggingface.values import Unfit

    try:
        if not section.names_a_kind:
            place = locate_here(section.config)
            if place is None:
                return
            read_keys(place.directory)
        made = try_huggingface(section, known_vocabulary(job.tokenizer) or 1)
    except Unfit as error:
        found = error.problem
        known = {problem.path for problem in check_config(section)}
        if declared_vocabulary(section) is not None:
            known.add("overrides.vocab_size")
        if found.path not in known:  # else checks of files say it
            also = [f"model.{path}" for path in found.also]
            path = f"model.{found.path}"
            yield Problem(path, found.message, valid=found.valid, also=also, hint=found.hint)
        return
    except SetpointError:
        return
    yield from _undivided(job, made)


def _undivided(job: Job, made: LanguageModel) -> Iterator[Problem]:
    """Find axes by which the model cannot be divided, with degrees by which it can."""
    from setpoint.model.huggingface.axes import undivided
    from setpoint.train.build.adapter import add_adapter

    try:
        if job.parallel.divides_experts and job.adapter is not None:
            add_adapter(job, made)
    except SetpointError:
        return  # which the rule of the adapter says

    def working(field: str, **others: int) -> list[str]:
        """Degrees of an axis by which the model can be divided, and the whole job, too."""
        present, fits = getattr(job.parallel, field), list[str]()
        for degree in nearest_divisors(job.parallel.world_size, present, 64):
            draft: Any = draft_of(job)
            for name, value in {**others, field: degree}.items():
                setattr(draft.parallel, name, value)
            try:
                parallel = resolve(draft).parallel
            except ConfigError:
                continue
            fields = {each.field for each in undivided(made, parallel)}
            if degree != present and field not in fields:
                fits.append(str(degree))
        return fits[:3]

    for field, why in undivided(made, job.parallel):
        hint = ""
        if field == "expert_tensor":
            degrees = [degree for degree in working("expert", expert_tensor=1) if degree != "1"]
            if degrees:
                hint = f"Set it to 1, and divide the experts by parallel.expert = {degrees[0]}."
        also = ("model.config", *(("adapter",) if "adapters" in why else ()))
        yield Problem(f"parallel.{field}", why, valid=working(field), also=also, hint=hint)
        if field == "pipeline":
            return
    split = job.parallel.pipelining.split
    if split is not None:
        yield from split_problems(split, len(made.stage_parts()) - 2, "model.config")
