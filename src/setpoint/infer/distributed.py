"""A model on the ranks of an inference job, divided as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from setpoint.infer.config import Inference
from setpoint.model.build import layers_of
from setpoint.model.moe.dispatch import build_dispatcher
from setpoint.model.parameters import stage_sizes
from setpoint.parallel.divide import divide
from setpoint.parallel.hangs import step_begins, step_has_ended
from setpoint.parallel.pipeline import Pipeline
from setpoint.parallel.world import World, sequence_parts
from setpoint.shapes.batch import WHOLE, SequenceParts
from setpoint.shapes.outcome import Projection, supports_head
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.model.moe.dispatch import TokenDispatcher
    from setpoint.parallel.expert_ranks import ExpertRanks
    from setpoint.parallel.pipeline import Stage

T = TypeVar("T")


class ModelRunner:
    """Calls a model of one process, or of several ranks together.

    Ranks along the axes `pipeline` and `tensor` have parts of one replica, and get the same rows.
    Ranks along `replicate` and `shard` get different rows. Weights sharded along `shard` are
    gathered in each pass (FSDP2), and experts get tokens from all ranks that divide them. Such
    ranks must make the same number of passes, so a rank without rows makes empty passes.

    Arguments:
        model: maps (B, S) tokens to (B, S, V) logits; this rank's part if it is divided.
        world: this process's rank; None: a single process.
        pipeline: runs the stages of this rank; None if it has all layers.
        sequence: positions of sequences on this rank.
        together: axes with different rows whose ranks make the same number of passes.
    """

    def __init__(
        self,
        model: nn.Module,
        world: World | None = None,
        pipeline: Pipeline | None = None,
        sequence: SequenceParts = WHOLE,
        together: Sequence[str] = ("shard",),
    ) -> None:
        self.model, self.pipeline, self.sequence = model, pipeline, sequence
        self.world = world or World(_device_of(model))
        self.has_head = supports_head(model)
        self.has_result = pipeline is None or pipeline.has_last
        """True if this rank gets the result of a pass; others have earlier layers."""
        self._copy = self.world.group("pipeline", "tensor")
        self._lockstep = self.world.group(*together)
        self._first = True

    @property
    def device(self) -> torch.device:
        """Device of the tokens."""
        return self.world.device

    def __call__(self, tokens: Tensor, **given: Any) -> Any:
        """Run a forward pass; see `setpoint.model.transformer.Transformer.forward`.

        Returns:
            the model's result; None on ranks without its last layers.
        """
        step_begins(self._first)
        self._first = False
        try:
            return (self.model if self.pipeline is None else self.pipeline.evaluate)(
                tokens, **given
            )
        finally:
            step_has_ended()

    def logits(self, tokens: Tensor, last: bool = False, **given: Any) -> Tensor | None:
        """Run a forward pass for logits.

        Arguments:
            tokens: (B, S).
            last: whether only the logits after the last token are needed; if possible, no others
                are computed.

        Returns:
            (B, S, V), or (B, V) with `last`; None on ranks without the last layers.
        """
        if not self.has_head:
            logits = self(tokens, **given)
            return logits[:, -1] if last else logits

        def head(hidden: Tensor, projection: Projection) -> Tensor:
            if projection.part is not None:
                projection = projection._replace(part=projection.part._replace(gathers=True))
            return projection.logits(hidden[:, -1] if last else hidden)

        outcome = self(tokens, **given, head=head)
        return outcome.result if self.has_result else None

    def most_passes(self, passes: int) -> int:
        """Maximum number of passes over the ranks that must make the same number.

        Arguments:
            passes: number of passes for which this rank has rows.
        """
        if self._lockstep is None:
            return passes
        most = torch.tensor(passes, device=self.device)
        distributed.all_reduce(most, distributed.ReduceOp.MAX, group=self._lockstep)
        return int(most)

    def idle(self, passes: int) -> None:
        """Make empty passes while other ranks have more rows, if any of them wait for this one."""
        for _ in range(passes if self._lockstep is not None else 0):
            self.logits(torch.zeros(1, 1, dtype=torch.int64, device=self.device), last=True)

    def agree(self, tokens: Tensor | None, rows: int) -> list[int]:
        """Broadcast the tokens chosen by the rank with the last layers.

        Arguments:
            tokens: (rows,) int64; None on ranks without the last layers.
        """
        if self._copy is None:
            assert tokens is not None
            return tokens.tolist()
        if tokens is None:
            tokens = torch.empty(rows, dtype=torch.int64, device=self.device)
        last = 0 if self.pipeline is None else self.pipeline.places[-1]
        ranks = distributed.get_world_size(self._copy) // self.world.degrees["pipeline"]
        distributed.broadcast(tokens, group=self._copy, group_src=last * ranks)
        return tokens.tolist()

    def own_of(self, block: range) -> range:
        """This replica's rows from a block that all replicas divide."""
        return block[self.world.data_rank :: self.world.data_size]

    def gather(self, results: Mapping[int, T]) -> list[T]:
        """Gather the results of all replicas; they must be picklable.

        Arguments:
            results: results of this replica, by row number.

        Returns:
            all results in row order, on every rank.
        """
        if self.world.size == 1:
            return [results[row] for row in sorted(results)]
        gives = self.has_result and self.world.gives_loss
        parts = self.world.all_of(dict(results) if gives else {})
        rows = {row: result for part in parts for row, result in part.items()}
        return [rows[row] for row in sorted(rows)]


class Division:
    """Divides the model of an inference job among ranks, and makes its runner.

    Arguments:
        job: complete and resolved.
    """

    def __init__(self, job: Inference, world: World) -> None:
        self.job, self.world = job, world
        self._stages: list[Stage] = []

    def divide(self, model: nn.Module) -> None:
        """Keep this rank's part of a model; see `setpoint.parallel.divide.divide`.

        Raises:
            SetpointError: the model cannot be divided along an axis.
        """
        job, world = self.job, self.world
        config = job.parallel

        def exchange(ranks: ExpertRanks) -> TokenDispatcher:
            of_ranks = ranks.group, ranks.same_tokens, ranks.divides
            return build_dispatcher(config.dispatch, job.model, *of_ranks)

        is_cut, sizes = world.degrees.get("pipeline", 1) > 1, None
        if is_cut:
            tokens: int = getattr(model, "vocab_size", 0)
            sizes = stage_sizes(job.model, tokens, job.batch.sequence_length)
        # Evaluation's loss takes logits of some tokens; for others see `ModelRunner.logits`.
        gathers = config.loss_parallel is False
        layers = layers_of(model)
        self._stages = divide(config, world, model, layers, _policy, exchange, gathers, sizes)

    def runner(self, model: nn.Module) -> ModelRunner:
        """Make the runner of a loaded model; a collective of all ranks."""
        job, world, pipeline = self.job, self.world, None
        if self._stages:
            group, pipelining = world.group("pipeline"), job.parallel.pipelining
            assert group is not None
            transfer = pipelining.sent(job.precision.compute, job.weights.dtype)
            pipeline = Pipeline(
                pipelining,
                self._stages,
                group,
                world.device,
                DType(job.weights.dtype).torch(),
                DType(transfer).torch(),
            )
        config = job.parallel
        spans = config.expert_replicas < config.degrees["replicate"]
        together = ("replicate", "shard") if spans else ("shard",)
        return ModelRunner(model, world, pipeline, sequence_parts(config, world), together)


def _policy() -> MixedPrecisionPolicy:
    """FSDP2 policy that gathers weights in their storage dtype; autocast converts them."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(cast_forward_inputs=False)


def _device_of(model: nn.Module) -> torch.device:
    """Device of a model's first parameter; the CPU if it has no parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
