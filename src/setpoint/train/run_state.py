"""State of a run in its checkpoints: the registry of all parts that have one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from torch import Tensor, dtype

from setpoint.checkpoint.loading import LoadedCheckpoint, load_weights
from setpoint.checkpoint.optimizer_state import (
    capture_optimizer,
    join_states,
    part_of_state,
    restore_optimizer,
)
from setpoint.config import SetpointError
from setpoint.optim.build import title_of
from setpoint.parallel.world import World
from setpoint.precision.mixed_precision import convert_state
from setpoint.shapes.logged import MetricLog
from setpoint.shapes.placed import part_here
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import Components
from setpoint.train.build.job_data import where_in_data
from setpoint.train.callbacks.log import LossMean, meet
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import TRAINING, BestMetric, evaluation_point, go_on_from
from setpoint.train.position import Position, is_over
from setpoint.units import DType

WEIGHTS_ONLY = "weights_only"
"""Mark in the state of a checkpoint that no run goes on from."""


@dataclass(slots=True)
class Snapshot:
    """Content of a checkpoint.

    Arguments:
        tensors: by file and by name; not copies.
        state: all that is no tensor, as JSON has it.
        unchanged: weights and states of the optimizer: what no part of a step changes before the
            update, unless code that is not Setpoint's does.
    """

    tensors: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    unchanged: list[Tensor] = field(default_factory=list)


class Stateful(Protocol):
    """A part of a run that a checkpoint keeps something of.

    `trained` says whether it matters only for training on: weights can be used without it.
    """

    trained: bool

    def capture(self, into: Snapshot, within: ExitStack) -> None:
        """Put in what the rest of the run depends on.

        Arguments:
            within: closed when the snapshot has been written, to undo what was done for it.
        """
        ...

    def restore(self, saved: LoadedCheckpoint) -> None:
        """Go on from what a checkpoint holds; where that leaves it out, from the start."""
        ...


class _Plain(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass(slots=True)
class PlainState:
    """Something whose state is plain values, under a key of their own.

    Arguments:
        rare: whether there is mostly none, which is left out then.
    """

    key: str
    owner: _Plain
    trained: bool = True
    rare: bool = False

    def capture(self, into: Snapshot, within: ExitStack) -> None:
        """See `Stateful.capture`."""
        state = self.owner.state_dict()
        if state or not self.rare:
            into.state[self.key] = state

    def restore(self, saved: LoadedCheckpoint) -> None:
        """See `Stateful.restore`."""
        self.owner.load_state_dict(saved.state.get(self.key, {}))


@dataclass(slots=True)
class DataState:
    """The position in the training data."""

    job: Job
    components: Components
    other_data: bool
    trained: bool = True

    def capture(self, into: Snapshot, within: ExitStack) -> None:
        """See `Stateful.capture`."""
        place = self.components.data_position()
        into.state["loader"], into.state["data"] = place, where_in_data(self.job, place)

    def restore(self, saved: LoadedCheckpoint) -> None:
        """See `Stateful.restore`."""
        if "loader" in saved.state or not saved.partial:
            self.components.feed.load_state_dict(saved.state["loader"], self.other_data)


@dataclass(slots=True)
class ModelState:
    """The weights that the model is evaluated, saved and used with."""

    components: Components
    trained: bool = False

    def capture(self, into: Snapshot, within: ExitStack) -> None:
        """Take them, and the weights that are trained where they are others."""
        training = within.enter_context(evaluation_point(self.components))
        into.tensors["model"] = self.components.weights.model_state()
        into.unchanged += self.components.model.parameters()
        if master := self.components.weights.state():
            # The model is never evaluated with these, so that they can be those that are trained.
            into.tensors["master"] = {**master, **training}
            into.unchanged += master.values()
        elif training:
            into.tensors[TRAINING] = training

    def restore(self, saved: LoadedCheckpoint) -> None:
        """See `Stateful.restore`."""
        pipeline = self.components.pipeline
        elsewhere = () if pipeline is None else pipeline.elsewhere
        load_weights(self.components.model, saved, elsewhere)


@dataclass(slots=True)
class OptimizerState:
    """The weights that the optimizer updates, and its state.

    Arguments:
        other_frozen: whether other parameters than those of the checkpoint may be frozen.
    """

    job: Job
    components: Components
    other_frozen: bool = False
    trained: bool = True

    def capture(self, into: Snapshot, within: ExitStack) -> None:
        """See `Stateful.capture`."""
        components = self.components
        into.tensors["optimizer"], state = capture_optimizer(
            components.optimizer, components.weights.named_parameters(), components.options
        )
        into.unchanged += into.tensors["optimizer"].values()
        if components.pipeline is not None:
            state = join_states(components.pipeline.all_of(state))
        into.state["optimizer"] = state

    def restore(self, saved: LoadedCheckpoint) -> None:
        """Go on; options and formats are those of the configuration."""
        components, state = self.components, saved.state.get("optimizer")
        weights = {**saved.tensors["model"], **saved.tensors.get("master", {})}
        components.weights.load(weights, saved.partial)
        if state is None and saved.partial:
            return
        assert state is not None
        if components.pipeline is not None:
            local = {name for name, _ in components.weights.named_parameters()}
            state = part_of_state(state, components.pipeline.elsewhere - local)
        go_on_from(components, saved.tensors.get(TRAINING, {}))
        restore_optimizer(
            components.optimizer,
            components.weights.named_parameters(),
            saved.tensors["optimizer"],
            state,
            partial=saved.partial or self.other_frozen,
        )
        others: dict[Tensor, dtype] | None = None
        if title_of(self.job.optimizer) is not None:
            others = {
                param: weights[name].dtype if name in weights else param.dtype
                for name, param in components.weights.named_parameters()
            }
        convert_state(self.job.precision, components.optimizer, others)


@dataclass(slots=True)
class TrackersState:
    """The positions of the trackers in their files."""

    trackers: Trackers
    trained: bool = False

    def capture(self, into: Snapshot, within: ExitStack) -> None:
        """Take it, when what has been written outlasts the process."""
        self.trackers.flush()
        into.state.update(self.trackers.state_dict())

    def restore(self, saved: LoadedCheckpoint) -> None:
        """See `Stateful.restore`."""
        self.trackers.load_state_dict(saved.state)


@dataclass(slots=True)
class LoggedState:
    """Metrics that code of the user has logged since the last row, on all ranks."""

    metrics: MetricLog
    world: World
    trained: bool = False

    def capture(self, into: Snapshot, within: ExitStack) -> None:
        """Take it, from all ranks, which the main rank has from then on."""
        meet(self.metrics, self.world)
        if state := self.metrics.state_dict():
            into.state["metrics"] = state

    def restore(self, saved: LoadedCheckpoint) -> None:
        """See `Stateful.restore`."""
        state = saved.state.get("metrics", {}) if self.world.is_main else {}
        self.metrics.load_state_dict(state)


States = dict[str, Stateful]
"""Everything that a checkpoint keeps, in the order in which it is restored."""
OF_FILES = ("trackers", "metrics")
"""The states that belong to the files of one run directory."""


def states_of(
    job: Job,
    components: Components,
    best: BestMetric,
    mean: LossMean,
    trackers: Trackers,
    other_data: bool = False,
    other_frozen: bool = False,
    metrics: MetricLog | None = None,
) -> States:
    """List all of a run that has a state.

    Arguments:
        metrics: what code of the user's has logged; None: nothing is.
        other_data: whether other documents than those of the checkpoint are fine.
        other_frozen: whether other parameters than there may be frozen.
    """
    schedule, scaler, spikes = components.schedule, components.scaler, components.spikes
    plain: dict[str, _Plain | None] = {
        "schedule": schedule if schedule.has_state else None,
        "scaler": scaler if scaler.is_enabled() else None,
        "spikes": spikes,
    }
    weights: States = {
        "model": ModelState(components),
        "optimizer": OptimizerState(job, components, other_frozen),
    }
    if components.replicas.holds_state:
        from setpoint.train.deepspeed_engine import zero_states

        weights = zero_states(components, other_frozen)
    return {
        # First: it refuses other data before anything has been changed.
        "data": DataState(job, components, other_data),
        **weights,
        **{key: PlainState(key, owner) for key, owner in plain.items() if owner is not None},
        "non_finite": PlainState("non_finite", components.non_finite, rare=True),
        "trackers": TrackersState(trackers),
        "evaluation": PlainState("evaluation", best, trained=False),
        "loss_mean": PlainState("loss_mean", mean, trained=False),
        "metrics": LoggedState(MetricLog() if metrics is None else metrics, components.world),
    }


@contextmanager
def snapshot(
    states: Mapping[str, Stateful],
    position: Position,
    weights_only: bool = False,
    weights_dtype: str | None = None,
) -> Iterator[Snapshot]:
    """Take all that the rest of a run depends on.

    Arguments:
        weights_only: leave out what no use of the model needs.
        weights_dtype: in which these are taken then; None as the model has them.

    Returns:
        a context; the tensors are as they are to be written until it ends.
    """
    taken = Snapshot(state={"position": asdict(position)})
    with ExitStack() as within:
        for part in states.values():
            part.capture(taken, within)
        if weights_only:
            weights = taken.tensors["model"]
            if weights_dtype is not None:
                weights = _converted(weights, DType(weights_dtype).torch())
            taken.tensors = {"model": weights}
            taken.state[WEIGHTS_ONLY] = True
        yield taken


def _converted(weights: Mapping[str, Tensor], to: dtype) -> dict[str, Tensor]:
    """Weights in another dtype; those that are one tensor stay one."""
    done: dict[tuple[object, ...], Tensor] = {}
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        local = part_here(tensor)
        seen = (local.data_ptr(), local.stride(), *tensor.shape) if local.numel() else (name,)
        if seen not in done:
            done[seen] = tensor.to(to) if tensor.is_floating_point() else tensor
        result[name] = done[seen]
    return result


def restore(job: Job, states: Mapping[str, Stateful], checkpoint: LoadedCheckpoint) -> Position:
    """Bring a run to where it was when a checkpoint was saved.

    Raises:
        SetpointError: if the checkpoint belongs to another model, optimizer or data, or holds the
            weights alone and there is something left to train.
    """
    position = Position(**checkpoint.state["position"])
    alone = bool(checkpoint.state.get(WEIGHTS_ONLY))
    if alone and not is_over(job.duration, position):
        raise SetpointError(
            f"{checkpoint.path} holds the weights alone (checkpoint.last = weights), and no "
            f"run resumes from these. Move it away to resume from the checkpoint before it, if "
            f"there is one, or train a run of its own that starts from them"
        )
    for part in states.values():
        if not (alone and part.trained):
            part.restore(checkpoint)
    return position
