"""Search for the fastest topologies of a job on a number of GPUs that fit into memory.

The search covers all meshes whose degrees multiply to the number of ranks and divide the model and
the batch, with all micro-batches, recomputation policies and pipeline schedules. Each topology has
a lower bound of its step time, from its computation, the filling and draining of its pipeline, and
the traffic of its weights. The search is branch and bound: the lowest bound is expanded first, and
the search ends when no bound is below the best results, so that few topologies have to be timed.
"""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from setpoint.config import Composition, ConfigError, SetpointError, chain_of
from setpoint.config.values.origin import COMMAND_LINE, ENVIRONMENT, FILE, Recorded
from setpoint.memory.config import SAVE, Full, Operators
from setpoint.parallel.config import AXES, REST, Parallel
from setpoint.parallel.pipelining import SCHEDULES
from setpoint.plan.gpus import GpuSpec, Links, Network, group_of
from setpoint.plan.memory import RankMemory, rank_memory
from setpoint.plan.step_time import Kernels, StepTime, seconds_of_passes, step_time
from setpoint.plan.topology import Recompute, Topology, stride
from setpoint.plan.traffic import weight_turns
from setpoint.plan.workload import Workload
from setpoint.train.config import Job
from setpoint.units.size import in_units

POLICIES = (Recompute(), Recompute(Operators, tuple(sorted(SAVE))), Recompute(Full))
"""Policies to search: no recomputation, all but products and attention, whole layers."""
TRIED = (("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4), ("zbv_zero_bubble", 2))
"""Schedules and stages per rank to try, unless they are fixed."""
FILLING = 0.9
"""Lower bound of the share of the filling and draining time of a balanced pipeline."""
MOST_ROWS = 64
"""Maximum sequences of a micro-batch."""
SPARE = 5
"""Spare results, as rules may refuse some."""
MOST_STAGES = 16
"""Maximum pipeline ranks, unless fixed: simulating longer pipelines takes seconds."""
LAYERS = 0.8
"""Share of the weights that is gathered in each pass: those around the layers are not."""
ROUNDED = 0.99
"""Share of the activations of a micro-batch that scales with its size for certain."""
LOOKED_AT = 300
"""Meshes to try for the least memory if none fits."""
LARGER = 6
"""Maximum doublings of the number of ranks in search of one that fits."""


class SearchSpace(NamedTuple):
    """Search space.

    Arguments:
        start: values that are not searched.
        fixed: fields of a topology that the user has set.
        limit: maximum bytes of a rank.
    """

    workload: Workload
    world_size: int
    start: Topology
    fixed: Mapping[str, Any]
    gpu: GpuSpec
    network: Network
    kernels: Kernels
    limit: int

    def options(self, name: str, free: Sequence[Any]) -> Sequence[Any]:
        """Values to search for a field."""
        return (self.fixed[name],) if name in self.fixed else free


class Candidate(NamedTuple):
    """Topology that fits into memory.

    Arguments:
        memory: memory of the rank with the highest peak.
    """

    topology: Topology
    memory: RankMemory
    time: StepTime


class SearchResult(NamedTuple):
    """Result of a search.

    Arguments:
        best: fastest first.
        meshes: number of meshes.
        timed: number of topologies whose step was timed.
        unknown: reason why topologies of unknown memory were left out; empty if there were none.
    """

    best: list[Candidate]
    meshes: int
    timed: int
    unknown: str = ""


class Least(NamedTuple):
    """Topology with the least memory, if none fits.

    Arguments:
        ranks: a sufficient number of ranks; None if more ranks do not help.
    """

    topology: Topology
    memory: RankMemory
    ranks: int | None


def search(space: SearchSpace, count: int) -> SearchResult:
    """Find the fastest topologies that fit.

    Arguments:
        count: number of results; a few more may be returned.

    Raises:
        SetpointError: no mesh suits the model, the batch and the fixed values, or the optimizer's
            state is unknown.
    """
    _require_known_state(space)
    all_meshes = list(meshes(space))
    if not all_meshes:
        raise SetpointError(_no_mesh(space))
    bounds = _Bounds(space)
    # The numbers order topologies with equal bounds.
    queue: list[tuple[float, int, bool, Topology]] = [
        (bounds.mesh(mesh), number, False, mesh) for number, mesh in enumerate(all_meshes)
    ]
    heapq.heapify(queue)
    best: list[tuple[float, int, int, Candidate]] = []
    most, number, timed = count + SPARE, len(queue), 0
    while queue:
        bound, _, is_leaf, topology = heapq.heappop(queue)
        if len(best) == most and bound >= best[-1][0]:
            break
        if not is_leaf:
            for leaf in _leaves(space, topology):
                number += 1
                heapq.heappush(queue, (bounds.leaf(leaf), number, True, leaf))
            continue
        if not bounds.fits(topology):
            continue
        time = step_time(space.workload, topology, space.gpu, space.network, space.kernels)
        timed += 1
        if len(best) == most and time.seconds >= best[-1][0]:
            continue
        memory = most_memory(space.workload, topology)
        if memory.unknown or memory.total > space.limit:
            continue
        best.append((time.seconds, memory.total, number, Candidate(topology, memory, time)))
        number += 1
        best.sort(key=lambda entry: entry[:3])
        del best[most:]
    return SearchResult(
        [candidate for *_, candidate in best], len(all_meshes), timed, bounds.unknown
    )


def least_memory(space: SearchSpace) -> Least:
    """Find the topology with the least memory, and a sufficient number of ranks."""
    best = _least(space)
    ranks, size = None, space.world_size
    for _ in range(LARGER):
        size *= 2
        larger = space._replace(world_size=size)
        try:
            if _least(larger)[1].total <= space.limit:
                ranks = size
                break
        except SetpointError:  # the batch or the model does not divide among so many
            continue
    return Least(*best, ranks)


def _require_known_state(space: SearchSpace) -> None:
    if space.workload.unknown_state:
        raise SetpointError(
            f"the memory of a step is unknown: only {space.workload.unknown_state} itself knows "
            f"the size of its optimizer state"
        )


def _least(space: SearchSpace) -> tuple[Topology, RankMemory]:
    _require_known_state(space)
    candidates = sorted(meshes(space), key=lambda mesh: mesh.copies)[:LOOKED_AT]
    leaves = [
        leaf
        for mesh in candidates
        for leaf in _leaves(space, mesh)
        if leaf.micro_size == min(_rows(space, mesh))
    ]
    if not leaves:
        raise SetpointError(_no_mesh(space))
    memories = [(_at_ends(space, leaf), leaf) for leaf in leaves]
    known = [(memory.total, leaf) for memory, leaf in memories if not memory.unknown]
    if not known:
        raise SetpointError(f"the memory of a step is unknown: {memories[0][0].unknown}")
    topology = min(known, key=lambda pair: (pair[0], pair[1].accumulation))[1]
    return topology, most_memory(space.workload, topology)


def meshes(space: SearchSpace) -> Iterator[Topology]:
    """All meshes that suit the model and the batch.

    Raises:
        SetpointError: a fixed degree does not divide the number of ranks.
    """
    w, start = space.workload, space.start
    fixed = {axis: space.fixed[axis] for axis in AXES if axis in space.fixed}
    if space.world_size % prod(fixed.values()):
        given = " * ".join(f"{degree} (parallel.{axis})" for axis, degree in fixed.items())
        raise SetpointError(
            f"--world-size: {space.world_size} ranks cannot be divided by the fixed degrees, "
            f"{given} = {prod(fixed.values())}\nValid: multiples of {prod(fixed.values())}, or "
            "fewer fixed axes"
        )
    node = space.gpu.node.ranks
    heads = [
        degree for degree in divisors(space.world_size) if degree <= node and not w.heads % degree
    ]
    for tensor in space.options("tensor", heads):
        if space.world_size % tensor or _cuts_badly(w, tensor):
            continue
        left = space.world_size // tensor
        layers = [degree for degree in divisors(left) if degree <= min(w.layers, MOST_STAGES)]
        for pipeline in space.options("pipeline", layers):
            if left % pipeline:
                continue
            for ring, ulysses, left_over in _contexts(space, left // pipeline, tensor):
                for shard in space.options("shard", divisors(left_over)):
                    if left_over % shard:
                        continue
                    replicate = left_over // shard
                    if replicate not in space.options("replicate", (replicate,)):
                        continue
                    mesh = start._replace(
                        pipeline=pipeline, replicate=replicate, shard=shard, ring=ring,
                        ulysses=ulysses, tensor=tensor,
                        sequence_parallel=pipeline == 1  # stages pass on whole sequences
                        and _divides_sequences(space, tensor, ring, ulysses),
                    )  # fmt: skip
                    if list(_rows(space, mesh)):
                        yield mesh


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number."""
    return tuple(divisor for divisor in range(1, number + 1) if number % divisor == 0)


def _cuts_badly(w: Workload, tensor: int) -> bool:
    """True if `tensor` divides heads or inner widths unevenly."""
    if w.heads % tensor or (w.kv_heads % tensor and tensor % w.kv_heads):
        return True
    widths = [
        size
        for kind in w.kinds
        for piece in kind.pieces
        for name, size in piece.sizes
        if (piece.role, name) in (("feed_forward", "F"), ("experts", "G"))
    ]
    return any(width % tensor for width in widths)


def _contexts(space: SearchSpace, left: int, tensor: int) -> Iterator[tuple[int, int, int]]:
    """Degrees of `ring` and `ulysses`, with the remaining ranks."""
    w = space.workload
    for ring in space.options("ring", divisors(left)):
        halves = 2 if ring > 1 else 1
        if left % ring or w.length % (ring * halves):
            continue
        for ulysses in space.options("ulysses", divisors(left // ring)):
            if left // ring % ulysses or w.length % (ring * halves * ulysses):
                continue
            if not w.heads // tensor % ulysses:
                yield ring, ulysses, left // ring // ulysses


def _divides_sequences(space: SearchSpace, tensor: int, ring: int, ulysses: int) -> bool:
    parts = tensor * ring * ulysses * (2 if ring > 1 else 1)
    free = (not space.workload.length % parts,)
    return tensor > 1 and space.options("sequence_parallel", free)[0]


def _rows(space: SearchSpace, mesh: Topology) -> Iterator[int]:
    """Valid numbers of sequences in a micro-batch of a mesh."""
    sequences = space.workload.tokens // space.workload.length
    if sequences % mesh.data_ranks:
        return
    share = sequences // mesh.data_ranks
    for rows in space.options("micro_size", divisors(share)):
        count = space.options("accumulation", (share // rows,))[0]
        if rows * count == share and (rows <= MOST_ROWS or "micro_size" in space.fixed):
            yield rows


def _leaves(space: SearchSpace, mesh: Topology) -> Iterator[Topology]:
    """All topologies of a mesh."""
    sequences = space.workload.tokens // space.workload.length // mesh.data_ranks
    reshards = (None, False) if mesh.pipeline == 1 and mesh.shards > 1 else (None,)
    for rows in _rows(space, mesh):
        batch = mesh._replace(micro_size=rows, accumulation=sequences // rows)
        for recompute in space.options("recompute", POLICIES):
            for reshard in space.options("reshard", reshards):
                for schedule, stages in _schedules(space, batch):
                    for expert in _experts(space, batch):
                        yield batch._replace(
                            recompute=recompute, reshard=reshard, schedule=schedule,
                            stages_per_rank=stages, expert=expert,
                        )  # fmt: skip


def _schedules(space: SearchSpace, batch: Topology) -> Iterator[tuple[str, int]]:
    """Schedules that support the number of micro-batches, with their stages per rank."""
    if batch.pipeline == 1:
        yield space.start.schedule, 1
        return
    count, ranks = batch.accumulation, batch.pipeline
    given = space.fixed.get("schedule"), space.fixed.get("stages_per_rank")
    tried = TRIED
    if given[0] is not None:
        tried = tuple(option for option in TRIED if option[0] == given[0])
        tried = tried or ((given[0], SCHEDULES[given[0]].stages),)
    for schedule, stages in tried:
        stages = given[1] or stages
        if ranks * stages > space.workload.layers:
            continue
        if count < ranks * (stages if SCHEDULES[schedule].is_filled else 1):
            continue  # ranks would always wait
        if SCHEDULES[schedule].is_interleaved and count % (count // ranks):
            continue
        yield schedule, stages


def _experts(space: SearchSpace, batch: Topology) -> Sequence[int]:
    experts = space.workload.experts
    if not experts:
        return (1,)
    ranks = batch.shard * batch.context * batch.tensor // batch.expert_tensor
    free = [degree for degree in divisors(ranks) if degree <= experts and not experts % degree]
    return [degree for degree in space.options("expert", free) if not ranks % degree]


def _at_ends(space: SearchSpace, topology: Topology) -> RankMemory:
    """Memory of the first or the last pipeline rank, whichever is larger."""
    memories = [rank_memory(space.workload, topology, rank) for rank in _ends(topology)]
    return max(memories, key=lambda memory: memory.total)


def _ends(topology: Topology) -> tuple[int, ...]:
    if topology.pipeline == 1:
        return (0,)
    return (0, (topology.pipeline - 1) * stride(topology.degrees, "pipeline"))


def most_memory(workload: Workload, topology: Topology) -> RankMemory:
    """Memory of the rank with the highest peak, which depends only on the pipeline rank."""
    step = stride(topology.degrees, "pipeline")
    ranks = (rank_memory(workload, topology, stage * step) for stage in range(topology.pipeline))
    return max(ranks, key=lambda memory: memory.total)


class _Bounds:
    """Lower bounds on the seconds and bytes of a step."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.links = Links.of(space.gpu, space.network)
        self.passes: dict[Topology, float] = {}
        self.sent: dict[Topology, float] = {}
        w = space.workload
        weights = [weight for number in w.order for weight in w.kinds[number].weights]
        dense = [weight for weight in weights if weight.division != "experts"]
        self.gathered = sum(weight.gathered * weight.times for weight in dense)
        numbers = sum(weight.numbers * weight.times for weight in dense if weight.is_trained)
        self.reduced = numbers * w.formats.reduce
        bandwidth = space.gpu.bandwidth * space.gpu.assumed.memory
        moved = 2 * (w.formats.master or w.formats.params) + 4 * w.formats.gradient
        self.update = numbers * moved / bandwidth

        self.unknown = ""
        self.active: dict[Topology, float] = {}
        """Activation bytes per sequence of a micro-batch, by topology without its size and without
        the sharding of weights."""
        kept = not w.weights_on_host
        self.fixed = sum(
            weight.times
            * (weight.sharded + weight.is_trained * weight.numbers * kept * weight.state[0])
            for weight in weights
        )

    def fits(self, topology: Topology) -> bool:
        """True if the first and the last pipeline rank fit.

        Activations grow with the micro-batch and do not depend on the sharding of weights, so one
        known size rules out most topologies that do not fit.
        """
        space = self.space
        key = topology._replace(
            replicate=1, shard=1, reshard=None, expert=1, micro_size=1,
            accumulation=topology.accumulation if topology.pipeline > 1
            else min(topology.accumulation, 2),
        )  # fmt: skip
        ranks = topology.pipeline * topology.tensor * topology.shards
        weights = 0 if space.workload.weights_on_host else self.fixed // ranks
        rows = topology.micro_size
        if weights + ROUNDED * rows * self.active.get(key, 0.0) > space.limit:
            return False
        for rank in _ends(topology):
            memory = rank_memory(space.workload, topology, rank)
            if memory.unknown:
                self.unknown = memory.unknown
                return False
            active = memory.activations + memory.recomputed + memory.logits
            self.active[key] = max(self.active.get(key, 0.0), active / rows)
            if memory.total > space.limit:
                return False
        return True

    def mesh(self, mesh: Topology) -> float:
        """Lower bound for a mesh: its largest micro-batch, without recomputation."""
        rows = max(_rows(self.space, mesh))
        policy = self.space.options("recompute", (Recompute(),))[0]
        share = self.space.workload.tokens // self.space.workload.length // mesh.data_ranks
        leaf = mesh._replace(micro_size=rows, accumulation=share // rows, recompute=policy)
        return self._computing(leaf, fills=False)

    def leaf(self, topology: Topology) -> float:
        """Seconds of an average rank: computation, slowed by communication, and the update."""
        fills = not SCHEDULES[topology.schedule].splits_backward
        computing, sent = self._computing(topology, fills), self._sent(topology)
        slowed = computing + self.space.gpu.assumed.contention * sent
        ranks = topology.pipeline * topology.tensor * topology.shards
        return max(slowed, sent) + self.update / ranks

    def _computing(self, topology: Topology, fills: bool) -> float:
        # Only axes within a micro-batch, whose ranks are neighbours, affect it.
        key = topology.of_micro_batch()._replace(expert=1)
        if key not in self.passes:
            space = self.space
            self.passes[key] = seconds_of_passes(
                space.workload, key, space.gpu, space.network, space.kernels
            )
        turns = float(topology.accumulation)
        if fills:
            turns += FILLING * (topology.pipeline - 1) / topology.stages_per_rank
        return self.passes[key] * turns / topology.pipeline

    def _sent(self, t: Topology) -> float:
        """Seconds of weight communication, without experts."""
        if not t.uses_fsdp or t.shards == 1:
            return 0.0
        key = t._replace(micro_size=1, recompute=Recompute(), every=1, expert=1)
        if key not in self.sent:
            self.sent[key] = self._seconds_of_weights(key)
        return self.sent[key]

    def _seconds_of_weights(self, t: Topology) -> float:
        turns = weight_turns(t, "layer")
        axes = "+".join(axis for axis in t.sharding_axes if t.degrees[axis] > 1)
        group = group_of(t.degrees, axes, t.shards, self.links.node)
        ranks = t.pipeline * t.tensor
        gather = self.links.seconds("all_gather", group, 1, self.gathered / ranks)
        reduce = self.links.seconds("reduce_scatter", group, 1, self.reduced / ranks)
        return LAYERS * ((turns.forwards + turns.backwards) * gather + turns.sums * reduce)


def _no_mesh(space: SearchSpace) -> str:
    w = space.workload
    sequences = w.tokens // w.length
    fixed = ", ".join(f"{name} = {value}" for name, value in space.fixed.items())
    return (
        f"no mesh of {space.world_size} ranks divides {sequences} sequences of {w.length} tokens, "
        f"{w.heads} heads and {w.layers} layers{fixed and f' with {fixed} fixed'}\n"
        f"Valid: another --world-size, a batch.global_size with more divisors, or fewer fixed "
        f"values"
    )


WRITTEN = (FILE, ENVIRONMENT, COMMAND_LINE)
"""Layers of values written by the user, which the search keeps."""


def search_space(
    composition: Composition[Job], gpu: GpuSpec, network: Network, limit: int
) -> tuple[Job, SearchSpace]:
    """The job on one rank, and the layouts to search, given the values written by the user.

    Raises:
        SetpointError: nothing can be searched, or the traffic or memory of the job is unknown.
    """
    draft = composition.draft
    parallel, batch, section = draft.parallel, draft.batch, draft.memory.activation_checkpointing
    size = parallel.world_size
    if size < 2:
        raise SetpointError(
            "--world-size N is missing or 1: a layout divides a job among GPUs\nValid: 2 or "
            "more; `setpoint check --plan --gpu` estimates the step of one GPU"
        )
    if batch.ramp is not None:
        raise SetpointError("batch.ramp: the search plans steps of one size\nValid: null")
    for field, is_used in (("engine", parallel.uses_deepspeed), ("torchft", parallel.torchft)):
        if is_used:
            raise SetpointError(
                f"parallel.{field}: the traffic of this engine is unknown\nValid: null"
            )
    fixed = _fixed(draft)
    start = Topology(
        recompute=fixed.get("recompute", Recompute()),
        every=1 if section is None else section.every,
        schedule=parallel.pipelining.schedule,
        split=fixed.get("split"),
        expert_tensor=fixed.get("expert_tensor", 1),
        loss_parallel=parallel.loss_parallel is not False,
        shard_over_context=parallel.shard_over_context,
        layers_per_unit=parallel.sharding.layers_per_unit,
        bucket=int(parallel.bucket_size * 2**20),
    )
    draft.parallel = Parallel(device=parallel.device)
    if chain_of(batch, "global_size"):
        batch.micro_size, batch.accumulation = 1, batch.global_size
    if "recompute" not in fixed:
        draft.memory.activation_checkpointing = None
    job = composition.resolve()
    workload = Workload.of(job)._replace(weights_on_host=parallel.sharding.offload)
    if workload.unknown:
        raise SetpointError(
            f"the memory of a step is unknown: {workload.unknown}\nValid: `setpoint check "
            "--fake-step` of one layout, which may measure it"
        )
    return job, SearchSpace(workload, size, start, fixed, gpu, network, Kernels.of(job), limit)


def _fixed(draft: Any) -> dict[str, Any]:
    """Axes, sizes and settings written by the user, which are not searched."""
    axes = (*AXES, "expert", "expert_tensor", "sequence_parallel", "reshard")
    fixed = {
        name: value
        for section, names in (
            (draft.parallel, axes),
            (draft.parallel.pipelining, ("schedule", "stages_per_rank", "split")),
            (draft.batch, ("micro_size", "accumulation")),
        )
        for name in names
        if _is_written(section, name) and (value := getattr(section, name)) not in (REST, None)
    }
    if {"micro_size", "accumulation"} & fixed.keys() and not chain_of(draft.batch, "global_size"):
        raise SetpointError(
            "batch.global_size is not given and would differ between layouts\nValid: the "
            "sequences per step, without micro_size and accumulation"
        )
    section = draft.memory.activation_checkpointing
    fields = () if section is None else section.__setpoint__.fields
    if _is_written(draft.memory, "activation_checkpointing") or any(
        _is_written(section, name) for name in fields
    ):
        fixed["recompute"] = Recompute.of(section)
    return fixed


def _is_written(section: Any, name: str) -> bool:
    """True if a file, the environment or an override sets a field."""
    return any(
        origin.layer in WRITTEN and not isinstance(origin, Recorded)
        for origin, _ in chain_of(section, name)
    )


DEFAULTS = (
    *(f"parallel.{axis}=1" for axis in AXES),
    "parallel.expert_tensor=1",
    "activation_checkpointing=null",
)
"""Endings of overrides that are needed only if a preset sets another value."""


class Layout(NamedTuple):
    """Candidate as overrides of the job that satisfy all rules."""

    overrides: list[str]
    candidate: Candidate

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON."""
        time, memory = self.candidate.time, self.candidate.memory
        return {
            "overrides": self.overrides,
            "seconds": time.seconds,
            "tokens_per_second": time.tokens_per_second,
            "mfu": time.mfu,
            "memory": memory.total,
        }


def valid_layouts(
    result: SearchResult, space: SearchSpace, count: int, change: Callable[[list[str]], Job]
) -> list[Layout]:
    """Layouts that satisfy all rules, fastest first, each with as few overrides as possible.

    Arguments:
        change: applies overrides to the job.

    Raises:
        ConfigError: there is none; lists the problems of the first candidate.
    """
    best: list[Layout] = []
    refused: ConfigError | None = None
    for candidate in result.best:
        if len(best) == count:
            break
        overrides = [text for text in candidate.topology.overrides() if not _is_known(text, space)]
        fewest = [text for text in overrides if not text.endswith(DEFAULTS)]
        for texts in (fewest, overrides):
            try:
                job = change(texts)
            except ConfigError as error:
                refused = refused or error
                continue
            if _shape(Topology.of(job)) == _shape(candidate.topology):
                best.append(Layout(texts, candidate))
                break
    if not best:
        assert refused is not None
        raise refused
    return best


def _shape(topology: Topology) -> tuple[Any, ...]:
    """Degrees, micro-batch size and recomputation, which overrides set."""
    return (*topology.degrees.values(), topology.micro_size, topology.recompute)


def _is_known(override: str, space: SearchSpace) -> bool:
    """True if an override sets a fixed field."""
    path = override.removeprefix("--").partition("=")[0]
    if path.startswith("memory.activation_checkpointing"):
        return "recompute" in space.fixed
    return path.rpartition(".")[2] in space.fixed


def too_large(space: SearchSpace) -> str:
    """Message that no layout fits, with the excess and the setting that helps most."""
    topology, memory, ranks = least_memory(space)
    parts = {
        "weights": memory.weights + memory.gathered,
        "master weights and optimizer state": memory.masters + memory.optimizer,
        "gradients": memory.gradients,
        "activations": memory.activations + memory.recomputed,
        "logits": memory.logits,
    }
    largest = max(parts, key=lambda name: parts[name])
    helps = {
        "weights": "precision.params = bf16",
        "master weights and optimizer state": "an optimizer with a smaller state",
        "gradients": "precision.params = bf16",
        "activations": "a smaller batch.sequence_length",
        "logits": "loss.type = chunked_cross_entropy",
    }[largest]
    more = "" if ranks is None else f"--world-size {ranks}, which is enough; "
    sizes = ", ".join(f"{name} {in_units(size)}" for name, size in parts.items() if size)
    excess = memory.total - space.limit
    return (
        f"no layout of {space.world_size:,} ranks fits into {in_units(space.limit)}: the "
        f"smallest needs {in_units(memory.total)}, {in_units(excess)} too much ({sizes})\nIt is: "
        f"{' '.join(map(shlex.quote, topology.overrides()))}\nValid: {more}to reduce the largest "
        f"part, {largest}: {helps}"
    )
