"""Rules of `[parallel]`: divisibility by its axes, and replica groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

from setpoint.config import (
    ConfigError,
    Problem,
    SetpointError,
    draft_of,
    nearest,
    plural,
    resolve,
    rule,
)
from setpoint.config.words.names import nearest_divisors, nearest_multiples
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.parallel.config import CONTEXT
from setpoint.shapes.patterns import is_pattern
from setpoint.train.rules.model_rules import known_vocabulary, tokenizer_needs, within

if TYPE_CHECKING:
    from setpoint.model.huggingface.language_model import HuggingFaceModel as LanguageModel
    from setpoint.train.config import Job

TENSOR = "parallel.tensor"


@rule(needs="import", when=lambda job: isinstance(job.model, HuggingFaceConfig))
def family_problems(job: Job) -> Iterator[Problem]:
    """Models that transformers cannot build or ranks cannot divide.

    Models on the hub are not checked; other checks report files that cannot be read.
    """
    from importlib.util import find_spec

    section = job.model
    assert isinstance(section, HuggingFaceConfig)
    if find_spec("transformers") is None or find_spec("torch") is None:
        return
    from setpoint.model.huggingface.architecture import Unfit, check_config, declared_vocabulary
    from setpoint.model.huggingface.builder import try_huggingface
    from setpoint.model.pretrained.locate import locate_here, read_keys

    try:
        if not section.names_model_type:
            place = locate_here(section.config)
            if place is None:
                return
            read_keys(place.directory)
        model = try_huggingface(section, known_vocabulary(job.tokenizer) or 1)
    except Unfit as error:
        problem = error.problem
        known = {problem.path for problem in check_config(section)}
        if declared_vocabulary(section) is not None:
            known.add("overrides.vocab_size")
        if problem.path not in known:  # otherwise checks of files report it
            yield from within("model", [problem])
        return
    except SetpointError:
        return
    yield from _undivided_family(job, model)


def _undivided_family(job: Job, model: LanguageModel) -> Iterator[Problem]:
    """Find axes that cannot divide the model, with degrees that can."""
    from setpoint.model.huggingface.model_parallel import undivided
    from setpoint.train.build.job_parameters import add_adapter

    try:
        if job.parallel.divides_experts and job.adapter is not None:
            add_adapter(job, model)
    except SetpointError:
        return  # reported by the rule of the adapter

    def working(field: str, **degrees: int) -> list[str]:
        """Degrees of an axis that divide the model and result in a valid job."""
        present, fits = getattr(job.parallel, field), list[str]()
        for degree in nearest_divisors(job.parallel.world_size, present, 64):
            draft: Any = draft_of(job)
            for name, value in {**degrees, field: degree}.items():
                setattr(draft.parallel, name, value)
            try:
                parallel = resolve(draft).parallel
            except ConfigError:
                continue
            fields = {axis.field for axis in undivided(model, parallel)}
            if degree != present and field not in fields:
                fits.append(str(degree))
        return fits[:3]

    for field, why in undivided(model, job.parallel):
        hint = ""
        if field == "expert_tensor":
            degrees = [degree for degree in working("expert", expert_tensor=1) if degree != "1"]
            if degrees:
                hint = f"Set it to 1 and divide the experts by parallel.expert = {degrees[0]}."
        also = ("model.config", *(("adapter",) if "adapters" in why else ()))
        yield Problem(f"parallel.{field}", why, valid=working(field), also=also, hint=hint)
        if field == "pipeline":
            return
    split = job.parallel.pipelining.split
    if split is not None:
        yield from split_problems(split, len(model.stage_parts()) - 2, "model.config")


@rule(when=lambda job: job.parallel.torchft is not None)
def torchft_problems(job: Job) -> Iterator[Problem]:
    """Jobs that replica groups (torchft) do not support."""
    section, batch = job.parallel.torchft, job.batch
    assert section is not None
    if batch.accumulation % section.group_size:
        sizes = [size for size in range(1, batch.global_size + 1)
                 if batch.global_size % (size * section.group_size) == 0]  # fmt: skip
        yield Problem(
            "batch.micro_size",
            f"{section.group_size} replica groups do not divide the {batch.accumulation} "
            "micro-batches of a step",
            valid=[str(size) for size in sizes[::-1][:3]],
            also=("batch.global_size", "batch.accumulation", "parallel.torchft.group_size"),
        )
    for field in job.resilience.rollbacks:
        yield Problem(
            field,
            "rollback needs a checkpoint that all replica groups have, and the others may lack it",
            valid=("fail", "skip"),
            also=("parallel.torchft",),
        )


@rule(
    needs=tokenizer_needs,
    when=lambda job: isinstance(job.model, TransformerConfig) and job.parallel.divides_matrices,
)
def tensor_problems(job: Job) -> Iterator[Problem]:
    """Matrices and sequences that tensor parallelism cannot divide."""
    from setpoint.model.parameters import embedding_rows

    model, ranks = job.model, job.parallel.degrees["tensor"]
    assert isinstance(model, TransformerConfig)
    yield from _undivided(ranks, model.heads, "heads", "model.heads")
    if model.mla is None and model.kv_heads % ranks and ranks % model.kv_heads:
        valid = [n for n in range(1, model.heads + 1) if model.heads % n == 0]
        fits = [n for n in valid if n % model.kv_heads == 0 or model.kv_heads % n == 0]
        yield Problem(
            TENSOR,
            f"{ranks} ranks cannot divide the {model.kv_heads} key-value heads, nor share them "
            "equally",
            valid=[str(n) for n in sorted(fits, key=lambda n: abs(n - ranks))[:3]],
            also=("model.kv_heads",),
        )
    moe = model.moe
    if moe is None or not all(moe.has_experts(layer) for layer in range(model.layers)):
        yield from _undivided(ranks, model.ffn_dim, "feed-forward dimensions", "model.ffn_dim")
    if moe is not None and moe.shared_experts:
        width = moe.shared_experts * moe.width(model.ffn_dim)
        yield from _undivided(
            ranks, width, "feed-forward dimensions of shared experts", "model.moe.shared_experts"
        )
    yield from _cut_blocks(job, "tensor")
    tokens = known_vocabulary(job.tokenizer)
    rows = 0 if tokens is None else embedding_rows(model, tokens)
    if rows and rows <= (ranks - 1) * -(-rows // ranks):
        yield Problem(
            TENSOR,
            f"{ranks} ranks with {-(-rows // ranks)} embedding rows each leave none of the "
            f"{rows} for the last one",
            also=("model.vocab_size",),
        )
    if job.parallel.sequence_parallel:
        yield from _undivided_sequences(job)


def _undivided(ranks: int, count: int, noun: str, field: str) -> Iterator[Problem]:
    if count % ranks:
        yield Problem(
            TENSOR,
            f"{ranks} ranks cannot divide {count} {noun}",
            valid=[str(n) for n in nearest_divisors(count, ranks)],
            also=(field,),
        )


def _undivided_sequences(job: Job) -> Iterator[Problem]:
    """Sequence lengths that sequence parallelism cannot divide."""
    step = job.parallel.degrees["tensor"] * job.parallel.sequence_multiple
    lengths = {
        "batch.sequence_length": job.batch.sequence_length,
        "data.packing.pad_to_multiple_of": job.data.packing.pad_to_multiple_of,
    }
    for field, length in lengths.items():
        if length is not None and length % step:
            yield Problem(
                field,
                f"{length} tokens are not a multiple of {step}, by which sequence parallelism "
                "divides them",
                valid=[str(size) for size in nearest_multiples(length, step)],
                also=("parallel.sequence_parallel", TENSOR),
            )


@rule(when=lambda job: job.parallel.divides_sequences)
def context_problems(job: Job) -> Iterator[Problem]:
    """Sequences and heads that parallel.ring and parallel.ulysses cannot divide."""
    parallel, length = job.parallel, job.batch.sequence_length
    degrees, multiple = parallel.degrees, parallel.sequence_multiple
    used = [axis for axis in CONTEXT if degrees[axis] > 1]
    # Sequence parallelism divides further, with its own check.
    is_divided_further = parallel.sequence_parallel and parallel.divides_matrices
    if length % multiple and not is_divided_further:
        factors = [f"{degrees[axis]} ({axis})" for axis in used]
        if multiple > parallel.context:
            factors.append("2 (ring_split = zigzag)")
        total = f" = {multiple}" if len(factors) > 1 else ""
        yield Problem(
            "batch.sequence_length",
            f"{length} tokens are not a multiple of {' * '.join(factors)}{total}",
            valid=[str(size) for size in nearest_multiples(length, multiple)],
            also=tuple(f"parallel.{axis}" for axis in used),
        )
    if not isinstance(job.model, TransformerConfig):
        return
    tensor, ulysses = degrees["tensor"], degrees["ulysses"]
    heads = job.model.heads // tensor
    if heads % ulysses:
        where = f"a rank has of {job.model.heads} (parallel.tensor = {tensor})"
        yield Problem(
            "parallel.ulysses",
            f"{ulysses} ranks cannot divide the {heads} heads "
            f"{where if tensor > 1 else 'of the model'}",
            valid=[str(size) for size in nearest_divisors(heads, ulysses)],
            also=("model.heads", *(("parallel.tensor",) if tensor > 1 else ())),
            hint="parallel.ring divides sequences for any number of heads.",
        )


@rule(when=lambda job: isinstance(job.model, TransformerConfig) and job.parallel.divides_layers)
def stage_problems(job: Job) -> Iterator[Problem]:
    """Pipeline stages without a layer, or with parts that the model lacks."""
    assert isinstance(job.model, TransformerConfig)
    pipelining, layers = job.parallel.pipelining, job.model.layers
    ranks = job.parallel.degrees["pipeline"]
    stages = pipelining.stages(ranks)
    if pipelining.split is not None:
        yield from split_problems(pipelining.split, layers, "model.layers")
    elif stages > layers:
        per_rank = stages // ranks
        total = (
            f"{ranks} ranks with {per_rank} stages each = {stages}" if per_rank > 1 else f"{stages}"
        )
        most = layers // per_rank
        degrees = [n for n in range(1, most + 1) if job.parallel.world_size % n == 0]
        yield Problem(
            "parallel.pipeline",
            f"{total} stages exceed the number of layers, {layers}",
            valid=[str(n) for n in sorted(degrees, reverse=True)[:3]],
            also=("model.layers", "parallel.pipelining.schedule"),
        )


def split_problems(
    split: tuple[tuple[str, ...], ...], layers: int, field: str
) -> Iterator[Problem]:
    """Find stages with parts that the model does not have; `field` sets its number of layers."""
    from setpoint.model.parameters import part_names

    expected, given = part_names(layers), [name for stage in split for name in stage]
    empty = [str(number) for number, stage in enumerate(split) if not stage]
    if empty:
        yield Problem(
            f"parallel.pipelining.split.{empty[0]}", "is a stage without parts of the model"
        )
    elif given != expected:
        missing = [name for name in expected if name not in given]
        unknown = [name for name in given if name not in expected]
        repeated = sorted({name for name in given if given.count(name) > 1})
        why = "does not list the parts in order"
        if missing or unknown or repeated:
            faults = (("lacks", missing), ("has unknown", unknown), ("repeats", repeated))
            why = "; ".join(f"{word} {', '.join(names[:4])}" for word, names in faults if names)
        yield Problem(
            "parallel.pipelining.split",
            why,
            valid=(f"stages of embedding, layers.0 to layers.{layers - 1}, output",),
            also=(field,),
        )


@rule(when=lambda job: job.parallel.divides_layers)
def batch_problems(job: Job) -> Iterator[Problem]:
    """Numbers of micro-batches that the pipeline schedule does not support."""
    pipelining, count = job.parallel.pipelining, job.batch.accumulation
    ranks, share = (
        job.parallel.degrees["pipeline"],
        job.batch.global_size // job.parallel.data_ranks,
    )
    problem = pipelining.batch_problem(ranks, count)
    if problem is not None:
        why, valid = problem
        # Prefer numbers that also divide the batch, if there are any.
        even = [n for n in range(1, share + 1) if share % n == 0 and pipelining.fits(ranks, n)]
        valid = sorted(even, key=lambda n: abs(n - count))[:2] or valid
        yield Problem(
            "batch.accumulation",
            f"{count} micro-batch{'es' * (count != 1)} per step: {why}",
            valid=[str(number) for number in valid],
            also=("batch.micro_size", "batch.global_size", "parallel.pipelining.schedule"),
        )
        return
    for stage in job.batch.stages[:-1]:
        count, rest = divmod(stage.size, job.batch.micro_size * job.parallel.data_ranks)
        problem = None if rest else pipelining.batch_problem(ranks, count)
        if problem is not None:
            yield Problem(
                "batch.ramp.increment" if stage.step else "batch.ramp.start",
                f"{count} micro-batch{'es' * (count != 1)} per step from step {stage.step + 1} on: "
                f"{problem[0]}",
                also=("batch.micro_size", "parallel.pipelining.schedule"),
                hint=f"Nearest valid numbers: {', '.join(map(str, problem[1]))}.",
            )
            return


@rule(
    when=lambda job: (
        job.parallel.divides_experts
        and isinstance(job.model, TransformerConfig)
        and job.model.moe is not None
    )
)
def expert_problems(job: Job) -> Iterator[Problem]:
    """Experts, or widths of experts, that ranks cannot divide."""
    model, parallel = job.model, job.parallel
    assert isinstance(model, TransformerConfig) and model.moe is not None
    experts, width = model.moe.experts, model.moe.width(model.ffn_dim)
    ranks = parallel.expert * parallel.expert_shards
    if experts % parallel.expert:
        yield Problem(
            "parallel.expert",
            f"{experts} experts cannot be divided among {parallel.expert} ranks",
            valid=[str(n) for n in nearest_divisors(gcd(experts, ranks), parallel.expert)],
            also=("model.moe.experts",),
        )
        return
    if width % parallel.expert_tensor:
        field = "model.ffn_dim" if model.moe.expert_dim is None else "model.moe.expert_dim"
        yield Problem(
            "parallel.expert_tensor",
            f"{parallel.expert_tensor} ranks cannot divide the width {width} of an expert",
            valid=("1",),
            also=(field, "parallel.tensor"),
        )
    else:
        yield from _cut_blocks(job, "expert_tensor")
    local, shards = experts // parallel.expert, parallel.expert_shards
    if local % shards and model.dim % shards:
        yield Problem(
            "parallel.expert",
            f"leaves {shards} ranks to shard {plural(local, 'expert')}, but {shards} "
            f"divides neither this number nor dim = {model.dim}",
            valid=[
                str(n)
                for n in nearest_divisors(gcd(experts, ranks), parallel.expert, 8)
                if n == 1 or not (experts // n % (ranks // n) and model.dim % (ranks // n))
            ],
            also=("model.moe.experts", "model.dim"),
        )


def _cut_blocks(job: Job, field: Literal["tensor", "expert_tensor"]) -> Iterator[Problem]:
    """Find a quantized matrix whose blocks would be split between the ranks of an axis."""
    model, adapter, is_expert = job.model, job.adapter, field == "expert_tensor"
    ranks = job.parallel.expert_tensor if is_expert else job.parallel.degrees["tensor"]
    if ranks == 1 or adapter is None or adapter.quantize is None or not adapter.can_be_searched:
        return
    from setpoint.adapter.targets import quantized_sites, sites_of
    from setpoint.model.parameters import parameters_of

    assert isinstance(model, TransformerConfig)
    quantize, found = adapter.quantize, list[tuple[str, int, str, int]]()
    for site in quantized_sites(adapter, sites_of(parameters_of(model, 1))):
        if (site.form == "experts") != is_expert:
            continue
        # Queries, keys and values are divided by heads, whatever their blocks.
        if site.path.endswith((".down", ".output")):
            found.append((site.path, site.inputs, "inputs", quantize.columns or 1))
        elif site.path.endswith((".gate", ".up")):
            found.append((site.path, site.outputs, "outputs", quantize.rows))
    for path, width, noun, block in found:
        if width % ranks or width // ranks % block == 0:
            continue  # widths that ranks cannot divide are reported elsewhere
        degrees = [n for n in range(2, ranks) if all(w % (n * b) == 0 for _, w, _, b in found)]
        size = gcd(block, width // ranks)
        alternative = f"set adapter.quantize.group_size = {size}, or " if size % 2 == 0 else ""
        together = " (with parallel.tensor = {})" if is_expert else ""
        yield Problem(
            f"parallel.{field}",
            f"gives each of {ranks} ranks {width // ranks} of the {width} {noun} of {path}, which "
            f"splits blocks of {block} quantized weights",
            valid=["1", *(f"{n}{together.format(n)}" for n in degrees)],
            also=("adapter.quantize", *["parallel.tensor"] * is_expert),
            hint=f"Or {alternative}exclude it with adapter.quantize.exclude.",
        )
        return


@rule(when=lambda job: bool(job.parallel.sharding.replicated))
def replicated_problems(job: Job) -> Iterator[Problem]:
    """Patterns of unsharded parameters that match none, or match divided experts."""
    from setpoint.train.build.job_parameters import trainable_parameters

    parallel = job.parallel
    if not job.model.parameters_known or job.adapter is not None or not parallel.uses_fsdp:
        return
    names = [parameter.name for parameter in trainable_parameters(job, 1)[0]]
    for index, pattern in enumerate(parallel.sharding.replicated):
        if not is_pattern(pattern):
            continue  # the section reports it
        path = f"parallel.sharding.replicated.{index}"
        matches = [name for name in names if re.search(pattern, name)]
        if not matches:
            valid = nearest(pattern, names) or (*names[:3], "...")
            yield Problem(path, "matches no parameter", valid=valid)
        experts = [name for name in matches if "experts." in name]
        if experts and parallel.divides_experts:
            yield Problem(
                path,
                f"matches {experts[0]}, an expert weight that is divided among ranks",
                also=("parallel.expert",),
            )


@rule(when=lambda job: bool(job.parallel.sharding.units))
def unit_problems(job: Job) -> Iterator[Problem]:
    """Patterns of FSDP2 units that match no module, or one that cannot be a unit."""
    from setpoint.model.parameters import parameters_of, units_around_layers

    model, patterns = job.model, job.parallel.sharding.units
    if not (
        isinstance(model, TransformerConfig) and model.parameters_known and job.parallel.uses_fsdp
    ):
        return
    names: dict[str, None] = {}
    for parameter in parameters_of(model, 1):
        parts = parameter.name.split(".")[:-1]
        names.update(dict.fromkeys(".".join(parts[:n]) for n in range(1, len(parts) + 1)))
    units = {name for unit in units_around_layers(model) for name in unit}
    units |= {name for name in names if re.fullmatch(r"layers(\.\d+)?", name)}
    modules = [name for name in names if name not in units]
    for index, pattern in enumerate(patterns):
        if not is_pattern(pattern):
            continue  # the section reports it
        path = f"parallel.sharding.units.{index}"
        matches = [name for name in modules if re.fullmatch(pattern, name)]
        if not matches:
            unit = next((name for name in names if re.fullmatch(pattern, name)), None)
            match = "no module" if unit is None else f"{unit}, which is already a unit"
            yield Problem(
                path,
                f"matches {match}",
                valid=[re.escape(name) for name in modules[:5]],
                hint="A pattern matches whole names; '.*feed_forward' matches names with that end.",
            )
        for name in matches:
            if reason := _why_no_unit(model, name):
                yield Problem(path, f"matches {name}, {reason}")
                break


def _why_no_unit(model: TransformerConfig, name: str) -> str:
    """Reason why a module's weights cannot be gathered when it is called; empty if they can."""
    if name == "embedding" and model.tie_embeddings:
        return "whose weights the loss uses outside the module (model.tie_embeddings)"
    if ".experts." in name or (".experts" in name and model.moe and not model.moe.packed):
        return "which runs only on ranks with tokens for it, but all ranks must gather it"
    return ""
