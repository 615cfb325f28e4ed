"""Metrics logged by user code, collected until the next row."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor

from setpoint.config import RunError
from setpoint.config.values.origin import short_name
from setpoint.shapes.placed import whole_of

Reduce = Literal["mean", "sum", "min", "max", "last"]
REDUCTIONS: tuple[str, ...] = get_args(Reduce)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TAKEN = frozenset(
    (
        *("kind", "time", "session", "step", "tokens", "epoch", "loss", "mean_loss", "loss_ema"),
        *("cross_entropy", "grad_norm", "lr", "seconds", "tokens_per_second", "data_wait", "mfu"),
        *("peak_rss", "peak_gpu_memory", "loss_scale", "skipped_steps", "balance_loss"),
        *("sequence_balance_loss", "router_z_loss", "experts_idle"),
    )
)
"""Columns of the rows of training that Setpoint writes."""
BEGINNINGS = (
    *("seconds_", "share_", "lr_", "grad_norm_", "param_norm", "update_ratio", "sequences_"),
    *("target_tokens_", "cross_entropy_", "expert_"),
)
"""Beginnings of columns that are named after parts, groups, layers or sources."""
OURS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))

_collecting: MetricLog | None = None


def log(*, reduce: Reduce = "mean", **metrics: float | Tensor) -> None:
    """Log metrics from the forward pass of a model or loss, as `Loop.log` does from a callback.

    Only forward passes of training steps log: not evaluation, generation or recomputation.

    Arguments:
        reduce: see `MetricLog.add`.
        metrics: numbers or tensors of one element, by name; the device is not synchronized.

    Raises:
        RunError: see `MetricLog.add`.
    """
    _collect(reduce, metrics)


def _add(reduce: Reduce, metrics: Mapping[str, float | Tensor]) -> None:
    if _collecting is not None:
        _collecting.add(reduce, metrics)


_collect: Any = _add


def keep_out_of_graphs() -> None:
    """Let compiled code call `log` eagerly; imports the compiler."""
    global _collect
    reason = "a metric is logged outside of the graph, but fullgraph allows only one graph"
    _collect = torch.compiler.disable(_add, reason=reason)


@dataclass(slots=True)
class Total:
    """A metric accumulated and reduced since the last row.

    Sums are exact: neither the order of ranks nor a checkpoint between rows changes them.

    Arguments:
        count: number of values.
        exact: sum of the finite values.
        odd: sum of the non-finite values, or 0.
        value: the smallest, largest or last value.
        step: step of the last value.
        integral: whether all values are of type `int`.
    """

    reduce: Reduce
    count: int = 0
    exact: Fraction = Fraction()
    odd: float = 0.0
    value: float = math.nan
    step: int = -1
    integral: bool = True

    def add(self, value: float, step: int) -> None:
        """Add a value."""
        self.integral = self.integral and isinstance(value, int)
        if self.reduce in ("mean", "sum"):
            if isinstance(value, int) or math.isfinite(value):
                self.exact += Fraction(value)
            else:
                self.odd += value
        elif self._replaces(value):
            self.value, self.step = value, step
        self.count += 1

    def merge(self, other: Total) -> None:
        """Merge the total of a higher rank."""
        self.exact += other.exact
        self.odd += other.odd
        is_newer = self.reduce != "last" or other.step > self.step
        if other.count and is_newer and self._replaces(other.value):
            self.value, self.step = other.value, other.step
        self.integral = self.integral and other.integral
        self.count += other.count

    def _replaces(self, value: float) -> bool:
        if not self.count or self.reduce == "last":
            return True
        if math.isnan(self.value) or math.isnan(value):
            return not math.isnan(self.value)
        return value < self.value if self.reduce == "min" else value > self.value

    def result(self) -> float:
        """The reduced metric; may be NaN or infinite."""
        if self.reduce not in ("mean", "sum"):
            return self.value
        if self.odd:
            return self.odd
        exact = self.exact / self.count if self.reduce == "mean" else self.exact
        if self.integral and self.reduce == "sum":
            return int(exact)
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf

    def state(self) -> list[Any]:
        """State as JSON, for a checkpoint."""
        texts = (str(self.exact), repr(self.odd), repr(self.value))
        return [self.reduce, self.count, *texts, self.step, self.integral]

    @classmethod
    def of(cls, state: Sequence[Any]) -> Self:
        """Undo `state`."""
        reduce, count, exact, odd, value, step, integral = state
        number = int if integral and value.lstrip("-").isdecimal() else float
        return cls(reduce, count, Fraction(exact), float(odd), number(value), step, integral)


class Logged(NamedTuple):
    """Values logged up to the end of a step, in order."""

    step: int
    values: list[tuple[str, float | Tensor]]

    @property
    def on_device(self) -> list[Tensor]:
        """Values still on a device."""
        return [value for _, value in self.values if isinstance(value, Tensor)]


class MetricLog:
    """Collector of one rank's metrics for the next row; as a context, it receives those of `log`.

    Arguments:
        meets: whether ranks exchange metrics at the next row; equal on all ranks.
        always: whether they do so at every row, because user callbacks may log after the collective
            that tells other ranks about the metrics of a step.
    """

    def __init__(self) -> None:
        self.totals: dict[str, Total] = {}
        self.meets = self.always = False
        self.step = 0
        # In order; those before `_first` are of earlier steps.
        self._values: list[tuple[str, float | Tensor]] = []
        self._first = 0
        self._reductions: dict[str, Reduce] = {}
        self._outer: MetricLog | None = None

    def __enter__(self) -> None:
        global _collecting
        self._outer, _collecting = _collecting, self

    def __exit__(self, *_: object) -> None:
        global _collecting
        _collecting = self._outer

    def __bool__(self) -> bool:
        return bool(self._values or self.totals)

    def add(self, reduce: Reduce, metrics: Mapping[str, float | Tensor]) -> None:
        """Add values to the next row.

        Arguments:
            reduce: reduction of all values since the last row, from all micro-batches, steps and
                ranks. Ranks of `parallel.tensor` log the same values, which count once.

        Raises:
            RunError: a name is invalid or used by a column of Setpoint, a value is not a number, or
                the metric was logged with another reduction.
        """
        for name, value in metrics.items():
            if self._reductions.get(name) != reduce:
                self._check(name, reduce)
            self._values.append((name, _number(name, value)))

    def begin(self, step: int) -> None:
        """Begin a step."""
        self.step, self._first = step, len(self._values)

    def cut(self) -> Logged:
        """Take the logged values out; `settle` accepts them once their numbers are known."""
        logged = Logged(self.step, self._values)
        self._values, self._first = [], 0
        return logged

    def drop(self) -> None:
        """Drop the values of a step that is retried."""
        del self._values[self._first :]

    def settle(self, logged: Logged | None = None, numbers: Iterable[float] | None = None) -> None:
        """Reduce logged values.

        Arguments:
            logged: result of `cut`; None: all values.
            numbers: the numbers of `logged.on_device`; None: read them from the device.
        """
        logged = self.cut() if logged is None else logged
        known = iter(logged.on_device if numbers is None else numbers)
        for name, value in logged.values:
            number = float(next(known)) if isinstance(value, Tensor) else value
            total = self.totals.setdefault(name, Total(self._reductions[name]))
            total.add(number, logged.step)

    def take(self) -> dict[str, float]:
        """Return the metrics for a row, and reset them."""
        metrics = {name: total.result() for name, total in self.totals.items()}
        self.totals = {}
        return metrics

    def merge(self, ranks: Sequence[tuple[object, Mapping[str, Total]]]) -> None:
        """Replace the totals with those of all ranks.

        Arguments:
            ranks: for each rank, its totals and a key; ranks with the same key count once.

        Raises:
            RunError: two ranks reduce a metric differently.
        """
        self.totals, counted = {}, set[tuple[str, object]]()
        for key, totals in ranks:
            for name, other in totals.items():
                total = self.totals.setdefault(name, Total(other.reduce))
                if total.reduce != other.reduce:
                    raise RunError(_reduced_twice(name, total.reduce, other.reduce))
                if (name, key) not in counted:
                    total.merge(other)
                counted.add((name, key))

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint; empty if nothing was logged since the last row."""
        return {name: total.state() for name, total in self.totals.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._values.clear()
        self.totals = {name: Total.of(total) for name, total in state.items()}

    def _check(self, name: str, reduce: Reduce) -> None:
        if reduce not in REDUCTIONS:
            raise _call_error(
                f"log({name}=..., reduce={reduce!r}): there is no such reduction. Valid: "
                f"{', '.join(REDUCTIONS)}"
            )
        if not NAME.fullmatch(name):
            raise _call_error(f"log: {name!r} cannot name a metric. Valid: letters, digits and _")
        if name in TAKEN or name.startswith(BEGINNINGS):
            why = "it is"
            if name not in TAKEN:
                prefixes = ", ".join(prefix for prefix in BEGINNINGS if name.startswith(prefix))
                why = f"names that begin with {prefixes} are"
            raise _call_error(
                f"log({name}=...): rows of metrics have a column of that name: {why} Setpoint's "
                f"own. Valid: another name, such as my_{name}"
            )
        if name in self._reductions:
            raise _call_error(_reduced_twice(name, self._reductions[name], reduce))
        self._reductions[name] = reduce


def _call_error(text: str) -> RunError:
    """An error that points to the line of the call in user code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return RunError(f"{text} ({short_name(frame.f_code.co_filename)}:{frame.f_lineno})")


def _reduced_twice(name: str, first: str, second: str) -> str:
    return (
        f"log({name}=...) was called with reduce={first!r} and with reduce={second!r}. Valid: one "
        f"reduction for each metric"
    )


def _number(name: str, value: Any) -> float | Tensor:
    """A value as a Python number, or as a tensor if it is on a device."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            shape = tuple(value.shape)
            raise _call_error(
                f"log({name}=...): got a {value.dtype} tensor of shape {shape}. Valid: a real "
                f"number or a tensor of one element, such as its mean()"
            )
        value = whole_of(value.detach())
        if value.device.type != "cpu":
            return value.reshape(()).double()
        value = value.item()
    elif hasattr(value, "item"):  # a scalar of NumPy
        value = value.item()
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else value
    raise _call_error(
        f"log({name}=...): got a {type(value).__name__}. Valid: a real number or a tensor of one "
        f"element"
    )
