"""Reports what torch.compile does, and what it leaves to Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.compile.artifacts import Artifacts
from setpoint.compile.watch import News, Watch
from setpoint.config import RunError, fingerprint
from setpoint.track.events import EventLog
from setpoint.track.progress import Progress
from setpoint.train.step.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.step.loop import Loop, StepResult


class CompileCallback(Callback):
    """Looks after each step, and at the end.

    Arguments:
        artifacts: loaded before the first step; None: there are none.
        writes: whether this rank writes them, after each step that compiled anything.
    """

    phase = Phase.OBSERVE

    def __init__(
        self,
        watch: Watch,
        events: EventLog,
        progress: Progress,
        fails: bool,
        artifacts: Artifacts | None = None,
        writes: bool = True,
    ) -> None:
        self.watch, self.events, self.progress, self.fails = watch, events, progress, fails
        self.artifacts, self.writes = artifacts, writes
        self.is_first = True

    def start(self, loop: Loop) -> None:
        """Begin with what earlier runs compiled."""
        if self.artifacts is None:
            return
        count = self.artifacts.load()
        if count is None:
            self.progress.note(f"compile: {self.artifacts.path} is damaged, and is written anew")
        elif count:
            self.progress.note(f"compile: {count} artifacts loaded from {self.artifacts.path}")

    def save(self) -> None:
        """Write what was compiled for later runs; the run goes on where it cannot be written."""
        if self.artifacts is None or not self.writes:
            return
        try:
            self.artifacts.save()
        except OSError as error:
            path, why = self.artifacts.path, error.strerror
            self.progress.note(f"compile: the artifacts {path} cannot be written: {why}")

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report what the step, and an evaluation before it, had compiled."""
        seconds = loop.position.seconds - loop.before.seconds if self.is_first else None
        self.is_first = False
        self.tell(self.watch.news(), loop.position.step, seconds)

    def finish(self, loop: Loop) -> None:
        """Report what the last evaluation had compiled."""
        self.tell(self.watch.news(), loop.position.step)

    def tell(self, news: News, step: int, first: float | None = None) -> None:
        """Record, show, and end the run if that is wanted.

        Arguments:
            first: seconds that the first step of this session took; None for later ones.

        Raises:
            RunError: something ran eagerly, and that ends the run.
        """
        if not news:
            return
        details = {} if first is None else {"first_step_seconds": first}
        self.events.write(
            "compile",
            step=step,
            graphs=news.graphs,
            seconds=news.seconds,
            recompilations=list(news.recompilations),
            fallbacks=list(news.fallbacks),
            **details,
        )
        if news.graphs:
            self.save()
            plural = "" if news.graphs == 1 else "s"
            anew = f", {len(news.recompilations)} of them anew" if news.recompilations else ""
            self.progress.note(
                f"compile: {news.graphs} graph{plural} in {news.seconds:.1f} s{anew} (step {step})"
            )
        if self.fails and news.fallbacks:
            what = "\n".join(news.fallbacks)
            raise RunError(f"step {step}: compile.fallback = fail: {what}")
        for text in news.fallbacks:
            self.progress.note(f"compile: {text} (step {step})")


def watch_compiler(
    job: Job, parts: Components, events: EventLog, progress: Progress
) -> CompileCallback:
    """Build the callback of a job that compiles."""
    config = job.compile
    assert config is not None and parts.compiled is not None
    watch = Watch(parts.compiled, config.recompile_limit)
    artifacts = None
    if config.artifacts is not None:
        artifacts = Artifacts(config.artifacts, fingerprint(job)[:12], parts.device)
    writes = parts.world.is_main
    return CompileCallback(watch, events, progress, config.fallback == "fail", artifacts, writes)
