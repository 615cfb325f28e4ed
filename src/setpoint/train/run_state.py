"""State of a run in checkpoints: the registry of its stateful parts, and what they omit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, dtype, nn

from setpoint.checkpoint.loading import LoadedCheckpoint, load_weights
from setpoint.checkpoint.manifest import Base
from setpoint.checkpoint.optimizer_state import (
    capture_optimizer,
    join_states,
    part_of_state,
    restore_optimizer,
)
from setpoint.config import SetpointError
from setpoint.files.tensor_file import DTYPES
from setpoint.model.build import skeleton
from setpoint.model.config import TransformerConfig
from setpoint.model.pretrained.locate import Place, locate
from setpoint.optim.optimizer import title_of
from setpoint.parallel.world import World
from setpoint.precision.mixed_precision import convert_state
from setpoint.shapes.logged import MetricLog
from setpoint.shapes.placed import as_placed, local_part
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import Components
from setpoint.train.build.job_data import describe_data_position
from setpoint.train.build.job_parameters import add_adapter
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import (
    TRAINING,
    EvaluationState,
    evaluation_point,
    restore_training_weights,
)
from setpoint.train.position import Position, is_over
from setpoint.train.row_metrics import LossMean, meet
from setpoint.units import DType

WEIGHTS_ONLY = "weights_only"
"""Key in the state of a checkpoint that cannot be resumed."""


@dataclass(slots=True)
class Snapshot:
    """Content of a checkpoint.

    Arguments:
        tensors: tensors by file and name; not copied.
        state: everything else, as JSON data.
        unchanged: weights and optimizer states, which change only in updates unless third-party
            code changes them.
    """

    tensors: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    unchanged: list[Tensor] = field(default_factory=list)


class Stateful(Protocol):
    """A part of a run whose state is saved in checkpoints.

    `trained` is True for state that is needed only for further training.
    """

    trained: bool

    def capture(self, into: Snapshot, stack: ExitStack) -> None:
        """Add the state of this part to a snapshot.

        Arguments:
            stack: closed after the snapshot is written, to undo temporary changes.
        """
        ...

    def restore(self, saved: LoadedCheckpoint) -> None:
        """Restore the state from a checkpoint, or the initial state if the checkpoint has none."""
        ...


class _Plain(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass(slots=True)
class PlainState:
    """State of plain values under one key; empty state is omitted."""

    key: str
    owner: _Plain
    trained: bool = True

    def capture(self, into: Snapshot, stack: ExitStack) -> None:
        """See `Stateful.capture`."""
        if state := self.owner.state_dict():
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

    def capture(self, into: Snapshot, stack: ExitStack) -> None:
        """See `Stateful.capture`."""
        place = self.components.data_position()
        into.state["loader"], into.state["data"] = place, describe_data_position(self.job, place)

    def restore(self, saved: LoadedCheckpoint) -> None:
        """See `Stateful.restore`."""
        if "loader" in saved.state or not saved.partial:
            self.components.feed.load_state_dict(saved.state["loader"], self.other_data)


@dataclass(slots=True)
class ModelState:
    """The weights for evaluation and export, and the training weights if they differ."""

    components: Components
    trained: bool = False

    def capture(self, into: Snapshot, stack: ExitStack) -> None:
        """Capture the evaluation weights, and the training weights if they differ."""
        training = stack.enter_context(evaluation_point(self.components))
        into.tensors["model"] = self.components.weights.model_state()
        into.unchanged += self.components.model.parameters()
        if master := self.components.weights.state():
            # The model is never evaluated with these, so they may be the trained ones.
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
    """The weights updated by the optimizer, and the optimizer's state.

    Arguments:
        other_frozen: whether the frozen parameters may differ from those of the checkpoint.
    """

    job: Job
    components: Components
    other_frozen: bool = False
    trained: bool = True

    def capture(self, into: Snapshot, stack: ExitStack) -> None:
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
        """Restore the state; options and dtypes come from the configuration."""
        components, state = self.components, saved.state.get("optimizer")
        weights = {**saved.tensors["model"], **saved.tensors.get("master", {})}
        components.weights.load(weights, saved.partial)
        if state is None and saved.partial:
            return
        assert state is not None
        if components.pipeline is not None:
            local = {name for name, _ in components.weights.named_parameters()}
            state = part_of_state(state, components.pipeline.elsewhere - local)
        restore_training_weights(components, saved.tensors.get(TRAINING, {}))
        restore_optimizer(
            components.optimizer,
            components.weights.named_parameters(),
            saved.tensors["optimizer"],
            state,
            partial=saved.partial or self.other_frozen,
        )
        dtypes: dict[Tensor, dtype] | None = None
        if title_of(self.job.optimizer) is not None:
            dtypes = {
                param: weights[name].dtype if name in weights else param.dtype
                for name, param in components.weights.named_parameters()
            }
        convert_state(self.job.precision, components.optimizer, dtypes)


@dataclass(slots=True)
class LoggedState:
    """Metrics logged by user code since the last row, on all ranks."""

    metrics: MetricLog
    world: World
    trained: bool = False

    def capture(self, into: Snapshot, stack: ExitStack) -> None:
        """Merge all ranks' metrics on the main rank, and capture them."""
        meet(self.metrics, self.world)
        if state := self.metrics.state_dict():
            into.state["metrics"] = state

    def restore(self, saved: LoadedCheckpoint) -> None:
        """See `Stateful.restore`."""
        state = saved.state.get("metrics", {}) if self.world.is_main else {}
        self.metrics.load_state_dict(state)


class FrozenParameters:
    """The source weights of frozen parameters, and the parameters that checkpoints omit.

    Every rank must call every method.

    Arguments:
        job, components: job and components of the run; the model is not compared before `decide`.
    """

    def __init__(self, job: Job, components: Components) -> None:
        self.job, self.components = job, components
        self.left_out: Base | None = None
        self._loaded: tuple[Base, Place] | None = None
        self._source: Path | None = None

    def completed(self, checkpoint: LoadedCheckpoint) -> LoadedCheckpoint:
        """A checkpoint completed with the frozen parameters that it omits.

        Raises:
            SetpointError: the weights that contain the parameters are missing or have changed.
        """
        self._source, base = checkpoint.path, checkpoint.base
        if base is None:
            self._loaded = None
            return checkpoint
        from setpoint.model.pretrained.load import completed, find_base

        known = self._loaded
        if known is None or known[0].files != base.files:
            pretrained = self.job.model.pretrained
            place = self.components.world.on_main(
                lambda: find_base(checkpoint.path, base, pretrained)
            )
            known = base, place
        self._loaded = base, known[1]
        words, outline = self.components.tokenizer.vocab_size, self._outline()
        return completed(checkpoint, self.job.model, words, outline, known[1])

    def decide(self) -> str | None:
        """Choose the parameters that checkpoints omit, once the model has its initial values.

        Frozen parameters are compared with the weights bit by bit, unless they were just loaded
        from there; parameters that were trained before they were frozen are saved.

        Returns:
            a note; None if nothing is omitted.

        Raises:
            SetpointError: the weights cannot be read.
        """
        section, pretrained = self.job.checkpoint, self.job.model.pretrained
        if section.save_frozen or not section.save or pretrained is None:
            return None
        world = self.components.world
        base, place = self._loaded or world.on_main(lambda: _pretrained_base(pretrained))
        frozen = {  # on this rank, by name in checkpoints
            name: tensor.detach()
            for name, tensor in self.components.model.state_dict(keep_vars=True).items()
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        }
        equal = self._unchanged(frozen, base, place)
        facts = {name: ((DTYPES[part.dtype],), name in equal) for name, part in frozen.items()}
        parts = world.all_of(facts)
        trained = {name for part in parts for name, (_, same) in part.items() if not same}
        names = {
            name: dtypes
            for part in parts
            for name, (dtypes, _) in part.items()
            if name not in trained
        }
        self.left_out = Base(base.name, base.directory, base.files, names) if names else None
        changed = f"; {len(trained)} others were trained and are saved" if trained else ""
        return (
            f"checkpoints omit {len(names)} frozen parameters, which come from {base.name}{changed}"
        )

    def _outline(self) -> nn.Module | None:
        """The unquantized model on the meta device, if parts are quantized."""
        adapter, config = self.job.adapter, self.job.model
        if adapter is None or adapter.quantize is None or not isinstance(config, TransformerConfig):
            return None
        model = skeleton(config, self.components.tokenizer.vocab_size)
        add_adapter(self.job, model)
        return model

    def _unchanged(self, frozen: dict[str, Tensor], base: Base, place: Place) -> set[str]:
        """The parameters that equal the weights bit by bit."""
        config, size = self.job.model, self.components.tokenizer.vocab_size
        known = set(base.tensors) & frozen.keys()
        if self._source is None and self.components.pretrained is not None:
            # They were just loaded from there, except for parts that the model itself lacks.
            if not isinstance(config, TransformerConfig):
                return set(frozen)
            known = frozen.keys() & skeleton(config, size).state_dict().keys()
        unknown = {n: (DTYPES[tensor.dtype],) for n, tensor in frozen.items() if n not in known}
        if not unknown or self.components.replicas.holds_state:
            return known
        from setpoint.model.pretrained.load import tensors_at

        directory = self._source or place.directory
        weights = tensors_at(place, unknown, config, size, directory, self._outline())
        for name, weight in weights.items():
            placed = local_part(as_placed(weight, frozen[name]))
            if torch.equal(placed.to(frozen[name].device), local_part(frozen[name])):
                known.add(name)
        return known


def _pretrained_base(pretrained: str) -> tuple[Base, Place]:
    """The weights of `model.pretrained`, with no parameters omitted yet."""
    from setpoint.model.pretrained.load import files_at

    place = locate(pretrained)
    return Base(pretrained, str(place.directory.resolve()), files_at(place), {}), place


States = dict[str, Stateful]
"""Stateful parts in the order of restoring; rollbacks and warm starts restore some of them."""
OF_FILES = ("trackers", "metrics")
"""Parts that belong to the files of one run directory."""


def states_of(
    job: Job,
    components: Components,
    evaluations: EvaluationState,
    mean: LossMean,
    trackers: Trackers,
    other_data: bool = False,
    other_frozen: bool = False,
    metrics: MetricLog | None = None,
) -> States:
    """Register all stateful parts of a run.

    Arguments:
        metrics: metrics logged by user code; None if there are none.
        other_data: whether the documents may differ from those of the checkpoint.
        other_frozen: whether the frozen parameters may differ.
    """
    plain: dict[str, _Plain | None] = {
        "schedule": components.schedule,
        "scaler": components.scaler,
        "spikes": components.spikes,
        "non_finite": components.non_finite,
    }
    weights: States = {
        "model": ModelState(components),
        "optimizer": OptimizerState(job, components, other_frozen),
    }
    if components.replicas.holds_state:
        from setpoint.train.deepspeed_engine import zero_states

        weights = zero_states(components, other_frozen)
    return {
        # First: it refuses other data before any state changes. Random numbers need no state, as
        # each step has its own seed; see `setpoint.parallel.determinism.seed_step`.
        "data": DataState(job, components, other_data),
        **weights,
        **{key: PlainState(key, owner) for key, owner in plain.items() if owner is not None},
        "trackers": PlainState("trackers", trackers, trained=False),
        "evaluation": PlainState("evaluation", evaluations, trained=False),
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
    """Capture all states of a run.

    Arguments:
        weights_only: whether to omit state that only training needs.
        weights_dtype: dtype of the weights with `weights_only`; None: unchanged.

    Returns:
        a context within which the tensors stay valid.
    """
    taken = Snapshot(state={"position": asdict(position)})
    with ExitStack() as stack:
        for part in states.values():
            part.capture(taken, stack)
        if weights_only:
            weights = taken.tensors["model"]
            if weights_dtype is not None:
                weights = _converted(weights, DType(weights_dtype).torch())
            taken.tensors = {"model": weights}
            taken.state[WEIGHTS_ONLY] = True
        yield taken


def _converted(weights: Mapping[str, Tensor], to: dtype) -> dict[str, Tensor]:
    """Weights in another dtype; tied tensors stay tied."""
    done: dict[tuple[object, ...], Tensor] = {}
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        local = local_part(tensor)
        key = (local.data_ptr(), local.stride(), *tensor.shape) if local.numel() else (name,)
        if key not in done:
            done[key] = tensor.to(to) if tensor.is_floating_point() else tensor
        result[name] = done[key]
    return result


def restore(job: Job, states: Mapping[str, Stateful], checkpoint: LoadedCheckpoint) -> Position:
    """Restore a run from a checkpoint.

    Raises:
        SetpointError: the checkpoint is for another model, optimizer or data, or contains only
            weights although the run is unfinished.
    """
    position = Position(**checkpoint.state["position"])
    weights_only = bool(checkpoint.state.get(WEIGHTS_ONLY))
    if weights_only and not is_over(job.duration, position):
        raise SetpointError(
            f"{checkpoint.path} contains only the weights (checkpoint.last = weights), so the run "
            f"cannot resume from it. Move it away to resume from the previous checkpoint, if "
            f"there is one, or train a separate run that starts from these weights"
        )
    for part in states.values():
        if not (weights_only and part.trained):
            part.restore(checkpoint)
    return position
