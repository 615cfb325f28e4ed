"""Warm start: a new run from the full state of a checkpoint, `checkpoint.load`.

Names alone determine which state is loaded and which is omitted, before anything changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.config import ENTRIES, FETCH, OF_OPTIMIZER
from setpoint.checkpoint.folder import directory_name
from setpoint.checkpoint.loading import LoadedCheckpoint, agree, load_directory
from setpoint.checkpoint.manifest import MANIFEST
from setpoint.checkpoint.places import CHECKPOINTS, checkpoint_to_load, split_url, verify_record
from setpoint.config import IDENTITY, RunError, SetpointError, nearest
from setpoint.config.record.record import Difference, recorded_differences
from setpoint.files.atomic import digest_file
from setpoint.hub.fetch import is_url
from setpoint.track.jsonl import since_restart
from setpoint.train.contract import moved_rows, other_rows, plain, recorded_job, refuse_resharding
from setpoint.train.evaluation.scores import TRAINING
from setpoint.train.position import Position, is_over
from setpoint.train.run_state import OF_FILES, WEIGHTS_ONLY, DataState, States, restore

if TYPE_CHECKING:
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.run_state import FrozenParameters

SHOWN = 6
EXCLUDED = "excluded"
NOT_HERE = "excluded, not in the model"
BY_PARAMETER = ("model", "master", TRAINING)
"""Stems whose tensors are named by parameters."""
OF_THE_PLACE = ("name", "experiment", "workspace", "checkpoint.load", "checkpoint.exclude")
"""Fields in which a new run always differs from its source."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checkpoint from which a run started, and the state loaded from it.

    Arguments:
        source: path of the checkpoint, or its URL if that was given.
        digest: BLAKE3 of the manifest, which contains the digest of every file.
        weights, parameters: numbers of loaded weights, and of parameters with loaded optimizer
            state.
        left: weights that were not loaded, with the reason.
        anew: parameters whose optimizer state is new, with the reason.
        dropped: parameters whose saved optimizer state is unused.
        entries: other parts of the state that were omitted.
        differences: differences between the configurations; the left side is the checkpoint's.
    """

    path: Path
    source: str
    step: int
    digest: str
    weights: int
    parameters: int
    left: dict[str, str]
    anew: dict[str, str]
    dropped: list[str]
    entries: tuple[str, ...]
    differences: list[Difference]

    def lines(self) -> Iterator[str]:
        """Notes for people."""
        known = sum(reason != NOT_HERE for reason in self.left.values())
        taken = f"{self.weights} of {self.weights + known} weights"
        if "optimizer" not in self.entries:
            count = self.parameters + len(self.anew)
            taken += f", optimizer state of {self.parameters} of {count} parameters"
        yield f"starting from {self.source} at step {self.step}: loaded {taken}"
        if self.entries:
            yield f"not loaded: {', '.join(self.entries)} (excluded)"
        if self.left:
            yield f"weights not loaded: {_listed(self.left)}"
        if self.anew and "optimizer" not in self.entries:
            yield f"optimizer state reset for: {_listed(self.anew)}"
        if self.dropped:
            yield f"optimizer state not used: {_listed(dict.fromkeys(self.dropped, 'frozen now'))}"
        learned = [item for item in self.differences if item.role is IDENTITY]
        if learned:
            shown = [f"{d.path}: {plain(d.left)} -> {plain(d.right)}" for d in learned]
            more = f", and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
            yield f"differs from what it starts from: {', '.join(shown[:SHOWN])}{more}"

    def to_json(self) -> dict[str, Any]:
        """Details of the event `load`."""
        return {
            "step": self.step,
            "checkpoint": self.source if is_url(self.source) else str(self.path.resolve()),
            "manifest": self.digest,
            "weights": self.weights,
            "parameters": self.parameters,
            "not_loaded": {"entries": list(self.entries), "weights": self.left},
            "optimizer_anew": self.anew,
            "optimizer_not_used": self.dropped,
            "differences": [item.to_json() for item in self.differences],
        }


def warm_start(
    job: Job,
    components: Components,
    states: States,
    frozen: FrozenParameters,
    into: Path | None = None,
) -> tuple[Loaded, Position]:
    """Restore a new run from the checkpoint of `checkpoint.load`.

    Every rank must call it.

    Arguments:
        frozen: adds frozen parameters that the checkpoint omits.
        into: a shared folder for downloads; None: URLs are not read.

    Raises:
        SetpointError: there is no checkpoint, it does not suit the job, or nothing is left to
            train.
        DamagedCheckpoint: its content differs from what was saved.
    """
    assert job.checkpoint.load is not None
    saved: LoadedCheckpoint | None = None
    selected: tuple[LoadedCheckpoint, Loaded] | None = None
    refused: SetpointError | None = None
    trained = _trained(components)
    name = job.checkpoint.load
    if is_url(name) and into is not None:
        place = into
        try:
            name = str(components.world.on_main(lambda: FETCH.load()(name, place)))
        except SetpointError as error:
            raise _with_path(job, error) from error
    try:
        saved = load_directory(checkpoint_to_load(name), world=components.world)
    except SetpointError as error:
        refused = _with_path(job, error)
    agree(components.world, refused)
    assert saved is not None
    try:
        saved = frozen.completed(saved)
    except SetpointError as error:
        raise _with_path(job, error) from error
    try:
        selected = _select(job, components, trained, saved)
    except SetpointError as error:
        refused = _with_path(job, error)
    agree(components.world, refused)
    assert selected is not None
    checkpoint, loaded = selected
    taken = {name: state for name, state in states.items() if name not in OF_FILES}
    del taken["data"]
    try:
        DataState(job, components, other_data=False).restore(checkpoint)
    except SetpointError as error:
        text = f"{error}\nTo begin at the start of the data: --checkpoint.exclude.append loader"
        raise _with_path(job, SetpointError(text)) from error
    try:
        position = restore(job, taken, checkpoint)
    except SetpointError as error:
        raise _with_path(job, error) from error
    if is_over(job.duration, position):
        raise SetpointError(
            f"checkpoint.load = {job.checkpoint.load}: it is at step {position.step}, where "
            f"duration = {job.duration} has ended, so there is nothing left to train.\nValid: a "
            f"longer duration, or add position to checkpoint.exclude, which starts at step 0"
        )
    return loaded, position


def describe_refrozen(components: Components, checkpoint: LoadedCheckpoint) -> Iterator[str]:
    """Notes about the optimizer state of parameters whose freezing changed; a collective."""
    trained = dict.fromkeys(_trained(components), "frozen before")
    groups = checkpoint.state["optimizer"]["groups"]
    saved = {name: "frozen now" for group in groups for name in group["parameters"]}
    if anew := {name: why for name, why in trained.items() if name not in saved}:
        yield f"optimizer state reset for: {_listed(anew)}"
    if dropped := {name: why for name, why in saved.items() if name not in trained}:
        yield f"optimizer state not used: {_listed(dropped)}"


def refuse_changed(events: Path, loaded: Loaded) -> None:
    """Refuse to start again from a checkpoint other than the one used the first time.

    Arguments:
        events: events of the run, which has no checkpoint of its own yet.

    Raises:
        SetpointError: `checkpoint.load` now names another checkpoint.
    """
    first = next((row for row in since_restart(events) if row.get("event") == "load"), None)
    if first is not None and first.get("manifest") != loaded.digest:
        raise SetpointError(
            f"the run started from {first.get('checkpoint')}, but checkpoint.load now resolves to "
            f"{loaded.source}, which is another checkpoint.\nValid: a path to exactly that "
            f"checkpoint (.../checkpoints/{directory_name(int(first.get('step', 0)))}) in a "
            f"separate run"
        )


def _with_path(job: Job, error: SetpointError) -> SetpointError:
    text = f"checkpoint.load = {job.checkpoint.load}: {error}"
    return RunError(text) if isinstance(error, RunError) else SetpointError(text)


def _trained(components: Components) -> list[str]:
    """Names of all trained parameters, including those on other ranks."""
    names = [name for name, weight in components.weights.named_parameters() if weight.requires_grad]
    if components.pipeline is None:
        return names
    return list(
        dict.fromkeys(
            name for rank_names in components.pipeline.all_of(names) for name in rank_names
        )
    )


def _select(
    job: Job, components: Components, trained: list[str], saved: LoadedCheckpoint
) -> tuple[LoadedCheckpoint, Loaded]:
    """Remove what the job excludes from a checkpoint, without communication."""
    path = saved.path
    verify_record(path)
    differences = [
        item for item in recorded_differences(str(path), job) if item.path not in OF_THE_PLACE
    ]
    entries = tuple(entry for entry in ENTRIES if entry in job.checkpoint.exclude)
    if saved.state.get(WEIGHTS_ONLY) and "optimizer" not in entries:
        raise SetpointError(
            f"{path} contains only the weights (checkpoint.last = weights).\nValid: add optimizer "
            f"to checkpoint.exclude, which starts with new state"
        )
    kind = type(components.optimizer).__name__
    if "optimizer" not in entries and saved.state["optimizer"]["type"] != kind:
        raise SetpointError(
            f"it has the state of {saved.state['optimizer']['type']}, but the optimizer is "
            f"{kind}.\nTo begin with a new state: --checkpoint.exclude.append optimizer"
        )
    if job.checkpoint.resharding == "refuse":
        refuse_resharding(str(path), job)
    if "loader" not in entries and "loader" in saved.state:
        _refuse_rows(job, path, differences)
    left = _excluded_weights(job, components, saved)
    state: dict[str, Any] = {k: v for k, v in saved.state.items() if k not in entries}
    state.pop(WEIGHTS_ONLY, None)
    if "position" in entries:
        state["position"] = {}
    anew, dropped, parameters = _optimizer(job, trained, state, left)
    tensors = {
        stem: {name: tensor for name, tensor in named.items() if name not in left}
        if stem in BY_PARAMETER
        else named
        for stem, named in saved.tensors.items()
    }
    assert job.checkpoint.load is not None
    source, given = str(path), job.checkpoint.load
    if is_url(given):
        source = f"{split_url(given)[0]}/{CHECKPOINTS}/{path.name}"
    loaded = Loaded(
        path,
        source,
        saved.step,
        digest_file(path / MANIFEST).digest,
        len(tensors["model"]),
        parameters,
        left,
        anew,
        dropped,
        entries,
        differences,
    )
    return replace(saved, tensors=tensors, state=state, partial=True), loaded


def _refuse_rows(job: Job, folder: Path, differences: list[Difference]) -> None:
    identity = [item for item in differences if item.role is IDENTITY]
    moved = moved_rows(recorded_job(str(folder)), job, identity) if identity else []
    if moved:
        raise SetpointError(
            f"it is a checkpoint {other_rows(moved)}.\nValid: {', '.join(moved)} as there, or "
            f"add loader to checkpoint.exclude, which starts at the beginning of the data"
        )


def _excluded_weights(job: Job, components: Components, saved: LoadedCheckpoint) -> dict[str, str]:
    """The excluded weights, each with the reason.

    Raises:
        SetpointError: a pattern matches no name, or weights that are not excluded do not match the
            model.
    """
    saved_weights, shapes = saved.tensors["model"], components.shapes
    elsewhere = frozenset() if components.pipeline is None else components.pipeline.elsewhere
    names = list(dict.fromkeys([*shapes, *saved_weights, *sorted(elsewhere)]))
    left: dict[str, str] = {}
    misfits: list[str] = []
    excluded = _excluded(job, names, of_optimizer=False)
    for name in names:
        problem, reason = "", EXCLUDED
        if name not in saved_weights:
            problem = reason = "not in the checkpoint"
        elif name not in shapes and name not in elsewhere:
            problem = reason = "not in the model"
        elif name in shapes and saved_weights[name].shape != shapes[name]:
            sizes = (tuple(size) for size in (saved_weights[name].shape, shapes[name]))
            problem = reason = "{} there and {} in the model".format(*sizes)
        if name in excluded:
            left[name] = f"{EXCLUDED}, {problem}" if problem else reason
        elif problem:
            misfits.append(f"{name} is {problem}")
    if misfits:
        shown = "; ".join(misfits[:2])
        more = f"; and {len(misfits) - 2} more" if len(misfits) > 2 else ""
        raise SetpointError(
            f"{saved.path} does not fit the model: {shown}{more}.\nValid: the model of the "
            f"checkpoint, or patterns in checkpoint.exclude for parts that start fresh"
        )
    return left


def _optimizer(
    job: Job, names: list[str], state: dict[str, Any], left: Mapping[str, str]
) -> tuple[dict[str, str], list[str], int]:
    """Remove excluded parameters from the optimizer state.

    Arguments:
        names: the trained parameters.

    Returns:
        the parameters with new state, each with the reason; the parameters with unused state; and
        the number of others.
    """
    entry = state.get("optimizer")
    if entry is None:
        return dict.fromkeys(names, EXCLUDED), [], 0
    trained = set(names)
    saved = {name for group in entry["groups"] for name in group["parameters"]}
    excluded = {name for name, reason in left.items() if reason != NOT_HERE}
    excluded |= _excluded(job, [*names, *sorted(saved)], of_optimizer=True)
    kept = {name: values for name, values in entry["parameters"].items() if name not in excluded}
    state["optimizer"] = {**entry, "parameters": kept}
    anew = {
        name: EXCLUDED if name in excluded else "not trained there"
        for name in names
        if name in excluded or name not in saved
    }
    dropped = sorted(name for name in saved if name not in trained and name not in left)
    return anew, dropped, len(names) - len(anew)


def _excluded(job: Job, names: Iterable[str], of_optimizer: bool) -> set[str]:
    """Names that match patterns of `checkpoint.exclude`.

    Arguments:
        of_optimizer: whether to use the patterns for optimizer state; otherwise, the others.

    Raises:
        SetpointError: a pattern matches no name.
    """
    names = list(dict.fromkeys(names))
    excluded: set[str] = set()
    for index, entry in enumerate(job.checkpoint.exclude):
        if entry in ENTRIES or entry.startswith(OF_OPTIMIZER) != of_optimizer:
            continue
        pattern = entry.removeprefix(OF_OPTIMIZER)
        matches = [name for name in names if re.search(pattern, name)]
        if not matches:
            known = [*ENTRIES, *names, *(part for name in names for part in name.split("."))]
            close = nearest(pattern, dict.fromkeys(known), 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise SetpointError(
                f"checkpoint.exclude.{index} = {entry!r} matches none of the {len(names)} names "
                f"of weights.{hint}\nValid: {', '.join(ENTRIES)}, or a regular expression that "
                f"matches a name such as {', '.join(names[:3])}"
            )
        excluded |= set(matches)
    return excluded


def _listed(reasons: Mapping[str, str]) -> str:
    shown = [f"{name} ({reason})" for name, reason in list(reasons.items())[:SHOWN]]
    more = f", and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return ", ".join(shown) + more
