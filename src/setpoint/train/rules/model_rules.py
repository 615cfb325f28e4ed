"""Rules of `[model]`, `[adapter]`, `[precision]` and `[optimizer]`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from setpoint.config import Caution, Need, Problem, SetpointError, dead, rule
from setpoint.data.config import BYTES_VOCABULARY, Bytes
from setpoint.model.config import HuggingFaceConfig, TransformerConfig, names_attention_backend
from setpoint.parallel.config import CUBLAS_VARIABLE, CUBLAS_WORKSPACES
from setpoint.shapes.patterns import is_pattern

if TYPE_CHECKING:
    from torch import nn

    from setpoint.data.config import TokenizerConfig
    from setpoint.model.attention.selection import Dense
    from setpoint.shapes.parameter import Form
    from setpoint.train.config import Job

FACTOR = 4
MANY = 2**20
"""Assumed number of tokens if the vocabulary size is unknown."""
LIKELY_VOCABULARY = 128 * 1024
"""Assumed size of an unknown vocabulary; the output layer has no part in float8 rules."""


def within(section: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Prefix the paths of problems with their section."""
    for problem in problems:
        problem.path = f"{section}.{problem.path}".rstrip(".")
        problem.also = tuple(f"{section}.{path}" for path in problem.also)
        yield problem


def known_vocabulary(tokenizer: TokenizerConfig) -> int | None:
    """Vocabulary size of a tokenizer, if known without building the tokenizer.

    Arguments:
        tokenizer: section of the tokenizer; files are read if they are local.
    """
    if isinstance(tokenizer, Bytes):
        return BYTES_VOCABULARY
    from setpoint.data.vocabulary import vocabulary_size

    return vocabulary_size(tokenizer)


def tokenizer_needs(job: Job) -> tuple[Need, ...]:
    """Files, unless the tokenizer is bytes."""
    return () if isinstance(job.tokenizer, Bytes) else ("files",)


def device_needs(job: Job) -> tuple[Need, ...]:
    """Torch, with parallel.device = auto."""
    return ("torch",) if job.parallel.device == "auto" else ()


def has_rows(job: Job) -> bool:
    """True if the embedding may have more or fewer rows than the tokenizer has tokens."""
    model = job.model
    return (
        isinstance(model, TransformerConfig) and (model.vocab_size or model.vocab_multiple_of) != 1
    )


@rule(
    needs=tokenizer_needs,
    when=has_rows,
    cautions={
        "vocabulary-mostly-unused": "most rows of the embedding belong to no token of the tokenizer"
    },
)
def vocabulary_problems(job: Job) -> Iterator[Problem]:
    """A model vocabulary smaller, or much larger, than the tokenizer's."""
    from setpoint.model.parameters import embedding_rows, vocab_error

    model = job.model
    assert isinstance(model, TransformerConfig)
    tokens = known_vocabulary(job.tokenizer)
    if tokens is None:
        return
    field = "vocab_multiple_of" if model.vocab_size is None else "vocab_size"
    reason, rows = vocab_error(model, tokens), embedding_rows(model, tokens)
    if reason is not None:
        yield Problem(
            "model.vocab_size",
            reason,
            valid=(str(tokens), "null"),
            also=("tokenizer",),
        )
    elif rows > FACTOR * tokens:
        yield Caution(
            "vocabulary-mostly-unused",
            f"model.{field}",
            f"only {tokens} of the {rows} rows of the embedding belong to tokens of the "
            "tokenizer; the others waste memory and time",
            valid=("null",) if field == "vocab_size" else ("1", "64"),
            also=("tokenizer",),
        )


@rule(
    needs="files",
    when=lambda job: (
        isinstance(job.model, HuggingFaceConfig)
        or (isinstance(job.model, TransformerConfig) and job.model.pretrained is not None)
    ),
)
def row_problems(job: Job) -> Iterator[Problem]:
    """An embedding that fits neither the pretrained weights nor the tokenizer."""
    from setpoint.model.huggingface.architecture import declared_vocabulary
    from setpoint.model.pretrained.config_json import (
        FieldDifference,
        vocabulary_difference,
        vocabulary_of,
    )
    from setpoint.model.pretrained.locate import locate_here

    model, tokens, different = job.model, known_vocabulary(job.tokenizer), None
    also = ("tokenizer", *(() if model.pretrained is None else ("model.pretrained",)))
    try:
        place = None if model.pretrained is None else locate_here(model.pretrained)
        if isinstance(model, TransformerConfig):
            words = model.vocab_size or tokens
            if place is not None and words is not None:
                different = vocabulary_difference(model, words, place)
        elif isinstance(model, HuggingFaceConfig):
            rows = declared_vocabulary(model)
            known = None if place is None else vocabulary_of(place)
            if rows is not None and tokens is not None and rows < tokens:
                yield Problem(
                    "model.overrides.vocab_size",
                    f"{rows} embedding rows are fewer than the {tokens} tokens of the tokenizer",
                    valid=(str(tokens),),
                    also=also,
                )
            elif rows is not None and known is not None and rows < known:
                different = FieldDifference("overrides.vocab_size", str(rows), str(known))
    except SetpointError:
        return  # reported by a check of the model
    if different is not None:
        field, size, expected = different
        given = f", but the tokenizer has {tokens} tokens" if size.startswith("null") else ""
        yield Problem(
            f"model.{field}",
            f"the pretrained weights have {expected}{given}",
            valid=(expected,),
            also=also,
        )


@rule(when=lambda job: names_attention_backend(job.model))
def backend_problems(job: Job) -> Iterator[Problem]:
    """Attention backends that conflict with the device, the dtype or deterministic = true."""
    from setpoint.model.attention.selection import determinism_problems, placement_problems

    assert isinstance(job.model, TransformerConfig)
    if job.deterministic:
        yield from determinism_problems(job.model)
    device, compute = job.parallel.device, job.precision.compute
    yield from placement_problems(job.model, device, compute, training=True)


@rule(needs="torch", when=lambda job: names_attention_backend(job.model))
def device_problems(job: Job) -> Iterator[Problem]:
    """Attention backends that do not run on the device."""
    from setpoint.model.attention import choose_backend  # which needs torch

    assert isinstance(job.model, TransformerConfig)
    device, compute = job.parallel.device, job.precision.compute
    yield from choose_backend.device_problems(job.model, device, compute, training=True)


def dense_on_gpu(job: Job) -> Dense | None:
    """The attention with a dense mask or dense scores, if the device is a GPU."""
    model = job.model
    if not isinstance(model, TransformerConfig):
        return None
    documents = bool(job.data.packing.isolate) and job.data.packing.method != "none"
    is_partial = model.sliding_window or model.attention_chunk
    needs_mask = is_partial or model.attention_soft_cap or names_attention_backend(model)
    if not (documents or needs_mask or model.attention_sinks):
        return None
    from setpoint.model.attention.selection import find_dense  # most jobs have no use for it

    length, ring = job.batch.sequence_length, job.parallel.degrees["ring"] > 1
    return find_dense(model, job.precision.compute, length, documents=documents, ring=ring)


@rule(
    needs=device_needs,
    when=lambda job: job.parallel.device != "cpu" and dense_on_gpu(job) is not None,
    cautions={
        "dense-attention": "attention on a GPU materializes a mask or scores for all pairs of "
        "positions"
    },
)
def mask_cautions(job: Job) -> Iterator[Caution]:
    """Attention on a GPU that materializes a mask or scores for all pairs of positions."""
    from setpoint.model.attention.selection import LIMITS, demands_of, device_problem, supporting

    attention, model = dense_on_gpu(job), job.model
    assert isinstance(model, TransformerConfig)
    if job.parallel.device == "auto":
        import torch

        attention = attention if torch.cuda.is_available() else None
    if attention is None:
        return
    length, compute = job.batch.sequence_length, job.precision.compute
    # A mask takes one byte, a bias two; scores are stored twice.
    size = job.batch.micro_size * length**2 * (8 * model.heads if attention.scores else 3)
    without = ("dense", "causal") if attention.masked else ("dense",)
    backends = [
        name
        for name in supporting(model)
        if name != "auto"
        and LIMITS[name].masks not in without
        and device_problem(demands_of(model), name, "cuda", compute) is None
        and (LIMITS[name].lse or job.parallel.degrees["ring"] == 1)
    ]
    fields = (
        "model.attention_soft_cap",
        "model.attention_dropout",
        "model.sliding_window",
        "model.attention_chunk",
    )
    also = [field for field in fields if getattr(model, field.partition(".")[2])]
    tensors = "the scores of all heads" if attention.scores else "a mask"
    yield Caution(
        "dense-attention",
        "model.attention_backend",
        f"{attention.name} materializes {tensors} of {length} x {length} positions per row of a "
        f"micro-batch on a GPU ({size / 2**20:,.1f} MiB) and computes masked pairs as well",
        valid=tuple(backends) if model.attention_backend != "auto" else (),
        also=(*also, "batch.sequence_length", "data.packing.isolate"),
        hint="" if backends else "Without model.attention_dropout, auto needs no mask.",
    )


DENSE_LAYERS = {
    "dense-layers-quantized": "layers that are dense in quantized files are quantized as well"
}


@rule(when=lambda job: job.adapter is not None and job.model.parameters_known)
def adapter_problems(job: Job) -> Iterator[Problem]:
    """Adapter patterns and ranks that do not fit the modules of a transformer."""
    from setpoint.adapter import targets as plan
    from setpoint.model.parameters import fused_parts_of, parameters_of

    model, config = job.model, job.adapter
    assert config is not None and isinstance(model, TransformerConfig)
    if not config.can_be_searched:
        return
    vocabulary = known_vocabulary(job.tokenizer) or model.vocab_size or MANY
    base = list(parameters_of(model, vocabulary))
    yield from within("adapter", plan.adapter_problems(config, base, fused_parts_of(model)))
    tied = "embedding.weight" in {
        target.site.weight for target in plan.chosen(config, plan.sites_of(base))
    }
    if model.tie_embeddings and tied:
        yield Problem(
            "adapter.targets",
            "adapts the embedding, which is tied to the output matrix: merging the update would "
            "change both",
            also=("model.tie_embeddings",),
            hint="Exclude the embedding with adapter.exclude.",
        )


@rule(
    needs=("import", "torch"),
    when=lambda job: job.adapter is not None and not job.model.parameters_known,
    cautions=DENSE_LAYERS,
)
def built_adapter_problems(job: Job) -> Iterator[Problem]:
    """Adapter patterns and ranks that do not fit the modules of the built model."""
    from setpoint.adapter.targets import adapter_problems
    from setpoint.model.build import build_outline
    from setpoint.train.build.job_parameters import add_adapter, trained_parameters

    assert job.adapter is not None
    if not job.adapter.can_be_searched:
        return
    try:
        model = build_outline(job.model, known_vocabulary(job.tokenizer) or 1)
    except SetpointError as error:
        if not isinstance(job.model, HuggingFaceConfig):  # which has its own rule
            yield Problem("adapter", str(error))
        return
    try:
        modules = [name for name, _ in model.named_modules() if name]
        problems = list(adapter_problems(job.adapter, trained_parameters(model), {}, modules))
        yield from within("adapter", problems)
        if not problems:
            yield from _quantization_problems(job, model)
            add_adapter(job, model)
    except SetpointError as error:
        yield Problem("adapter", str(error))


def _quantization_problems(job: Job, model: nn.Module) -> Iterator[Problem]:
    """Find weights of a transformers model that quantization would change from quantized files.

    These are experts that the files store one by one, with scales that do not suit a single matrix,
    and layers that the files store unquantized.
    """
    from setpoint.adapter.targets import (
        UNJOINED,
        dense_layers,
        quantized_sites,
        sites_of,
        why_not_joined,
    )
    from setpoint.model.huggingface.builder import Sources
    from setpoint.model.pretrained.locate import locate_here
    from setpoint.train.build.job_parameters import trained_parameters

    assert job.adapter is not None
    config = job.adapter.quantize
    if not isinstance(job.model, HuggingFaceConfig) or config is None or not job.model.pretrained:
        return
    place = locate_here(job.model.pretrained)
    if place is None or place.is_checkpoint:
        return
    wrapper: Any = model
    sources = Sources(wrapper.model, place.directory)
    sites = quantized_sites(job.adapter, sites_of(trained_parameters(model)))
    if sources.names:
        kept = {f"model.{name}" for name in sources.names}
        dense = [site.path for site in sites if site.weight not in kept]
        stored = [site.path for site in sites if site.weight in kept]
        yield from within("adapter.quantize", dense_layers(config, dense, stored))
    for site in sites:
        joined = sources.joined(site.weight.removeprefix("model."))
        if joined is None or joined[0][0] != config.form(site.matrix[1]):
            continue
        why = why_not_joined(site.path, *joined)
        if why is not None:
            yield Problem("adapter.quantize", why, hint=f"Valid: {UNJOINED}.")
            return


@rule(
    needs="files",
    when=lambda job: (
        job.adapter is not None
        and job.adapter.quantize is not None
        and job.model.pretrained is not None
    ),
    cautions={
        "base-rounded-again": "weights that files store quantized are quantized again in another "
        "format",
        **DENSE_LAYERS,
    },
)
def base_problems(job: Job) -> Iterator[Problem]:
    """A quantized base whose numbers differ from those of its files."""
    from setpoint.adapter.targets import dense_layers, form_problems, quantized_sites, sites_of
    from setpoint.model.parameters import parameters_of
    from setpoint.model.pretrained.config_json import read_config
    from setpoint.model.pretrained.locate import locate_here
    from setpoint.model.pretrained.tensor_files import dense_tensors

    assert job.adapter is not None
    config, pretrained = job.adapter.quantize, job.model.pretrained
    assert config is not None and pretrained is not None
    try:
        place = locate_here(pretrained)
        if place is None or place.is_checkpoint:
            return
        infos = dense_tensors(place.directory)
    except SetpointError:
        return  # reported by a check of the model
    forms: dict[str, tuple[Form, int]] = {}
    for name, info in infos.items():
        if info.encoding is not None:
            columns = info.shape[-2 if info.encoding.transposed else -1]
            forms[name] = info.encoding.form, columns
    problems = list(within("adapter.quantize", form_problems(config, forms)))
    for problem in problems:
        problem.also = ("model.pretrained",)
    yield from problems
    if not forms or problems or not isinstance(job.model, TransformerConfig):
        return
    family = read_config(place.directory)[1]
    kept = {piece.name for piece in family.pieces(job.model) if piece.hf_name in forms}
    parameters = parameters_of(job.model, known_vocabulary(job.tokenizer) or 1)
    sites = quantized_sites(job.adapter, sites_of(parameters))
    dense = [site.path for site in sites if site.weight not in kept]
    stored = [site.path for site in sites if site.weight in kept]
    if not job.model.merge_qkv and job.adapter.can_be_searched:
        yield from within("adapter.quantize", dense_layers(config, dense, stored))
    if job.model.merge_qkv:
        yield Problem(
            "model.merge_qkv",
            "true merges three weights into one, which is quantized again and loses the numbers "
            "of the files",
            valid=("false",),
            also=("adapter.quantize", "model.pretrained"),
        )


@dead("optimizer.rounding")
def idle_rounding(job: Job) -> str | None:
    """Rounding for an optimizer that updates nothing in bf16."""
    state = job.precision.optimizer_state or job.precision.updated
    if "bf16" in (state, job.precision.updated):
        return None
    return "weights and optimizer state are in fp32, so nothing is rounded"


@dead("precision.gather")
def idle_gather(job: Job) -> str | None:
    """A dtype of gathered weights without fp32 weights to gather."""
    if job.precision.gather == job.precision.params:
        return None  # as for all weights
    if not job.parallel.uses_fsdp:
        return "no weights are sharded (shard = 1)"
    return "bf16 weights are gathered in bf16" if job.precision.params == "bf16" else None


@dead("parallel.sharding.accumulation")
def idle_accumulation(job: Job) -> str | None:
    """Accumulation of sharded gradients with one micro-batch per step."""
    counts = job.parallel.accumulates_whole and job.batch.accumulation == 1
    return "a step has only one micro-batch" if counts else None


@dead("precision.float8.gather", holds=(False,))
def idle_float8_gather(job: Job) -> str | None:
    """Float8 gathering of weights that are not gathered, or not in float8."""
    if not job.parallel.uses_fsdp:
        return "no weights are sharded (parallel.shard = 1)"
    reshard = job.parallel.reshard
    if reshard is not None and not isinstance(reshard, bool):
        return f"parallel.reshard = {reshard} keeps weights in bf16 or fp32 on {reshard} ranks"
    return None


@rule(when=lambda job: job.precision.float8 is not None)
def float8_problems(job: Job) -> Iterator[Problem]:
    """Linear layers that do not support float8."""
    from setpoint.precision.config import converted, layer_problems

    float8, model, path = job.precision.float8, job.model, "precision.float8"
    assert float8 is not None
    layers = linear_layers(model) if isinstance(model, TransformerConfig) else {}
    if not layers:
        return  # checked when the model exists
    assert isinstance(model, TransformerConfig)
    experts = packed_experts(model)
    unpacked = model.moe is not None and not model.moe.packed
    problem = layer_problems(float8, layers, experts)
    yield from within(path, (p for p in problem if p.path != "experts" or not unpacked))
    if "output" in converted(float8, layers):
        yield Problem(
            f"{path}.skip",
            "must match output: the loss multiplies by its matrix in bf16",
            hint="Add '^output$'.",
        )


def packed_experts(model: TransformerConfig) -> dict[str, tuple[int, int]]:
    """List the packed experts of a transformer without building it: (width, dim) by name."""
    from setpoint.model.parameters import parameters_of

    return {
        parameter.name.removesuffix(".down"): (parameter.shape[1], parameter.shape[2])
        for parameter in parameters_of(model, LIKELY_VOCABULARY)
        if len(parameter.shape) == 3 and parameter.name.endswith(".down")
    }


@rule(needs="torch", when=lambda job: job.precision.float8 is not None)
def float8_device_problems(job: Job) -> Iterator[Problem]:
    """A GPU without float8 support."""
    import torch

    from setpoint.precision.float8 import why_not

    assert job.precision.float8 is not None
    if job.parallel.device != "cuda" or not torch.cuda.is_available():
        return
    if reason := why_not(job.precision.float8, torch.device("cuda")):
        yield Problem("precision.float8", reason, valid=("null",), also=("parallel.device",))


def linear_layers(model: TransformerConfig) -> dict[str, tuple[int, int]]:
    """List the linear layers of a transformer without building it.

    Returns:
        (out, in) features by qualified name; empty if an imported norm makes the parameters
        unknown.
    """
    from setpoint.model.parameters import parameters_of

    if not model.parameters_known:
        return {}
    return {
        parameter.name.removesuffix(".weight"): (parameter.shape[0], parameter.shape[1])
        for parameter in parameters_of(model, LIKELY_VOCABULARY)
        if parameter.kind in ("matrix", "output") and len(parameter.shape) == 2
    }


@rule(needs=device_needs, when=lambda job: job.deterministic and job.parallel.device != "cpu")
def workspace_problems(job: Job) -> Iterator[Problem]:
    """An environment in which matrix products on a GPU are nondeterministic."""
    if job.parallel.device == "auto":
        from torch import cuda

        if not cuda.is_available():
            return
    value = os.environ.get(CUBLAS_VARIABLE)
    if value not in (None, *CUBLAS_WORKSPACES):
        yield Problem(
            "deterministic",
            f"the environment has {CUBLAS_VARIABLE} = {value}, with which cuBLAS results vary "
            "from run to run",
            hint=f"Unset it, or set it to {' or '.join(CUBLAS_WORKSPACES)}.",
        )


@rule(when=lambda job: job.optimizer.depends_on_parameters and job.model.parameters_known)
def pattern_problems(job: Job) -> Iterator[Problem]:
    """Optimizer settings that apply to no parameter of a transformer."""
    if _can_be_searched(job):
        yield from _unmatched(job, vocabulary=1)


@rule(
    needs=("import", "torch"),
    when=lambda job: job.optimizer.depends_on_parameters and not job.model.parameters_known,
)
def built_pattern_problems(job: Job) -> Iterator[Problem]:
    """Optimizer settings that apply to no parameter of the built model."""
    try:
        yield from _unmatched(job, known_vocabulary(job.tokenizer) or 1)
    except SetpointError as error:
        if not isinstance(job.model, HuggingFaceConfig):  # which has its own rule
            yield Problem("model", str(error))


def _unmatched(job: Job, vocabulary: int) -> Iterator[Problem]:
    from setpoint.optim.grouping import frozen_problems, grouping_problems, is_frozen
    from setpoint.train.build.job_parameters import trainable_parameters

    # The names do not depend on the vocabulary.
    config, params = job.optimizer, trainable_parameters(job, vocabulary)[0]
    trained = [parameter for parameter in params if not is_frozen(config, parameter.name)]
    yield from within("optimizer", frozen_problems(config, params))
    yield from within("optimizer", grouping_problems(config, trained) if trained else ())


def _can_be_searched(job: Job) -> bool:
    """True if all patterns are valid regular expressions; their sections report invalid ones."""
    config = job.optimizer
    if job.adapter is not None and not job.adapter.can_be_searched:
        return False
    patterns = [*config.frozen, *(group.pattern for group in config.groups)]
    patterns += [span.pattern for span in config.frozen_spans]
    for field in config.patterns:
        patterns.extend(getattr(config, field))
    return all(is_pattern(pattern) for pattern in patterns)
