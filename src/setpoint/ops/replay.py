"""Replay of one step of a run, with statistics for each module, without writing anything."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import LoadedCheckpoint, load_directory
from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.config import RunError, SetpointError
from setpoint.ops.bad_batches import SavedStep, read_bad_batch
from setpoint.optim.clip import clip_gradients
from setpoint.parallel.determinism import seed_step
from setpoint.profile.modules import ModuleFigures, ModuleWatch
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.batch import Batch, Count, StepBatch, total_count
from setpoint.shapes.protocols import no_work
from setpoint.track.jsonl import readable_rows
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import Trackers
from setpoint.train.build.assets import fallback_files
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.engine import Engine
from setpoint.train.loop import Loop
from setpoint.train.open import settings_of
from setpoint.train.resume import make_states, restore_or_load
from setpoint.train.run_state import WEIGHTS_ONLY
from setpoint.train.session import Run
from setpoint.train.verdict import rollbacks_to


@dataclass(frozen=True, slots=True)
class Numbers:
    """Loss and gradient norm of a step."""

    loss: float
    nats: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Result of autograd's anomaly detection.

    Arguments:
        error: names the operation whose gradient is NaN.
        forward: the frames of its forward call, innermost last; may be empty.
    """

    error: str
    forward: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replayed step.

    Arguments:
        start: the step of the starting checkpoint; 0 without one.
        is_kept: True if the batch was kept, rather than read from the data.
        recorded: the recorded numbers; None if the step has no row.
        unrecorded: sentence about a missing row and the nearest steps that have one; or empty.
        modules: in the order in which they first return.
        first: the first module with non-finite values, by kind: for outputs, the first to return;
            for gradients, the first reached by the backward pass.
        anomaly: None if all gradients are finite, or none is NaN.
    """

    step: int
    start: int
    is_kept: bool
    numbers: Numbers
    recorded: Numbers | None
    modules: list[ModuleFigures]
    first: dict[str, str]
    anomaly: Anomaly | None
    unrecorded: str = ""


def replay(
    job: Job, run: RunDirectory, step: int, from_data: bool, note: Callable[[str], None]
) -> Replayed:
    """Replay a step.

    The run is trained from the newest checkpoint before the step, with its own batches; the step
    itself uses the kept batch, if there is one.

    Arguments:
        job: the job of the run, for one process; see `for_one_process`.
        from_data: True to read the batch from the data even if it was kept.
        note: prints a line for the user.

    Raises:
        SetpointError: the step was never reached, or required files are gone.
        RunError: an earlier step fails.
    """
    saved = None if from_data else read_bad_batch(run.path, step)
    recorded = _recorded(run, step, saved)
    checkpoint = _newest_before(run, step, note)
    with settings_of(job):
        stamp = None, () if checkpoint is None else (checkpoint.step,)
        session = Run(job, run.path, (), stamp, fallback_files(job, run.path), run)
        session.trackers = Trackers()
        session.components = components = build_components(
            job, session.needs_initial_weights, no_work, *session.fallback
        )
        make_states(session, other_data=False)
        with TemporaryDirectory() as folder:
            restore_or_load(session, checkpoint, Path(folder))
        loop = Loop(job, components, [], StopRequest(), session.started)
        try:
            _go_on_with_data(run, loop, checkpoint, saved)
            components.model.train()
            _take_steps(loop, step)
            components.feed.accumulation = job.batch.accumulation_at(loop.position.step)
            shares = [(0, list(components.feed.take().batches))] if saved is None else saved.shares
        finally:
            components.feed.close()
        _require_tokens(components, shares)
        numbers, watch, anomaly = _run(loop, loop.engine, shares, saved)
    return Replayed(
        step=step,
        start=session.started.step,
        is_kept=saved is not None,
        numbers=numbers,
        recorded=recorded,
        modules=list(watch.modules.values()),
        first={str(kind): name for kind, name in watch.first.items()},
        anomaly=anomaly,
        unrecorded="" if recorded is not None else _unrecorded(job, run, step),
    )


def _unrecorded(job: Job, run: RunDirectory, step: int) -> str:
    """Sentence about a step without a row: the logging interval, and the nearest rows."""
    rows = readable_rows(run.metrics)
    steps = sorted({row["step"] for row in rows if row.get("kind") == "train"})
    before, after = [s for s in steps if s < step][-1:], [s for s in steps if s > step][:1]
    near = " and ".join(str(number) for number in (*before, *after))
    nearest = f"the nearest with a row: {near}" if near else "no step has a row"
    return f"metrics were written at tracking.every = {job.tracking.every}; {nearest}"


def _recorded(run: RunDirectory, step: int, saved: SavedStep | None) -> Numbers | None:
    """The recorded numbers of a step.

    Raises:
        SetpointError: the step was never reached.
    """
    if saved is not None:
        facts = saved.facts
        return Numbers(facts["loss"], facts["cross_entropy"], facts["grad_norm"])
    rows = readable_rows(run.metrics)
    for row in rows:
        if row.get("kind") == "train" and row.get("step") == step:
            return Numbers(row["loss"], row["cross_entropy"], row["grad_norm"])
    events = readable_rows(run.events)
    failed = [row["step"] + 1 for row in events if row.get("event") == "fault" and "step" in row]
    last = max([0, *failed, *(row.get("step", 0) for row in [*rows, *events])])
    if not 1 <= step <= last:
        valid = f"1 to {last}" if last else "none: the run has not trained yet"
        raise SetpointError(f"{run.path} has no step {step}.\nValid: {valid}")
    return None


def _newest_before(
    run: RunDirectory, step: int, note: Callable[[str], None]
) -> LoadedCheckpoint | None:
    """The newest resumable checkpoint before a step."""
    for number, path in reversed(list_checkpoints(run.checkpoints).items()):
        if number >= step:
            continue
        try:
            checkpoint = load_directory(path)
        except DamagedCheckpoint as error:
            note(f"{path.name} is corrupt, skipping it: {error}")
            continue
        if not checkpoint.state.get(WEIGHTS_ONLY):
            return checkpoint
    return None


def _go_on_with_data(
    run: RunDirectory, loop: Loop, checkpoint: LoadedCheckpoint | None, saved: SavedStep | None
) -> None:
    """Move the data position to where this attempt at the step read its batch."""
    start, data = loop.position.step, None
    if saved is None:  # the last resume from here, even without the checkpoint
        for event in rollbacks_to(readable_rows(run.events), start).values():
            data = event["data"]
    elif saved.facts["rewound"]["step"] == start:
        data = saved.facts["rewound"]["data"]
    elif checkpoint is not None:
        data = checkpoint.state["loader"]
    if data is not None:
        loop.components.feed.load_state_dict(data)


def _take_steps(loop: Loop, step: int) -> None:
    """Train up to the beginning of a step."""
    while loop.position.step < step - 1:
        try:
            loop.step()
        except RunError as error:
            raise RunError(
                f"step {step} was not reached: after step {loop.position.step}, {error}"
            ) from error


def _require_tokens(components: Components, shares: list[tuple[int, list[Batch]]]) -> None:
    """Refuse kept tokens that are outside of the vocabulary."""
    size = components.tokenizer.vocab_size
    for _, batches in shares:
        for batch in batches:
            most, least = int(batch.inputs.max()), int(batch.inputs.min())
            if least < 0 or most >= size:
                raise SetpointError(
                    f"the kept batch has tokens {least} to {most}.\n"
                    f"Valid: 0 to {size - 1}, or --from-data"
                )


def _run(
    loop: Loop, engine: Engine, shares: list[tuple[int, list[Batch]]], saved: SavedStep | None
) -> tuple[Numbers, ModuleWatch, Anomaly | None]:
    components, seed = loop.components, loop.job.seed
    assert seed is not None
    counted = [[components.objective.count(batch) for batch in batches] for _, batches in shares]
    total = total_count([count for counts in counted for count in counts])
    if saved is not None:
        tokens, targets, weight = saved.facts["total"]
        total = Count(tokens, targets, weight)

    def gradients() -> Tensor:
        losses = torch.zeros(2, device=components.device)
        for (noise, batches), counts in zip(shares, counted, strict=True):
            # Seeded as on each rank; one after another, gradients add up as over ranks.
            seed_step(seed, loop.position.step, noise)
            components.begin_noise(loop.position.step)
            given = StepBatch(batches, counts, total_count(counts))
            losses += engine.forward_backward(given, total).losses
        return losses

    with ModuleWatch(components.model) as watch:
        engine.span = lambda name: _phase(watch, name)
        loss, nats = gradients().tolist()
    components.weights.grads_to_master()
    components.scaler.unscale_(components.optimizer)
    weights = components.weights.named_parameters()
    watch.count_weights({name: weight.grad for name, weight in weights})
    norm = float(clip_gradients(engine.parameters, None))
    components.optimizer.zero_grad(set_to_none=True)
    numbers = Numbers(loss, nats, norm)
    return numbers, watch, _detect(gradients) if watch.first else None


@contextmanager
def _phase(watch: ModuleWatch, name: str) -> Iterator[None]:
    watch.is_backward = name == "backward"
    yield
    watch.is_backward = False


def _detect(gradients: Callable[[], Tensor]) -> Anomaly | None:
    """Recompute the gradients with anomaly detection, which stops at the first NaN."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True):
                gradients()
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
            messages = [str(warning.message) for warning in caught]
            traces = [message for message in messages if "Traceback" in message]
            return Anomaly(str(error), _within_model(traces[0]) if traces else "")
    return None


def _within_model(trace: str) -> str:
    """The frames of a traceback from the model on, without those of `nn.Module`."""
    frames = [frame for frame in FRAME.findall(trace) if not frame.startswith(OF_MODULES)]
    outer = [number for number, frame in enumerate(frames) if OF_STEPS in frame.partition("\n")[0]]
    return "".join(frames[outer[-1] + 1 if outer else 0 :]).rstrip("\n")


FRAME = re.compile(r'  File "[^\n]*\n(?:    [^\n]*\n)*')
OF_MODULES = f'  File "{inspect.getsourcefile(torch.nn.Module)}"'
OF_STEPS = f"{os.sep}setpoint{os.sep}train{os.sep}"
