"""The section `[parallel.pipelining]`: schedules of a pipeline, and the split into stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import TYPE_CHECKING, Literal, NamedTuple

from setpoint.config import RUNTIME, Config, Problem, field, rule

if TYPE_CHECKING:
    from setpoint.shapes.parameter import StagePart


class Schedule(NamedTuple):
    """Properties of a schedule.

    Arguments:
        torch: name in `torch.distributed.pipelining`.
        stages: default number of stages per rank.
        is_looped: whether any number of stages per rank is possible.
        is_v: whether the second stages run back over the ranks, so that the last stage is on the
            same rank as the first.
        splits_backward: whether gradients of inputs and of weights are computed separately.
        is_filled: whether it first fills each stage with a micro-batch.
        is_interleaved: whether it runs in rounds with equal numbers of micro-batches.
    """

    torch: str
    stages: int = 1
    is_looped: bool = False
    is_v: bool = False
    splits_backward: bool = False
    is_filled: bool = False
    is_interleaved: bool = False


SCHEDULES = {
    "gpipe": Schedule("GPipe"),
    "1f1b": Schedule("1F1B", is_filled=True),
    "looped_bfs": Schedule("LoopedBFS", 2, is_looped=True),
    "interleaved_1f1b": Schedule("Interleaved1F1B", 2, is_looped=True, is_interleaved=True),
    "interleaved_zero_bubble": Schedule(
        "InterleavedZeroBubble", 2, is_looped=True, splits_backward=True, is_interleaved=True
    ),
    "zbv_zero_bubble": Schedule("ZBVZeroBubble", 2, is_v=True, splits_backward=True),
    "dual_pipe_v": Schedule("DualPipeV", 2, is_v=True, splits_backward=True, is_filled=True),
}


SPLITS_BACKWARD = (2, 13)
"""The torch whose backward passes in two parts take tied weights and compiled blocks."""


class Pipelining(Config, role=RUNTIME):
    """Stages and schedule of a pipeline."""

    schedule: Literal[
        "gpipe",
        "1f1b",
        "looped_bfs",
        "interleaved_1f1b",
        "interleaved_zero_bubble",
        "zbv_zero_bubble",
        "dual_pipe_v",
    ] = "1f1b"
    """Pipeline schedule: the order of forward and backward passes of micro-batches. gpipe: all
    forward, then all backward; 1f1b: one forward, one backward; looped_bfs, interleaved_1f1b,
    interleaved_zero_bubble: several stages per rank; zbv_zero_bubble, dual_pipe_v: two stages per
    rank in a V: the first half in the order of the ranks, the second half in reverse."""

    stages_per_rank: int | None = field(default=None, ge=1)  # fmt: skip
    """Virtual stages: non-adjacent parts of the model on each rank; null: as in `split`, else 2
    where the schedule runs several, else 1."""

    split: tuple[tuple[str, ...], ...] | None = None
    """Parts of the model in each stage, by name, in order: embedding, layers.0, layers.1, ...,
    output (the last norm and the output matrix); null: balanced by FLOPs and parameters."""

    transfer: Literal["fp32", "bf16"] | None = None
    """Transfer dtype (P2P): that of activations and their gradients between stages; null: bf16
    where precision.compute is bf16, else that of the residual stream."""

    def sent(self, compute: str, stream: str) -> str:
        """Dtype of transfers between stages.

        Arguments:
            compute, stream: dtypes of matrix products and of the residual stream.
        """
        return self.transfer or ("bf16" if compute == "bf16" else stream)

    @property
    def known(self) -> Schedule:
        """Properties of the schedule."""
        return SCHEDULES[self.schedule]

    def stages(self, ranks: int) -> int:
        """The number of stages over all ranks of a pipeline."""
        if self.stages_per_rank is not None:
            return ranks * self.stages_per_rank
        return ranks * self.known.stages if self.split is None else len(self.split)

    @rule
    def _check_stages(self) -> Iterator[Problem]:
        given, known = self.stages_per_rank, self.known
        if given not in (None, known.stages) and not known.is_looped:
            yield Problem(
                "stages_per_rank",
                f"is {given}, but schedule = {self.schedule} runs {known.stages} on each rank",
                valid=("null", str(known.stages)),
                also=("schedule",),
                hint="Schedules that support any number: looped_bfs, interleaved_1f1b, "
                "interleaved_zero_bubble.",
            )

    @rule(needs="torch", when=lambda pipelining: pipelining.known.splits_backward)
    def _check_torch(self) -> Iterator[Problem]:
        """The installed torch runs the schedule."""
        from importlib.metadata import version  # not needed by fast commands

        installed = version("torch")
        if tuple(int(part) for part in installed.split(".")[:2]) < SPLITS_BACKWARD:
            yield Problem(
                "schedule",
                f"needs torch {'.'.join(map(str, SPLITS_BACKWARD))} or later for backward passes "
                f"in two parts; this is {installed}",
                valid=tuple(name for name, known in SCHEDULES.items() if not known.splits_backward),
            )

    def batch_problem(self, ranks: int, count: int) -> tuple[str, list[int]] | None:
        """Explain why a schedule cannot run with a number of micro-batches per step.

        Returns:
            the reason and the nearest valid numbers; None if it can.
        """
        if self.fits(ranks, count):
            return None
        if self.known.is_filled:
            least = self.stages(ranks)
            why = f"schedule = {self.schedule} needs at least {least}, one per stage"
            return why, [least]
        lower = next(n for n in range(count - 1, 0, -1) if self.fits(ranks, n))
        higher = next(n for n in range(count + 1, 2 * count + ranks) if self.fits(ranks, n))
        rounds = count // ranks
        why = f"schedule = {self.schedule} needs {rounds} rounds of equal size"
        return why, [lower, higher]

    def fits(self, ranks: int, count: int) -> bool:
        """True if the schedule can run this number of micro-batches per step."""
        if self.known.is_filled:
            return count >= self.stages(ranks)
        if self.known.is_interleaved:
            # In rounds of at least one micro-batch per rank.
            return count % max(1, count // ranks) == 0
        return True


def balanced(parts: Sequence[StagePart], stages: int) -> list[list[str]]:
    """Split a model into stages of about equal time and memory.

    Minimizes the FLOPs of the most expensive stage, for which all others wait; among such splits,
    the sum of squares of the stages' shares of all FLOPs and of all parameters. Uses dynamic
    programming, in O(parts^2 stages).

    Arguments:
        parts: in the order in which tokens pass through them.
        stages: at most the number of parts.

    Returns:
        the names of the parts of each stage, none of which is empty.
    """
    assert 0 < stages <= len(parts)
    flops = [0, *accumulate(part.flops for part in parts)]
    parameters = [0, *accumulate(part.parameters for part in parts)]

    def time(first: int, last: int) -> float:
        return (flops[last] - flops[first]) / max(1, flops[-1])

    def squares(first: int, last: int) -> float:
        if time(first, last) > limit:
            return math.inf
        memory = (parameters[last] - parameters[first]) / max(1, parameters[-1])
        return time(first, last) ** 2 + memory**2

    limit, _ = _cut(len(parts), stages, time, max)
    _, cuts = _cut(len(parts), stages, squares, add)
    names = [part.name for part in parts]
    return [names[first:last] for first, last in pairwise(cuts)]


def _cut(
    count: int,
    stages: int,
    cost: Callable[[int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """Find the cuts with the lowest total cost over all stages.

    Returns:
        the cost, and the bounds of the stages: 0, the cuts, and the number of parts.
    """
    # Cost of the first parts in the stages so far, by number of parts.
    best = {last: (cost(0, last), [0, last]) for last in range(1, count + 1)}
    for used in range(2, stages + 1):
        best = {
            last: min(
                (join(best[cut][0], cost(cut, last)), [*best[cut][1], last])
                for cut in range(used - 1, last)
            )
            for last in range(used, count + 1)
        }
    return best[count]


def ranks_of_stages(ranks: int, stages: int, is_v: bool) -> list[int]:
    """The pipeline rank of each stage.

    Arguments:
        is_v: whether every second round of stages runs back over the ranks, so that the last stage
            of two rounds is on the first rank; otherwise each round starts at the first rank.
    """
    order = list(range(ranks))
    rounds = [order[::-1] if is_v and number % 2 else order for number in range(stages // ranks)]
    return [rank for ranks_in_round in rounds for rank in ranks_in_round]
