"""Memory of a job against the memory of this machine: a rule of training jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem, rule
from setpoint.data.tokenizers.config import BYTES_VOCABULARY
from setpoint.model.config import TransformerConfig
from setpoint.train.rules.run import may_be_large, memory_needs, memory_suggestions

if TYPE_CHECKING:
    from setpoint.train.config import Job

SURE = 0.9
"""Share of the estimated activations that a micro-batch needs in any case."""


@rule(needs=memory_needs, when=may_be_large)
def memory_problems(job: Job) -> Iterator[Problem]:
    """A job without a GPU that exceeds the memory of this machine."""
    from setpoint.memory.host_memory import machine_memory
    from setpoint.plan.memory import kept_for_backward, update_memory
    from setpoint.plan.topology import Topology
    from setpoint.plan.workload import Workload

    model, batch = job.model, job.batch
    if not isinstance(model, TransformerConfig) or not model.parameters_known:
        return
    if job.parallel.device == "auto":
        from torch import cuda

        if cuda.is_available():
            return
    workload, topology = Workload.of(job, model.vocab_size or BYTES_VOCABULARY), Topology.of(job)
    plan, available = update_memory(workload, topology), machine_memory()
    kept = plan.weights + plan.masters + plan.optimizer
    weights = kept + plan.gradients
    if weights > available:
        yield Problem(
            "model",
            f"its parameters, gradients and optimizer state take at least {_gib(weights)} for "
            f"any batch size, but this machine has {_gib(available)}",
            also=("optimizer", "precision.params"),
            hint="What helps: a smaller model, precision.params = bf16, or an optimizer with a "
            "smaller state.",
        )
        return
    if plan.unknown or job.compile is not None:  # a compiler does without some activations
        return
    # The state is there from the end of the first step on.
    kept -= plan.optimizer * (job.total_steps() == 1)
    needed = int(SURE * kept_for_backward(workload, topology))
    if kept + needed > available:
        yield Problem(
            "batch.micro_size",
            f"activations and logits of {batch.micro_size} sequences of {batch.sequence_length} "
            f"tokens take at least {_gib(needed)} in addition to {_gib(kept)} of weights and "
            f"optimizer state, but this machine has {_gib(available)}",
            also=("batch.sequence_length", "model"),
            hint=f"What helps: {'; '.join(memory_suggestions(job))}.",
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
