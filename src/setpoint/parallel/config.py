"""The section `[parallel]`: device, number of ranks, and degrees of parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, inf, prod
from typing import TYPE_CHECKING, Any, Literal

from setpoint.config import (
    RUNTIME,
    Config,
    Problem,
    Rule,
    dead,
    derive,
    derived,
    field,
    plural,
    rule,
)
from setpoint.parallel.engines import DeepSpeed, EngineConfig, Torch
from setpoint.parallel.pipelining import Pipelining
from setpoint.shapes.patterns import pattern_problems
from setpoint.units import ByteSize

REST = -1
"""A degree that takes all ranks left over by the other axes."""
DATA = ("replicate", "shard")
"""The axes whose ranks read different data."""
CONTEXT = ("ring", "ulysses")
"""The axes that shard sequences."""
AXES: tuple[str, ...] = ("pipeline", *DATA, *CONTEXT, "tensor")
"""The axes of the device mesh, outermost first: its ranks lie farthest apart."""
WITHIN = ("shard", *CONTEXT, "tensor")
"""The axes whose ranks hold one copy of the weights of a stage."""
START_RANKS = "Start that many ranks: --nproc {0}; planning commands accept --world-size {0}."
CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_WORKSPACES = (":4096:8", ":16:8")
"""The workspaces that NVIDIA documents as deterministic; the first is the faster one."""

RULES = (
    Rule(
        "setpoint.parallel.world:device_problems",
        "The device is there",
        needs="torch",
        when=lambda parallel: parallel.device == "cuda",
    ),
)
ENGINE_RULES = (
    Rule("setpoint.parallel.zero:engine_problems",
         "The engine of several ranks is installed",
         needs="torch", when=lambda parallel: parallel.uses_deepspeed),
    Rule("setpoint.parallel.world:backend_problems",
         "NCCL has a GPU",
         needs=lambda parallel: () if parallel.device == "cpu" else ("torch",),
         when=lambda parallel: parallel.backend == "nccl" and parallel.device != "cuda"),
)  # fmt: skip


class DerivedDegrees:
    """Numbers of ranks derived from the axis degrees, for a configuration or a plan."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def degrees(self) -> dict[str, int]:
            """The degree of each axis, in the order of AXES."""
            ...

        world_size: Any
        shard_over_context: Any
        expert: Any
        expert_tensor: Any

    @property
    def data_ranks(self) -> int:
        """Number of ranks that read different data."""
        return prod(self.degrees[axis] for axis in DATA)

    @property
    def shards(self) -> int:
        """The number of ranks among which FSDP2 divides one copy of the weights."""
        degrees = self.degrees
        return prod(degrees[axis] for axis in self.sharding_axes)

    @property
    def copies(self) -> int:
        """The number of weight copies that FSDP2 or DDP keeps identical."""
        return prod(self.degrees[axis] for axis in self.copying_axes)

    @property
    def copying_axes(self) -> tuple[str, ...]:
        """The axes along which weights are identical."""
        return tuple(axis for axis in (*DATA, *CONTEXT) if axis not in self.sharding_axes)

    @property
    def sharding_axes(self) -> tuple[str, ...]:
        """The axes along which FSDP2 divides the weights."""
        within = {"all": CONTEXT, "none": ()}.get(
            self.shard_over_context, (self.shard_over_context,)
        )
        return ("shard", *within)

    @property
    def context(self) -> int:
        """The number of ranks that divide a sequence."""
        return prod(self.degrees[axis] for axis in CONTEXT)

    @property
    def uses_fsdp(self) -> bool:
        """True if FSDP2 shards the weights; DDP replicates them if no other axis splits them."""
        degrees = self.degrees
        within = degrees["pipeline"] * degrees["tensor"]
        if self.shards > 1 or 1 < within < self.world_size:
            return True
        # DDP does not support weights that differ between ranks.
        return self.divides_experts and (self.expert_shards > 1 or self.copies > 1)

    @property
    def divides_experts(self) -> bool:
        """True if experts are divided along other axes than the remaining weights."""
        return self.expert * self.expert_tensor > 1

    @property
    def expert_shards(self) -> int:
        """Number of ranks that shard each expert (FSDP2)."""
        return max(1, self._ranks_of_copy // (self.expert * self.expert_tensor))

    @property
    def expert_replicas(self) -> int:
        """The number of copies of each expert; fewer than `replicate` if experts span replicas."""
        spanned = max(1, self.expert * self.expert_tensor // self._ranks_of_copy)
        return self.degrees["replicate"] // spanned

    @property
    def _ranks_of_copy(self) -> int:
        """Number of ranks that together store one copy of a stage's weights."""
        return self.shards * self.copies // self.degrees["replicate"] * self.degrees["tensor"]


class Ranks(Config, role=RUNTIME, rules=RULES):
    """Device and number of ranks."""

    world_size: int = field(default=1, ge=1)
    """World size: number of ranks, set by WORLD_SIZE, --nproc or --world-size."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto: a GPU if there is one."""


class Dispatch(Config, role=RUNTIME):
    """Exchange of tokens with experts on other ranks."""


class AllToAll(Dispatch, type="all_to_all"):
    """PyTorch's all-to-all with uneven splits, on any device."""


class DeepEP(Dispatch, type="deepep"):
    """DeepEP kernels, for GPUs with its package installed; not yet run on GPUs."""

    buffer_size: ByteSize = ByteSize(2 * 10**9)
    """NVLink buffer size per GPU; the RDMA buffer is additional."""

    sms: int = field(default=20, ge=2)
    """Streaming multiprocessors used by the exchange; an even number."""

    async_combine: bool = False
    """Compute shared experts while the results of routed experts are in transit."""

    @rule
    def _check_sms(self) -> Iterator[Problem]:
        if self.sms % 2:
            even = (str(self.sms - 1), str(self.sms + 1))
            yield Problem("sms", f"DeepEP needs an even number, not {self.sms}", valid=even)


class Sharding(Config, role=RUNTIME):
    """Units, prefetch and offload of FSDP2."""

    units: tuple[str, ...] = ()
    """Additional FSDP units: regular expressions that match full module names. Each layer, the
    embedding, and the final norm with the output matrix are always units."""

    replicated: tuple[str, ...] = ()
    """Regular expressions searched in parameter names: matching ones are not sharded, and each rank
    keeps a full copy. Their gradients are summed over the ranks at the end of a step."""

    layers_per_unit: int = field(default=1, ge=1)
    """Layers gathered together: more layers need more memory, but fewer and larger messages."""

    forward_prefetch: int | None = field(default=None, ge=1)
    """Number of units to prefetch ahead of the one computed in the forward pass; null: one where
    the model names the units around its layers, as type = transformer does, else as many as the
    host reaches while the device computes."""

    backward_prefetch: int | None = field(default=None, ge=1)
    """Number of units to prefetch ahead of the one computed in the backward pass; null: one, in the
    order of the forward pass."""

    accumulation: Literal["sharded", "unsharded"] = "sharded"
    """Gradient accumulation over the micro-batches of a step, in the dtype precision.reduce.
    sharded: each gradient is reduce-scattered and added to this rank's part; unsharded: full
    gradients are summed on each rank and reduce-scattered once, as in pipeline stages."""

    offload: bool = False
    """Keep this rank's part of weights, gradients and optimizer state in host memory (FSDP2's
    CPUOffloadPolicy): weights are copied to the device when they are gathered, and the optimizer
    steps on the CPU."""

    @rule
    def _check_units(self) -> Iterator[Problem]:
        for index, pattern in enumerate(self.units):
            yield from pattern_problems(f"units.{index}", pattern, means="no name")
        for index, pattern in enumerate(self.replicated):
            yield from pattern_problems(f"replicated.{index}", pattern, (r"\.norm\.", "embed"))


class TorchFT(Config, role=RUNTIME):
    """Replica groups (torchft): jobs that train one model together and may fail independently."""

    lighthouse: str | None = None
    """Address of torchft's lighthouse (http://host:29510); null: TORCHFT_LIGHTHOUSE."""

    replica_id: int = field(default=0, ge=0)
    """Number of this replica group; above 0, its run directory ends in -replica-N."""

    group_size: int = field(default=2, ge=1)
    """Number of replica groups; the micro-batches of a step are divided among those that are
    alive."""

    min_replica_size: int = field(default=1, ge=1)
    """Minimum number of replica groups for a step; with fewer, the step waits for others."""

    process_group: Literal["gloo", "nccl"] = "gloo"
    """Backend of all-reduces across replica groups."""

    timeout: float = field(default=10.0, gt=0, lt=inf)
    """Seconds that a replica group waits for the others within a step; between steps,
    parallel.timeout applies."""

    @rule
    def _check_numbers(self) -> Iterator[Problem]:
        if self.replica_id >= self.group_size:
            yield Problem(
                "replica_id",
                f"{self.replica_id} is not a valid index: there are {self.group_size} groups",
                valid=(f"0 to {self.group_size - 1}",),
                also=("group_size",),
            )
        if self.min_replica_size > self.group_size:
            yield Problem(
                "min_replica_size",
                f"{self.min_replica_size} groups exceed the {self.group_size} that exist",
                valid=(f"1 to {self.group_size}",),
                also=("group_size",),
            )


class Parallel(Ranks, DerivedDegrees, rules=ENGINE_RULES):
    """Device, number of ranks, and degrees of parallelism.

    The degrees of the axes multiply to the number of ranks. None of them changes what is trained:
    for the same seed, data and global batch the losses equal those of one rank up to rounding.
    With a mixture of experts this requires the same `model.moe.load_sequences`, which is derived
    from `batch.micro_size` and thereby from the number of ranks, unless given.
    """

    replicate: int | None = field(default=None, ge=REST)
    """Replicas of the weights (DDP; with `shard`, HSDP); null or -1: all ranks left over by the
    other axes."""

    engine: EngineConfig = field(factory=Torch)
    """Data-parallel engine: torch (DDP, FSDP2) or deepspeed (ZeRO)."""

    shard: int = field(default=1, ge=REST)
    """Sharding degree (FSDP2): ranks that divide weights, gradients and optimizer state; -1: all
    ranks left over by the other axes."""

    pipeline: int = field(default=1, ge=REST)
    """Pipeline degree: ranks that divide the layers; -1: all ranks left over by the other axes."""

    pipelining: Pipelining = field(factory=Pipelining)
    """Stages and schedule of the pipeline."""

    tensor: int = field(default=1, ge=REST)
    """Tensor-parallel degree: ranks that divide each matrix; -1: all ranks left over by the other
    axes."""

    ring: int = field(default=1, ge=REST)
    """Ring-attention degree: ranks that divide each sequence and pass keys and values around; -1:
    all ranks left over by the other axes."""

    ulysses: int = field(default=1, ge=REST)
    """Ulysses degree: ranks that divide each sequence, and the heads during attention; -1: all
    ranks left over by the other axes."""

    ring_split: Literal["zigzag", "contiguous"] = "zigzag"
    """Part of a sequence on each rank of the ring. zigzag: two chunks of tokens, equally far from
    the start and the end, which balances the work under a causal mask; contiguous: one chunk."""

    shard_over_context: Literal["all", "ring", "ulysses", "none"] = "all"
    """Context axes (`ring`, `ulysses`) that shard weights together with `shard` (FSDP2); along the
    others each rank keeps a copy of its part."""

    expert: int = field(default=1, ge=1)
    """Expert-parallel degree: ranks that divide the experts of each layer, out of the ranks of
    shard, ring, ulysses and tensor together; the others shard each expert. A higher degree also
    uses ranks of replicate, which then keep fewer copies of the experts."""

    expert_tensor: int = field(default=1, ge=1)
    """Ranks that divide the inner width of each expert: all of `tensor`, or 1."""

    expert_mesh_order: Literal["shard_major", "expert_major"] = "shard_major"
    """Order of the two dimensions of the expert mesh. shard_major: ranks that exchange tokens are
    neighbours, those that shard one expert are far apart; expert_major: the reverse."""

    dispatch: Dispatch = field(factory=AllToAll)
    """Exchange of tokens with experts on other ranks."""

    sequence_parallel: bool = derived()
    """Sequence parallelism: tensor-parallel ranks also split norms, dropout and the residual
    stream along the sequence (Korthikanti et al., 2022): less memory, equal traffic. Default: true
    with `tensor` for a model of type = transformer without pipeline stages, if the ranks divide
    batch.sequence_length."""

    async_tensor_parallel: bool = False
    """Asynchronous tensor parallelism: compiled layers send some parts of a sequence while they
    multiply others (symmetric memory); needs compile, GPUs and sequence_parallel."""

    loss_parallel: bool | None = None
    """Loss parallelism: each rank computes the loss from its part of the vocabulary's logits;
    false: all ranks gather the logits; null: true for losses that support it."""

    reshard: bool | int | None = None
    """Freeing of sharded weights between forward and backward (FSDP2's reshard_after_forward).
    true: they are freed and gathered twice (ZeRO-3); false: kept from the first micro-batch of a
    step to the last (ZeRO-2); a number: sharded over that many ranks in between; null: true for
    layers, false for weights outside them and for pipeline stages."""

    sharding: Sharding = field(factory=Sharding)
    """Units, prefetch and offload of FSDP2."""

    init_device: Literal["device", "cpu"] = "device"
    """Initialization device. device: each rank's device, for its part only; cpu: host memory, from
    which weights move once each rank has its part."""

    load_weights: Literal["every_rank", "broadcast"] = "every_rank"
    """How the files of model.pretrained are read. every_rank: each rank reads its own rows;
    broadcast: the first rank of each pipeline stage reads and sends whole tensors to the others,
    one at a time."""

    bucket_size: float = field(default=25.0, gt=0, lt=inf)
    """MiB of gradients that replicas sum in one message (DDP), during the backward pass;
    DeepSpeed's reduce_bucket_size."""

    timeout: float = field(default=600.0, gt=0, lt=inf)
    """Seconds that a rank waits for the others before the run fails: at the start, for the batch of
    a step, in the first step of a session, in evaluations and saves."""

    step_timeout: float = field(default=300.0, gt=0, lt=inf)
    """Seconds that a rank waits for the others in the forward and backward passes and the update of
    every step after the first, before the run fails."""

    backend: Literal["gloo", "nccl", "cpu:gloo,cuda:nccl"] | None = None
    """Backend of the process groups; null: gloo for tensors on the CPU, NCCL for those on GPUs."""

    torchft: TorchFT | None = None
    """Fault tolerance by replica groups (torchft); null: none."""

    @dead("ring_split")
    def _ring_split_is_dead(self) -> str | None:
        if self.degrees["ring"] > 1 or self.waits_for_ranks("ring"):
            return None
        return "sequences are not divided by a ring (ring = 1)"

    @dead("shard_over_context", holds=("none",))
    def _shard_over_context_is_dead(self) -> str | None:
        if self.divides_sequences or self.waits_for_ranks("ring", "ulysses"):
            return None
        return "sequences are not divided (ring = 1, ulysses = 1)"

    @dead("reshard", holds=(False,))
    def _reshard_is_dead(self) -> str | None:
        if self.shards > 1 or self.waits_for_ranks("shard"):
            return None
        return "no weights are sharded (shard = 1)"

    @dead("expert_mesh_order")
    def _expert_mesh_order_is_dead(self) -> str | None:
        if self.expert == 1:
            return "no experts are divided (expert = 1)"
        return (
            "each expert is stored whole on one rank of a copy" if self.expert_shards == 1 else None
        )

    @dead("dispatch")
    def _dispatch_is_dead(self) -> str | None:
        return "no experts are divided (expert = 1)" if self.expert == 1 else None

    @derive("sequence_parallel")
    def _derive_sequence_parallel(self) -> bool:
        return False  # without a job, which has the model and its lengths

    @dead("sequence_parallel", "loss_parallel", "async_tensor_parallel", holds=(False,))
    def _tensor_options_are_dead(self) -> str | None:
        if self.divides_matrices or self.waits_for_ranks("tensor"):
            return None
        return "no matrices are divided (tensor = 1)"

    @dead(
        "pipelining.schedule",
        "pipelining.stages_per_rank",
        "pipelining.split",
        "pipelining.transfer",
    )
    def _pipelining_is_dead(self) -> str | None:
        if self.divides_layers or self.waits_for_ranks("pipeline"):
            return None
        return "there is one stage (pipeline = 1)"

    @rule
    def _check_stages(self) -> Iterator[Problem]:
        ranks, split = self.degrees["pipeline"], self.pipelining.split
        if ranks == 1 or split is None:
            return
        count, stages = len(split), self.pipelining.stages_per_rank
        per_rank = stages or max(1, count // ranks)
        if not self.pipelining.known.is_looped:
            per_rank = self.pipelining.known.stages
        if count != ranks * per_rank:
            yield Problem(
                "pipelining.split",
                f"has {count} stages, and {ranks} ranks run {per_rank} each = {ranks * per_rank}",
                valid=(f"{ranks * per_rank} lists",),
                also=("pipeline", "pipelining.schedule", "pipelining.stages_per_rank"),
            )

    @dead(
        "sharding.units",
        "sharding.layers_per_unit",
        "sharding.forward_prefetch",
        "sharding.backward_prefetch",
        "sharding.accumulation",
        "sharding.offload",
    )
    def _sharding_is_dead(self) -> str | None:
        if self.uses_fsdp or self.waits_for_ranks("shard"):
            return None
        return "no weights are sharded (shard = 1)"

    @dead("sharding.accumulation", holds=("unsharded",))
    def _accumulation_is_dead(self) -> str | None:
        return "pipeline stages accumulate whole gradients" if self.divides_layers else None

    @dead("init_device", holds=("cpu",))
    def _init_device_is_dead(self) -> str | None:
        return "offloaded weights are initialized in host memory" if self.sharding.offload else None

    @dead("bucket_size")
    def _bucket_size_is_dead(self) -> str | None:
        if self.uses_fsdp:
            return "FSDP2 reduces the gradients of each unit separately"
        if self.copies > 1 or self.waits_for_ranks("replicate"):
            return None
        return "no other rank has gradients of the same weights"

    @rule
    def _check_degrees(self) -> Iterator[Problem]:
        given: dict[str, Any] = {axis: getattr(self, axis) for axis in AXES}
        for axis, degree in given.items():
            if degree == 0:
                yield Problem(axis, "cannot be 0", valid=("1 or more", "-1: the remaining ranks"))
                return
        open_axes = [axis for axis, degree in given.items() if degree == REST]
        if len(open_axes) > 1:
            yield Problem(
                open_axes[-1],
                f"{' and '.join(open_axes)} are -1: only one axis can use the remaining ranks",
                valid=("1 or more",),
                also=tuple(open_axes[:-1]),
            )
            return
        degrees, ranks = self.degrees, self.world_size
        if prod(degrees.values()) == ranks:
            return
        shown = [axis for axis in AXES if degrees[axis] > 1 or axis in DATA]
        set_here = [axis for axis in shown if given[axis] not in (None, 1)] or ["shard"]
        product = " * ".join(f"{degrees[axis]} ({axis})" for axis in shown)
        yield Problem(
            set_here[-1],
            f"the degrees do not multiply to the number of ranks: "
            f"{product} = {prod(degrees.values())}, not {ranks}",
            valid=list(self._valid_degrees(shown)),
            also=(*set_here[:-1], "world_size"),
            hint=""
            if ranks > 1
            else f"{START_RANKS.format(prod(degrees.values()))} A degree of -1 uses all "
            "available ranks.",
        )

    def _valid_degrees(self, axes: list[str]) -> Iterator[str]:
        """Yield the degrees whose product is the number of ranks."""
        ranks = self.world_size
        kept = {axis: self.degrees[axis] for axis in axes if axis not in DATA}
        if ranks % prod(kept.values()):
            # Nearest to the requested one: the largest of the others that divides the rest.
            for axis, degree in kept.items():
                left = ranks // gcd(ranks, prod(kept.values()) // degree)
                kept[axis] = max(n for n in range(1, min(degree, left) + 1) if left % n == 0)
        left = ranks // prod(kept.values())
        same = "".join(f" * {axis}" for axis in kept)
        sizes = "".join(f" * {degree}" for degree in kept.values())
        for shard in [n for n in range(1, left + 1) if left % n == 0][:6]:
            yield f"replicate * shard{same} = {left // shard} * {shard}{sizes}"

    @rule
    def _check_experts(self) -> Iterator[Problem]:
        degrees = self.degrees
        if prod(degrees.values()) != self.world_size:
            return  # reported above
        ranks, tensor = prod(degrees[axis] for axis in WITHIN), degrees["tensor"]
        if self.expert_tensor not in (1, tensor):
            yield Problem(
                "expert_tensor",
                f"{self.expert_tensor} ranks cannot divide experts where {tensor} divide matrices",
                valid=list(dict.fromkeys(("1", str(tensor)))),
                also=("tensor",),
            )
        elif ranks % (self.expert * self.expert_tensor) and not self._spans_replicas(ranks):
            left = ranks // self.expert_tensor
            copies = degrees["replicate"]
            shown = " * ".join(f"{degrees[axis]} ({axis})" for axis in WITHIN if degrees[axis] > 1)
            yield Problem(
                "expert",
                f"{self.expert} ranks cannot divide the experts: one copy of the weights is on "
                f"{plural(ranks, 'rank')}{shown and f', {shown}'}"
                + f", and copies on {copies} (replicate) times as many"
                * (copies > 1),
                valid=[
                    *(str(n) for n in range(1, left + 1) if left % n == 0),
                    *(str(left * n) for n in range(2, copies + 1) if copies % n == 0),
                ],
                also=(
                    *(axis for axis in ("replicate", *WITHIN) if degrees[axis] > 1),
                    *(("expert_tensor",) if self.expert_tensor > 1 else ()),
                ),
                hint=""
                if ranks > 1
                else "To store parts of one copy on these ranks, set shard = -1."
                if self.world_size > 1
                else START_RANKS.format(self.expert * self.expert_tensor),
            )

    def _spans_replicas(self, ranks: int) -> bool:
        """True if experts are divided among all ranks of one weight copy and of others."""
        copies, remainder = divmod(self.expert * self.expert_tensor, ranks)
        return not remainder and self.degrees["replicate"] % copies == 0

    @rule
    def _check_reshard(self) -> Iterator[Problem]:
        count, shards = self.reshard, self.shards
        if self.waits_for_ranks("shard"):
            return
        if isinstance(count, bool) or count is None:
            return
        if not (1 < count < shards and shards % count == 0):
            fit = [str(n) for n in range(2, shards) if shards % n == 0]
            yield Problem(
                "reshard",
                f"{count} is not a proper divisor of the sharding degree {shards}",
                valid=("true", "false", "null", *fit),
                also=("shard",),
            )

    @property
    def degrees(self) -> dict[str, int]:
        """The degree of each axis, in the order of AXES."""
        degrees: dict[str, int] = {axis: getattr(self, axis) or REST for axis in AXES}
        open_axes = [axis for axis in AXES if degrees[axis] == REST]
        # `replicate` is null unless given, and then takes all ranks not used by other axes.
        taker = next((axis for axis in open_axes if axis != "replicate"), "replicate")
        for axis in open_axes:
            degrees[axis] = 1
        if open_axes:
            degrees[taker] = max(1, self.world_size // prod(degrees.values()))
        return degrees

    @property
    def sequence_multiple(self) -> int:
        """Divisor of sequence lengths for which all ranks get equal parts."""
        halves = 2 if self.degrees["ring"] > 1 and self.ring_split == "zigzag" else 1
        return self.context * halves

    @property
    def accumulates_whole(self) -> bool:
        """True if ranks accumulate unsharded gradients and FSDP2 reduces them once per step."""
        unsharded = self.sharding.accumulation == "unsharded" or self.divides_layers
        return self.uses_fsdp and unsharded

    @property
    def splits_backward(self) -> bool:
        """True if input gradients and weight gradients are computed separately."""
        return self.divides_layers and self.pipelining.known.splits_backward

    def waits_for_ranks(self, *axes: str) -> bool:
        """True if the degree of an axis is -1 and the job has one rank.

        Options of such an axis take effect with more ranks, so that a file for many ranks is valid
        on one.
        """
        given = (getattr(self, axis) for axis in axes)
        return self.world_size == 1 and any(degree in (None, REST) for degree in given)

    @property
    def uses_deepspeed(self) -> bool:
        """True if DeepSpeed owns and updates the weights."""
        return self.world_size > 1 and isinstance(self.engine, DeepSpeed)

    @property
    def divides_matrices(self) -> bool:
        """True if ranks hold parts of each matrix (tensor parallelism)."""
        return self.degrees["tensor"] > 1

    @property
    def divides_layers(self) -> bool:
        """True if ranks hold stages of the model (pipeline parallelism)."""
        return self.degrees["pipeline"] > 1

    @property
    def divides_sequences(self) -> bool:
        """True if ranks hold parts of each sequence (ring attention, Ulysses)."""
        return self.context > 1

    @property
    def shards_experts(self) -> bool:
        """True if FSDP2 manages the experts: several ranks share each, or weights are offloaded."""
        ranks = self.expert_shards * self.expert_replicas
        return self.divides_experts and (ranks > 1 or self.sharding.offload)

    @property
    def topology(self) -> str:
        """Describe the number of ranks, their axis degrees and the engine.

        Returns:
            for example `4 ranks: replicate 2, shard 2 (FSDP2)`.
        """
        if self.world_size == 1:
            return "1 rank"
        degrees = {axis: degree for axis, degree in self.degrees.items() if degree > 1}
        words = {axis: f"{axis} {degree}" for axis, degree in degrees.items()}
        data = [axis for axis in degrees if axis not in ("pipeline", "tensor")]
        if data:
            engine = "FSDP2" if self.uses_fsdp else "DDP"
            if isinstance(self.engine, DeepSpeed):
                engine = f"DeepSpeed, ZeRO stage {self.engine.stage}"
            words[data[-1]] += f" ({engine})"
        if self.expert > 1:
            words["expert"] = f"expert {self.expert}"
        return f"{self.world_size} ranks: {', '.join(words.values())}"
