"""Rules that compare a job's memory with that of its device, or of any machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, Need, Problem, rule
from setpoint.data.config import BYTES_VOCABULARY
from setpoint.model.config import TransformerConfig
from setpoint.train.rules.cautions import CAUTIONS
from setpoint.train.rules.run_rules import memory_suggestions

if TYPE_CHECKING:
    from setpoint.train.config import Job

ANY_MACHINE = 32 * 2**40
"""The largest memory that one machine has, which the largest accelerators have a hundredth of."""
SURE = 0.9
"""Share of the estimated activations that a micro-batch needs in any case."""


def _rough_size(job: Job) -> int:
    """Estimate the numbers of weights and activations in a transformer's micro-batch."""
    model, batch = job.model, job.batch
    if not isinstance(model, TransformerConfig) or not model.parameters_known:
        return 0
    experts = 1 if model.moe is None else model.moe.experts
    width = model.layers * (4 * model.dim + 3 * (model.ffn_dim or 0) * experts)
    words = model.vocab_size or BYTES_VOCABULARY
    tokens = batch.micro_size * batch.sequence_length
    return model.dim * (width + words) + tokens * (6 * width + words)


def _may_be_large(job: Job) -> bool:
    """True if the engine's memory is known and, by a rough count, may exceed that of a device."""
    return not job.parallel.uses_deepspeed and _rough_size(job) > 10**8


def _needs(job: Job) -> tuple[Need, ...]:
    """Files with parallel.device = cpu, else torch."""
    return ("files",) if job.parallel.device == "cpu" else ("torch",)


@rule(needs=_needs, when=_may_be_large)
def memory_problems(job: Job) -> Iterator[Problem]:
    """A rank that exceeds the memory of its GPU or, without one, of this machine."""
    from setpoint.plan.memory import kept_for_backward, update_memory
    from setpoint.plan.topology import Topology
    from setpoint.plan.workload import Workload

    model, batch, ranks = job.model, job.batch, job.parallel.world_size
    assert isinstance(model, TransformerConfig)
    available, device = _memory_of_device(job)
    workload, topology = Workload.of(job, model.vocab_size or BYTES_VOCABULARY), Topology.of(job)
    plan = update_memory(workload, topology)
    kept = plan.weights + plan.masters + plan.optimizer - plan.on_host * (device == GPU)
    weights = kept + plan.gradients
    if weights > available:
        each_rank = f" on each of {ranks} ranks" if ranks > 1 else ""
        yield Problem(
            "model",
            f"its parameters, gradients and optimizer state need {_gib(weights)}{each_rank} "
            f"for any batch size, but {device} has {_gib(available)}",
            also=("optimizer", "precision.params"),
            hint="What helps: a smaller model, precision.params = bf16, or an optimizer with a "
            "smaller state.",
        )
        return
    # A compiler avoids some activations, and GPU kernels others.
    if plan.unknown or job.compile is not None or device == GPU:
        return
    # The state exists from the end of the first step on.
    kept -= plan.optimizer * (job.total_steps() == 1)
    needed = int(SURE * kept_for_backward(workload, topology))
    if kept + needed > available:
        yield Problem(
            "batch.micro_size",
            f"activations and logits of {batch.micro_size} sequences of {batch.sequence_length} "
            f"tokens need at least {_gib(needed)} in addition to {_gib(kept)} of weights and "
            f"optimizer state, but {device} has {_gib(available)}",
            also=("batch.sequence_length", "model"),
            hint=f"What helps: {'; '.join(memory_suggestions(job))}.",
        )


GPU = "the GPU"


def _memory_of_device(job: Job) -> tuple[int, str]:
    """Memory available to a rank, and the device that provides it."""
    if job.parallel.device != "cpu":
        from torch import cuda

        if cuda.is_available():
            return cuda.get_device_properties(0).total_memory, GPU
    from setpoint.memory.host_memory import machine_memory

    return machine_memory(), "this machine"


@rule(when=lambda job: isinstance(job.model, TransformerConfig), cautions=CAUTIONS)
def size_cautions(job: Job) -> Iterator[Caution]:
    """Weights and activations that exceed the memory of any machine."""
    model, batch, ranks = job.model, job.batch, job.parallel.world_size
    assert isinstance(model, TransformerConfig)
    bound = ANY_MACHINE * ranks
    # Counted exactly only if it may be close: nearly all jobs are far from the limit.
    if _rough_size(job) > 10**12:
        from setpoint.plan.memory import update_memory
        from setpoint.plan.topology import Topology
        from setpoint.plan.workload import Workload

        workload = Workload.of(job, model.vocab_size or BYTES_VOCABULARY)
        weights = update_memory(workload._replace(weights_on_host=False), Topology()).total
        if weights > bound:
            yield Caution(
                "larger-than-any-machine",
                "model",
                f"parameters, gradients and optimizer state need at least {weights / 2**40:,.1f} "
                f"TiB, but {ranks} of the largest machines have {bound / 2**40:,.0f} TiB together",
            )
    width = 4 if job.precision.compute == "fp32" else 2
    hidden = batch.micro_size * batch.sequence_length * model.dim * width
    if hidden > ANY_MACHINE:
        yield Caution(
            "larger-than-any-machine",
            "batch.micro_size",
            f"the output of one layer for {batch.micro_size} sequences of "
            f"{batch.sequence_length} tokens needs {hidden / 2**40:,.1f} TiB, but no machine has "
            f"more than {ANY_MACHINE / 2**40:,.0f} TiB",
            also=("batch.sequence_length", "model.dim"),
            hint="batch.accumulation splits the global batch into smaller micro-batches.",
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
