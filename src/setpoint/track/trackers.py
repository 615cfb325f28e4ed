"""All trackers of a run as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from setpoint.config import SetpointError

from .background import Background
from .tracker import RunFacts, Tracker

if TYPE_CHECKING:
    from .config import TrackerConfig
    from .run_directory import RunDirectory

JSONL = "jsonl"
OFFSET = "metrics_offset"
"""What a checkpoint calls the length of `metrics.jsonl`; the file comes from the first versions."""
OTHERS = "trackers"
"""What it calls the states of other trackers."""


class _Rows(Tracker):
    """An object of a user's that takes rows."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        if step:
            self.rewind(step, state, note)

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        if hasattr(self.inner, "rewind"):
            self.inner.rewind(step)

    def write(self, row: dict[str, Any]) -> None:
        self.inner.write(row)

    def close(self) -> None:
        if hasattr(self.inner, "close"):
            self.inner.close()


def _driven(name: str, built: Any) -> Tracker:
    """A tracker as it is driven: in a thread of its own, unless checkpoints count on it."""
    if not isinstance(built, Tracker):
        return Background(name, _Rows(built))
    if isinstance(built, Background) or _is_exact(type(built)):
        return built
    return Background(name, built)


def _is_exact(kind: type) -> bool:
    """Whether a tracker says that it is driven between steps, or has a state or rows to flush."""
    said = getattr(kind, "synchronous", None)
    if said is not None:
        return bool(said)
    return any(
        getattr(kind, name) is not getattr(Tracker, name) for name in ("state_dict", "flush")
    )


class Trackers:
    """All trackers of a run; states of those that it does not have now are kept.

    A session without `metrics.jsonl` leaves its rows as they are, so that a later one can go on
    with the file.
    """

    def __init__(self) -> None:
        self.built: dict[str, Tracker] = {}
        self.states: dict[str, dict[str, Any]] = {JSONL: {"offset": 0}}

    def build(self, sections: Iterable[TrackerConfig], run: RunDirectory) -> None:
        """Build the trackers; nothing of the run is written.

        Raises:
            SetpointError: one has no method `write`, or what it needs is not there.
        """
        for section in sections:
            tag = str(type(section).__setpoint__.tag)
            same = sum(name.partition(".")[0] == tag for name in self.built)
            name = f"{tag}.{same}" if same else tag
            tracker = section.build(run_directory=run)
            if not callable(getattr(tracker, "write", None)):
                kind = type(tracker).__name__
                raise SetpointError(f"tracking.trackers: {kind} (type = {tag}) has no write(row)")
            self.built[name] = _driven(name, tracker)

    def open(self, facts: RunFacts, step: int, note: Callable[[str], None]) -> None:
        """Open each tracker at a step; `load_state_dict` comes before."""
        for name, tracker in self.built.items():
            tracker.describe(facts)
            tracker.open(step, self.states.get(name, {}), note)

    def rewind(self, step: int, note: Callable[[str], None]) -> None:
        """Bring each to a checkpoint whose states were loaded before."""
        for name, tracker in self.built.items():
            tracker.rewind(step, self.states.get(name, {}), note)

    def write(self, row: dict[str, Any]) -> None:
        """Give a row to each."""
        for tracker in self.built.values():
            tracker.write(row)

    def write_beside(self, row: dict[str, Any]) -> None:
        """Give a row to each but `metrics.jsonl`, which holds what a resume writes again."""
        for name, tracker in self.built.items():
            if name != JSONL:
                tracker.write(row)

    def flush(self) -> None:
        """Let each bring its rows where they outlast the process."""
        for tracker in self.built.values():
            tracker.flush()

    def state_dict(self) -> dict[str, Any]:
        """The states of all, as a checkpoint holds them."""
        now = {name: tracker.state_dict() for name, tracker in self.built.items()}
        others = {name: state for name, state in {**self.states, **now}.items() if state}
        offset = others.pop(JSONL)["offset"]
        return {OFFSET: offset, **({OTHERS: others} if others else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the states from a checkpoint; trackers get them when they are opened."""
        self.states = {JSONL: {"offset": state.get(OFFSET, 0)}, **state.get(OTHERS, {})}

    def close(self) -> None:
        """Close each, whatever the others raise."""
        with ExitStack() as ending:
            for tracker in self.built.values():
                ending.callback(tracker.close)
