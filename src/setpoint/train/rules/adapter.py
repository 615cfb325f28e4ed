"""Cross-section checks of `[adapter]`: its patterns and ranks on the modules of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from setpoint.adapter.plan import adapter_problems, chosen, sites_of
from setpoint.adapter.quantize.checks import form_problems
from setpoint.config import Caution, Problem, SetpointError
from setpoint.model.config import HuggingFaceModel, Transformer
from setpoint.model.parameters import fused_parts_of, parameters_of
from setpoint.model.pretrained.locate import locate_here
from setpoint.model.pretrained.quantized import dense_tensors
from setpoint.train.build.parameters import is_listed
from setpoint.train.rules.vocabulary import known_vocabulary

if TYPE_CHECKING:
    from setpoint.shapes.stored import Form
    from setpoint.train.config import Job

MANY = 2**20
"""Tokens, where it is not known how many there are."""


def listed_adapter_problems(job: Job) -> Iterator[Problem]:
    """Find what does not fit a model whose parameters are known."""
    model, config = job.model, job.adapter
    if config is None or not isinstance(model, Transformer) or not is_listed(model):
        return
    if not config.can_be_searched:
        return
    vocabulary = known_vocabulary(job.tokenizer) or model.vocab_size or MANY
    base = list(parameters_of(model, vocabulary))
    yield from _within(adapter_problems(config, base, fused_parts_of(model)))
    tied = "embedding.weight" in {target.site.weight for target in chosen(config, sites_of(base))}
    if model.tie_embeddings and tied:
        yield Problem(
            "adapter.targets",
            "adapts the embedding, which is the output matrix, too: once it is merged, the update "
            "would change both",
            also=("model.tie_embeddings",),
            hint="Leave the embedding out by adapter.exclude.",
        )


def built_adapter_problems(job: Job) -> Iterator[Problem]:
    """Find what does not fit a model that only building it tells."""
    from setpoint.model.build import build_outline
    from setpoint.train.build.adapter import add_adapter
    from setpoint.train.build.parameter_groups import trained_parameters

    assert job.adapter is not None
    if not job.adapter.can_be_searched:
        return
    try:
        model = build_outline(job.model, known_vocabulary(job.tokenizer) or 1)
    except SetpointError as error:
        if not isinstance(job.model, HuggingFaceModel):  # of which a rule of its own says it
            yield Problem("adapter", str(error))
        return
    try:
        modules = [name for name, _ in model.named_modules() if name]
        found = list(adapter_problems(job.adapter, trained_parameters(model), {}, modules))
        yield from _within(found)
        if not found:
            add_adapter(job, model)
    except SetpointError as error:
        yield Problem("adapter", str(error))


def base_problems(job: Job) -> Iterator[Problem]:
    """Hold the format of a quantized base against that of the files that it comes from."""
    assert job.adapter is not None
    config, pretrained = job.adapter.quantize, job.model.pretrained
    if config is None or pretrained is None:
        return
    try:
        place = locate_here(pretrained)
        if place is None or place.kind != "huggingface":
            return
        infos = dense_tensors(place.directory)
    except SetpointError:
        return  # a check of the model's own says why
    forms: dict[str, tuple[Form, int]] = {}
    for name, info in infos.items():
        if info.encoding is not None:
            columns = info.shape[-2 if info.encoding.transposed else -1]
            forms[name] = info.encoding.form, columns
    odd = False
    for found in form_problems(config, forms):
        odd = True
        path = f"adapter.quantize.{found.path}".rstrip(".")
        given = {"valid": found.valid, "hint": found.hint, "also": ("model.pretrained",)}
        if isinstance(found, Caution):
            yield Caution(found.code, path, found.message, **given)
        else:
            yield Problem(path, found.message, **given)
    if forms and not odd and isinstance(job.model, Transformer) and job.model.merge_qkv:
        yield Problem(
            "model.merge_qkv",
            "true makes one weight of three, whose numbers would be rounded once more in place of "
            "being kept as the files have them",
            valid=("false",),
            also=("adapter.quantize", "model.pretrained"),
        )


def _within(problems: Iterable[Problem]) -> Iterator[Problem]:
    for problem in problems:
        yield Problem(
            f"adapter.{problem.path}",
            problem.message,
            valid=problem.valid,
            also=[f"adapter.{path}" for path in problem.also],
            hint=problem.hint,
        )
