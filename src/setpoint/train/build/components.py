"""Construction of a job's components, in the order of their dependencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from setpoint.checkpoint.optimizer_state import Options, options_of
from setpoint.config import SetpointError, plural
from setpoint.data.corpus import Corpus
from setpoint.data.document import DataIdentity
from setpoint.data.loader import EvaluationFeed, Feed
from setpoint.data.order import Sampler, merged_state
from setpoint.data.rows import DocumentRows, Sequences, cut_rows
from setpoint.data.stream import Stream
from setpoint.data.tokenizer import Tokenizer
from setpoint.model.build import count_parameters, layers_of, materialize, move_buffers, skeleton
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.initialize import Initializable, initialize
from setpoint.model.parameters import stage_sizes
from setpoint.model.pretrained.locate import DESCRIPTION, read_keys
from setpoint.optim.optimizer import build_optimizer
from setpoint.parallel.determinism import seed_everything
from setpoint.parallel.engines import zero_settings
from setpoint.parallel.world import Replicas, World, reader_of, sequence_parts, world_of
from setpoint.precision.mixed_precision import (
    LossScaler,
    OptimizerParams,
    build_scaler,
    build_weights,
    compute_in,
    shard_dtypes,
    sharding_policy,
    state_dtype,
    store_in,
)
from setpoint.shapes.batch import WHOLE, SequenceParts
from setpoint.shapes.parameter import Parameter
from setpoint.shapes.protocols import Work, no_work
from setpoint.track.console import short_count
from setpoint.train.build.assets import Assets, assets_of
from setpoint.train.build.job_data import (
    build_datasets,
    build_evaluation_rows,
    build_training_data,
    notes_of,
    streamed_sources,
    uneven_split,
)
from setpoint.train.build.job_parameters import (
    adapter_report,
    add_adapter,
    freeze,
    groups_of,
    trained_parameters,
)
from setpoint.train.config import Job, steps_before
from setpoint.train.evaluation.config import HELD_OUT
from setpoint.train.objective import Objective, PipelineObjective, build_pipeline, require_tokens
from setpoint.train.position import LearningRate
from setpoint.train.verdict import BadStepPolicy, SpikedSteps
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    import torch

    from setpoint.adapter.quantized_weight import StepNoise
    from setpoint.adapter.targets import AdapterReport
    from setpoint.compile.compile_model import Compiled
    from setpoint.model.moe.dispatch import TokenDispatcher
    from setpoint.parallel.expert_ranks import ExpertRanks
    from setpoint.parallel.pipeline import Pipeline, Stage
    from setpoint.parallel.replica_groups import ReplicaGroups
    from setpoint.train.embedding_noise import EmbeddingNoise


Empty = Callable[[nn.Module, torch.device, torch.dtype], None]
"""Allocates memory for tensors on the meta device, like `materialize`."""


@dataclass(slots=True)
class Components:
    """The objects of one training job; dry runs build a model without data and omit the rest.

    Arguments:
        corpora: the training corpora: one, or one per source of a mixture.
        train, held_out: the two splits of the data as rows; None if nothing is held out.
        eval_sets: the other data sets of the evaluation, by name.
        feed: provides each step with micro-batches of the training split and their counts.
        eval_feed: provides evaluations with batches; None if nothing is evaluated.
        model: maps (B, S) tokens to (B, S, V) logits.
        objective: the model with its loss; maps tokens and targets to sums over tokens.
        replicas: sum the gradients of all ranks.
        sequence: the positions of sequences on this rank.
        pipeline: runs the stages of this rank; None if it has the whole model.
        all_trained: all trained parameters of the whole model, if this rank has only a part of it.
        adapter: the parameters that the model's adapter adapts, trains and freezes; None without an
            adapter.
        weights: the parameters of the model in the form given to the optimizer.
        options: the initial options of the optimizer's groups, to detect updated counters.
        schedule: maps the position of the run to the factor on the peak learning rate.
        scaler: scales the loss for fp16; does nothing otherwise.
        compiled: tracks whether compiled code runs; None if nothing is compiled.
        pretrained: the recorded description of the initial weights; None if they were random, or if
            the run did not start in this session.
        assets: tokenizer and model files to include in each checkpoint.
        non_finite: policy for non-finite steps.
        spikes: policy for loss spikes; None if there is none.
        replica_groups: replica groups of torchft; None without torchft.
        noise: noise added to quantized weights; None if there is none.
        embedding_noise: noise added to token embeddings; None if there is none.
    """

    world: World
    model: nn.Module = field(init=False)
    objective: Objective = field(init=False)
    replicas: Replicas = field(init=False)
    weights: OptimizerParams = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    options: Options = field(init=False)
    pipeline: Pipeline | None = None
    all_trained: list[Parameter] | None = None
    adapter: AdapterReport | None = None
    compiled: Compiled | None = None
    pretrained: dict[str, Any] | None = None
    noise: StepNoise | None = None
    embedding_noise: EmbeddingNoise | None = None
    sequence: SequenceParts = WHOLE

    tokenizer: Tokenizer = field(init=False)
    corpora: tuple[Corpus | Stream, ...] = ()
    train_data: Sequences = field(init=False)
    held_out: DocumentRows | None = None
    eval_sets: dict[str, DocumentRows] = field(default_factory=dict)
    feed: Feed = field(init=False)
    eval_feed: EvaluationFeed | None = None
    assets: Assets = field(default_factory=Assets)

    schedule: LearningRate = field(init=False)
    scaler: LossScaler = field(init=False)
    non_finite: BadStepPolicy = field(init=False)
    spikes: SpikedSteps | None = None
    replica_groups: ReplicaGroups | None = None

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The full shapes of the model's tensors in a checkpoint, for the part on this rank."""
        state = self.model.state_dict(keep_vars=True)
        return {name: self.replicas.shape_of(tensor) for name, tensor in state.items()}

    @property
    def parameter_count(self) -> int:
        """The number of parameters of the whole model."""
        if self.replicas.count is not None:
            return self.replicas.count
        if self.adapter is not None:
            return self.adapter.adapter + self.adapter.trained + self.adapter.frozen
        if self.all_trained is None:
            return count_parameters(self.model)
        return sum(prod(param.shape) for param in self.all_trained)

    def data_position(self) -> dict[str, Any]:
        """Position in the data, equal on all ranks; a collective."""
        state = self.feed.state_dict()
        # Each rank of a replica group has all values, and the ranks of a group may not synchronize
        # here.
        if not self.feed.sampler.is_dealt or self.replica_groups is not None:
            return state
        return merged_state(self.world.all_of(state))

    def begin_noise(self, step: int) -> None:
        """Set the step whose noise is drawn: the number of completed steps."""
        for noise in (self.noise, self.embedding_noise):
            if noise is not None:
                noise.step = step

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.world.device


def build_components(
    job: Job,
    fresh: bool = True,
    show: Work = no_work,
    tokenizer_files: Path | None = None,
    model_files: Path | None = None,
    world: World | None = None,
) -> Components:
    """Build all components of a job, without writing to the run directory.

    The objects require `open.settings_of(job)`, which the caller enters before, and leaves after
    training.

    Arguments:
        fresh: whether the run is new, so that `model.pretrained` applies; a resumed run has its own
            weights.
        tokenizer_files: the directory with the tokenizer's files; None: `tokenizer.path`.
        model_files: the checkpoint with the config.json of a transformers model; None:
            `model.config`.
        world: the world of this process; None: build it from `job.parallel`.

    Raises:
        SetpointError: the data is empty or cannot be read, the device is missing, or the loss does
            not suit the tokenizer or the model.
    """
    components = Components(world or world_of(job.parallel))
    assert job.seed is not None
    # Models that initialize themselves do so equally on all ranks; each step has its own seed.
    seed_everything(job.seed)
    from_files = {} if tokenizer_files is None else {"directory": tokenizer_files}
    components.tokenizer = job.tokenizer.build(**from_files)
    require_tokens(job.loss, components.tokenizer.vocab_size)
    sampler = _build_rows(job, components, show)
    keys = None if model_files is None else read_keys(model_files, DESCRIPTION)
    build_trained(
        job,
        components,
        components.tokenizer.vocab_size,
        len(components.train_data.sources),
        fresh,
        keys,
    )
    if job.data.packing.isolate and not components.objective.takes_documents:
        raise SetpointError(
            f"data.packing.isolate: true needs a model that accepts documents, but a "
            f"{type(components.model).__name__} accepts only tokens.\nValid: false, or a model "
            "with takes_documents = True."
        )
    _build_feeds(job, components, sampler)
    components.schedule = LearningRate(
        job.schedule,
        job.batch,
        components.train_data.epoch_rows,
        phases=[
            (steps_before(phase.start, job.batch), phase.lr_factor) for phase in job.data.all_phases
        ],
        merge=None if job.adapter is None else job.adapter.merge,
    )
    components.assets = assets_of(
        job.model, components.tokenizer, components.pretrained, keys, job.data.sources
    )
    return components


def _build_rows(job: Job, components: Components, show: Work) -> Sampler:
    """Read the data, and divide it into training and evaluation rows."""
    components.corpora, kept_back = job.data.build(tokenizer=components.tokenizer, show=show)
    if job.evaluation is not None:
        assert kept_back is not None, "the configuration is refused otherwise"
        texts = job.data.validation or job.data.sources
        components.held_out = build_evaluation_rows(job, kept_back, texts)
    elif kept_back is not None:  # for records only; its rows are not read
        components.held_out = cut_rows(kept_back, job.batch.sequence_length)
    components.eval_sets = build_datasets(job, components.tokenizer, show)
    ranks = None
    # Ranks of replica groups come and go, so no rank may wait for another's tokens.
    if job.parallel.torchft is None and any(
        isinstance(corpus, Stream) and not corpus.is_shuffled for corpus in components.corpora
    ):
        ranks = components.world.with_own_group("data", job.parallel.timeout)
    components.train_data, sampler = build_training_data(job, components.corpora, ranks)
    return sampler


def _build_feeds(job: Job, components: Components, sampler: Sampler) -> None:
    """Build the feeds of micro-batches for training and evaluation."""
    world, loader = components.world, job.data.loader
    components.feed = Feed(
        components.train_data,
        sampler,
        components.objective.count,
        micro_size=job.batch.micro_size,
        accumulation=job.batch.accumulation,
        data_rank=world.data_rank,
        data_size=world.data_size,
        divides=job.parallel.torchft is not None,
        loader=loader.of_training.on(world.device.type),
    )
    if job.evaluation is None:
        return
    assert components.held_out is not None
    texts: dict[str, DocumentRows] = {HELD_OUT: components.held_out, **components.eval_sets}
    components.eval_feed = EvaluationFeed(
        {name: (text, job.evaluation.sequences_of(name)) for name, text in texts.items()},
        micro_size=job.batch.micro_size,
        data_rank=world.data_rank,
        data_size=world.data_size,
        loader=loader.of_evaluation.on(world.device.type),
    )


def build_trained(
    job: Job,
    components: Components,
    vocab_size: int,
    sources: int = 1,
    fresh: bool = True,
    keys: Mapping[str, Any] | None = None,
    empty: Empty | None = None,
) -> Components:
    """Build the model of a job, its loss and its optimizer, none of which need data.

    Arguments:
        components: contains only the world; the objects built are added.
        sources: the number of sources of the training data.
        fresh, keys, empty: see `build_model_parts`.

    Raises:
        SetpointError: the job's model cannot be built, parallelized or stored.
    """
    assert job.seed is not None
    world, device = components.world, components.device
    full, stages = build_model_parts(job, components, vocab_size, fresh, keys, empty)
    model, parallel = components.model, job.parallel
    components.sequence = sequence_parts(parallel, world)
    if job.model.embedding_noise:
        from setpoint.train.embedding_noise import EmbeddingNoise, noise_alpha

        components.embedding_noise = EmbeddingNoise(
            noise_alpha(job.model), job.seed, model, device, components.sequence
        )
    layers = layers_of(model)
    has_layers = bool(layers) or not stages  # the last stage may be only the output
    memory = job.memory
    if has_layers and memory.activation_checkpointing is not None:
        memory.activation_checkpointing.build(layers=layers)
    if has_layers and memory.activation_offload is not None:
        memory.activation_offload.build(model=model, device=device)
    is_graph = job.compile is not None and job.compile.scope == "graph"
    if job.compile is not None and has_layers and not is_graph:
        splits = parallel.splits_backward
        components.compiled = job.compile.build(model=model, layers=layers, splits_backward=splits)
    if parallel.uses_fsdp:
        _set_gathers(job, model, stages)
    components.weights = build_weights(job.precision, model, full, parallel.uses_fsdp)
    named = components.weights.named_parameters()
    groups = groups_of(job.optimizer, model, named, components.all_trained)
    components.optimizer = build_optimizer(
        job.optimizer, groups, state_dtype(job.precision), job.seed
    )
    if parallel.uses_deepspeed:
        components.all_trained = trained_parameters(model)
    components.options = options_of(components.optimizer)
    settings = zero_settings(job)
    if settings is not None and world.size > 1:
        from setpoint.parallel.zero import ZeroReplicas

        computing = partial(compute_in, job.precision.compute, job.precision.params, device)
        components.replicas = ZeroReplicas(settings, world, model, components.optimizer, computing)
    elif world.size == 1:
        components.replicas = Replicas(model)
    else:
        from setpoint.parallel.replicas import TorchReplicas

        # DDP would read the values of the weights.
        by_hand = is_graph or empty is not None
        components.replicas = TorchReplicas(parallel, world, model, by_hand)
    loss = job.loss.build()
    if parallel.splits_backward and hasattr(loss, "retains"):
        loss.retains = True
    if stages:
        components.pipeline = build_pipeline(job, world, model, stages)
        components.objective = PipelineObjective(model, loss, sources, components.pipeline)
    else:
        components.objective = Objective(model, loss, sources, components.replicas.model)
    if job.compile is not None and is_graph:
        from setpoint.compile.compile_model import compile_step

        components.compiled = compile_step(job.compile, components.objective)
    if job.adapter is not None:
        from setpoint.adapter.quantized_weight import noise_of

        components.noise = noise_of(model)
    components.scaler = build_scaler(job.precision, device)
    components.non_finite = BadStepPolicy(job.resilience.non_finite, "resilience.non_finite")
    if job.resilience.spike is not None:
        components.spikes = SpikedSteps(job.resilience.spike)
    return components


def build_model_parts(
    job: Job,
    components: Components,
    vocab_size: int,
    fresh: bool = True,
    keys: Mapping[str, Any] | None = None,
    empty: Empty | None = None,
) -> tuple[dict[str, Tensor], list[Stage]]:
    """Build a model, reduce it to this rank's part, and initialize its weights.

    Setpoint's own models are created on the meta device and divided there, then allocated on their
    device in their storage dtype and initialized in place, so that there is no other copy. Other
    models are created in memory, because only they know their initialization: models without rules
    initialize themselves, using the generators of the process.

    Arguments:
        fresh: whether the run is new, so that `model.pretrained` applies.
        keys: the config.json of a transformers model; None: `model.config`.
        empty: allocates memory with arbitrary content without initializing weights; None: weights
            are initialized.

    Returns:
        fp32 weights by name, which become the masters, empty if there are no masters; and the
        pipeline stages of this rank, empty without a pipeline.

    Raises:
        SetpointError: the model cannot be built, or the initial weights do not match it.
    """
    assert job.seed is not None
    world, device = components.world, components.device
    reader = reader_of(job.parallel, world)
    offload = job.parallel.uses_fsdp and job.parallel.sharding.offload
    begins = torch.device("cpu") if offload or job.parallel.init_device == "cpu" else device
    starts = empty is None and fresh and job.model.pretrained is not None
    cut = job.parallel.divides_layers
    if isinstance(job.model, TransformerConfig):
        model = skeleton(job.model, vocab_size)
        _use_float8(job, model, device)
        adapted = add_adapter(job, model)
        components.all_trained = trained_parameters(model) if cut else None
        stages = divide_model(job, world, model)
        # Masters are copied from the weights before these are rounded.
        dtype = torch.float32 if job.precision.master else DType(job.precision.params).torch()
        if starts:
            from setpoint.model.pretrained.load import start_from

            has_more = cut or job.adapter is not None
            undivided = skeleton(job.model, vocab_size) if has_more else None
            components.pretrained = start_from(job.model, model, begins, dtype, undivided, reader)
            if adapted is not None:
                from setpoint.train.build.adapter import start_adapter

                start_adapter(model, job.seed, begins, dtype)
        else:
            (empty or materialize)(model, begins, dtype)
            if empty is None and adapted is None:
                initialize(model, job.seed)
            elif empty is None:
                from setpoint.train.build.adapter import adapter_rules, start_magnitudes

                initialize(model, job.seed, adapter_rules(model))
                start_magnitudes(model)
    else:
        from setpoint.model.build import build_model
        from setpoint.model.pretrained.load import start_from

        # Without memory if it gets no weights, which only a family of transformers supports.
        is_planned = empty is not None and isinstance(job.model, HuggingFaceConfig)
        with torch.device("meta") if is_planned else nullcontext():
            model = build_model(job.model, vocab_size, keys)
        if empty is None and isinstance(model, Initializable):
            initialize(model, job.seed)
        if starts:
            components.pretrained = start_from(job.model, model, broadcast=reader)
        _use_float8(job, model, device)
        adapted = add_adapter(job, model)
        if empty is None and adapted is not None:
            from setpoint.train.build.adapter import start_adapter

            start_adapter(model, job.seed)
        components.all_trained = trained_parameters(model) if cut else None
        stages = divide_model(job, world, model if is_planned else model.to(begins))
        if empty is not None and is_planned:
            empty(model, begins, DType(job.precision.params).torch())
    if job.precision.float8 is not None:
        from setpoint.precision.float8 import require_parts_fit

        require_parts_fit(job.precision.float8, model, job.parallel.degrees["tensor"])
    freeze(job.optimizer, model)
    full = store_in(job.precision, model, _shards(job, model, stages))
    if offload:
        move_buffers(model, device)
    elif begins != device:
        model.to(device)
    components.model = model
    components.adapter = None if adapted is None else adapter_report(job, adapted)
    return full, stages


def _use_float8(job: Job, model: nn.Module, device: torch.device) -> None:
    """Convert linear layers to float8 if configured, before adapters are added."""
    if job.precision.float8 is not None:
        from setpoint.precision.float8 import require_float8, use_float8

        require_float8(job.precision.float8, device)
        use_float8(job.precision.float8, model)


def divide_model(job: Job, world: World, model: nn.Module) -> list[Stage]:
    """Parallelize a model by the degrees of the job.

    Returns:
        see `setpoint.parallel.divide.divide`.

    Raises:
        SetpointError: `[precision]` requires something that divided parameters do not support.
    """
    if world.mesh is None:
        return []
    from setpoint.parallel.divide import divide

    policy = partial(sharding_policy, job.precision)

    def exchange(ranks: ExpertRanks) -> TokenDispatcher:
        from setpoint.model.moe.dispatch import build_dispatcher

        of_ranks = ranks.group, ranks.same_tokens, ranks.divides
        is_compiled = job.compile is not None
        return build_dispatcher(job.parallel.dispatch, job.model, *of_ranks, is_compiled)

    keeps_columns = type(job.loss).takes_columns and job.parallel.loss_parallel is not False
    layers = layers_of(model)
    is_cut = world.degrees.get("pipeline", 1) > 1
    tokens: int = getattr(model, "vocab_size", 0)
    sizes = stage_sizes(job.model, tokens, job.batch.sequence_length) if is_cut else None
    gathers = not keeps_columns
    return divide(job.parallel, world, model, layers, policy, exchange, gathers, sizes)


def _set_gathers(job: Job, model: nn.Module, stages: Sequence[Stage]) -> None:
    """Set the dtypes in which FSDP2 gathers and reduces each sharded weight."""
    from setpoint.parallel.sharding import set_dtypes

    set_dtypes(stages or [model], shard_dtypes(job.precision, model))
    float8 = job.precision.float8
    if float8 is not None and float8.gathers(job.parallel.reshard):
        from setpoint.precision.float8_gather import gather_in_float8

        gather_in_float8(stages or [model])


def _shards(job: Job, model: nn.Module, stages: Sequence[Stage]) -> list[nn.Parameter]:
    """Local shards of the weights sharded by FSDP2."""
    if not job.parallel.uses_fsdp:
        return []
    from setpoint.parallel.sharding import sharded_weights

    return [weight.shard for weight in sharded_weights(stages or [model])]


def data_line(job: Job, components: Components) -> str:
    """Describe the data: size, notes, and the number of epochs in the duration."""
    corpora = [corpus for corpus in components.corpora if isinstance(corpus, Corpus)]
    phrases, held_out = streamed_sources(components.corpora), ""
    if components.held_out is not None:
        tokens = "" if corpora else " tokens"
        held_out = f", {short_count(len(components.held_out.corpus.tokens))}{tokens} held out"
    if corpora:
        train = DataIdentity.joined([corpus.identity for corpus in corpora])
        prepared = "" if train.prepared is None else f", from prepared data in {train.prepared}"
        phrases.append(
            f"{plural(len(train.files), 'document')}, "
            f"{short_count(train.tokens or 0)} tokens to train on{held_out}{prepared}"
        )
    else:
        phrases[-1] += held_out
    notes = [f"data: {', '.join(phrases)}", *notes_of(components.train_data)]
    notes += [
        f"{rows.identity.side.replace('_', '-')}: {rows.note}"
        for rows in (components.held_out, *components.eval_sets.values())
        if isinstance(rows, DocumentRows) and rows.note
    ]
    lines = [note for corpus in corpora for note in corpus.notes]
    if components.held_out is not None:
        lines += components.held_out.corpus.notes
        if corpora and not job.data.validation:
            lines += uneven_split(corpora, components.held_out.corpus, job.data.held_out)
    # An epoch is one pass over all windows, each of which is a sequence of a step.
    epoch_rows, batch = components.train_data.epoch_rows, job.batch
    # Rows of whole documents are as many as the order of the epoch makes them.
    about = "" if job.data.packing.method in ("concatenate", "none") else "about "
    for limit in job.duration.limits if epoch_rows else ():
        assert epoch_rows is not None
        if limit.unit == "epochs":
            steps = math.ceil(batch.steps_for(limit.count * epoch_rows))
            notes.append(f"{limit.text} = {about}{steps:,} steps")
        elif limit.unit in ("steps", "tokens"):
            rows = limit.count / batch.sequence_length
            if limit.unit == "steps":
                rows = batch.sequences_before(int(limit.count))
            notes.append(f"{limit.text} = {about}{rows / epoch_rows:.3g} epochs")
    return "\n".join(["; ".join(notes), *lines])
