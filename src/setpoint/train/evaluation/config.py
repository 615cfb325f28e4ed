"""The section `[evaluation]`: what the model is evaluated on, how often, and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Literal, get_args

from setpoint.config import RUNTIME, Config, Problem, derive, derived, field, plain, rule
from setpoint.data.sources.config import NAME, SourceConfig, unmixed_problems
from setpoint.units import Period

if TYPE_CHECKING:
    from setpoint.config.types.base import FieldType

HELD_OUT = "held_out"
SEQUENCES = 64
"""The default: every 100 steps of 8 sequences, evaluating them takes 3 % of the training."""
Metric = Literal["loss", "perplexity", "bits_per_byte", "accuracy"]
METRICS: tuple[str, ...] = get_args(Metric)


class EvaluationData(Config, role=RUNTIME):
    """Named validation set in addition to the split of `data.held_out`."""

    name: str = field(pattern=NAME)
    """Name of the validation set in metrics."""

    sources: tuple[SourceConfig, ...]
    """Data sources of the validation set; all of their documents are evaluated."""

    sequences: int | None = field(default=SEQUENCES, ge=1)
    """Number of sequences to evaluate, always the same; null: all."""

    @rule
    def _check_name(self) -> Iterator[Problem]:
        if self.name == HELD_OUT:
            yield Problem("name", "is the name of the documents of data.held_out", valid=("web",))
        if not self.sources:
            yield Problem("sources", "is empty", valid=('[{type = "stdlib"}]',))
        yield from unmixed_problems(self.sources, "sources")


class Best(Config, role=RUNTIME):
    """Metric that selects the best checkpoint."""

    data: str = field(default=HELD_OUT, pattern=NAME)
    """Validation set, by name; held_out is the split of `data.held_out`."""

    metric: Metric = "loss"
    """Metric of that validation set."""

    direction: Literal["min", "max"] = derived()
    """Direction of improvement. min: lower is better; max: higher. Default: max for accuracy, else
    min."""

    @property
    def usual_direction(self) -> Literal["min", "max"]:
        """Direction in which the metric improves unless configured otherwise."""
        return "max" if self.metric == "accuracy" else "min"

    @derive("direction")
    def _derive_direction(self) -> str:
        return self.usual_direction


class EarlyStopping(Config, role=RUNTIME):
    """Early stopping: end training when the best metric stops improving."""

    patience: int = field(default=3, ge=1)
    """Patience: number of consecutive evaluations without improvement that ends training."""

    min_delta: float = field(default=0.0, ge=0, lt=inf)
    """Minimum improvement: smaller improvements of the best value do not count."""


class Evaluation(Config, role=RUNTIME):
    """Evaluation on the validation set during training."""

    every: Period = field(default=Period("100 steps"), tags=("cadence",))
    """Evaluation interval; there is also one evaluation at the end (never: only that one)."""

    sequences: int | None = field(default=SEQUENCES, ge=1)
    """Number of validation sequences to evaluate, always the same; null: all."""

    datasets: tuple[EvaluationData, ...] = ()
    """Further validation sets, by name."""

    before_training: bool = False
    """Evaluate before the first step as well."""

    accuracy: bool = False
    """Compute token accuracy as well: the share of targets that have the highest logit."""

    best: Best = field(factory=Best)
    """Metric that selects the best checkpoint and controls early stopping."""

    early_stopping: EarlyStopping | None = None
    """Early stopping; null: none."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the evaluated data sets, held-out text first."""
        return (HELD_OUT, *(dataset.name for dataset in self.datasets))

    def dataset(self, data: str) -> EvaluationData | None:
        """Look up the section of a data set.

        Returns:
            the section; None for other names, and for the split of `data.held_out`, which has no
            section.
        """
        return next((dataset for dataset in self.datasets if dataset.name == data), None)

    def sequences_of(self, data: str) -> int | None:
        """Look up the number of sequences of a data set that are evaluated.

        Returns:
            the number, from the start; None: all of them.
        """
        given = self.dataset(data)
        return self.sequences if given is None else given.sequences

    def basis_of(self, data: str) -> str:
        """Describe which part of a data set is evaluated, and when.

        Returns:
            text that differs whenever the metrics would. The held-out split is determined by the
            section data, so it is not included.
        """
        import json  # only for plateaus

        given, sequences = self.dataset(data), self.sequences_of(data)
        when = f"every {self.every}" + (" and before training" if self.before_training else "")
        rows = "all sequences" if sequences is None else f"the first {sequences} sequences"
        if given is not None:
            sources = [_plain(source) for source in given.sources]
            rows += f" of {json.dumps(sources, ensure_ascii=False, sort_keys=True)}"
        return f"{data} {when}, {rows}"

    def computes(self, data: str, metric: str) -> bool:
        """True if an evaluation computes a metric."""
        known = metric in METRICS and (self.accuracy or metric != "accuracy")
        return known and data in self.names

    @rule
    def _check_names(self) -> Iterator[Problem]:
        first: dict[str, int] = {}
        for index, dataset in enumerate(self.datasets):
            if first.setdefault(dataset.name, index) != index:
                yield Problem(
                    f"datasets.{index}.name",
                    f"is already the name of datasets.{first[dataset.name]}",
                    valid=(f"{dataset.name}-{index}",),
                )

    @rule
    def _check_early_stopping(self) -> Iterator[Problem]:
        if self.early_stopping is not None and self.every.unit in ("last_step", "never"):
            yield Problem(
                "early_stopping",
                "has no effect: there is nothing to stop after the last step",
                also=("every",),
                hint="Remove it, or evaluate at an interval of steps.",
            )

    @rule
    def _check_best(self) -> Iterator[Problem]:
        if self.best.data not in self.names:
            yield Problem("best.data", "is not a data set of the evaluation", valid=self.names)
        elif not self.computes(self.best.data, self.best.metric):
            yield Problem(
                "best.metric",
                "is not computed",
                also=("accuracy",),
                hint="Set evaluation.accuracy = true.",
            )


def _plain(section: Config) -> dict[str, object]:
    """The values of a section that determine its text, as plain data; the section may be a view."""
    cls = section.__setpoint__
    values: dict[str, object] = {"type": cls.tag}
    for name, info in cls.fields.items():
        if info.role is not RUNTIME:
            values[name] = plain(_dumped(info.type, getattr(section, name)))
    return values


def _dumped(kind: FieldType, value: object) -> object:
    if isinstance(value, Config):
        return _plain(value)
    if value is None or not kind.nested:
        return kind.dump(value)
    items = [(key, _dumped(inner, item)) for key, item, inner in kind.items(value)]
    return dict(items) if isinstance(value, dict) else [item for _, item in items]
