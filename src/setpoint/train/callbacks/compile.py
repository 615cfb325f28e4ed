"""Reports what torch.compile does, and what it leaves to Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.compile.watch import News, Watch
from setpoint.config import RunError
from setpoint.track.events import EventLog
from setpoint.track.progress import Progress
from setpoint.train.step.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.compile.config import Compile
    from setpoint.train.build.components import Components
    from setpoint.train.step.loop import Loop, StepResult


class CompileCallback(Callback):
    """Looks after each step, and at the end."""

    phase = Phase.OBSERVE

    def __init__(self, watch: Watch, events: EventLog, progress: Progress, fails: bool) -> None:
        self.watch, self.events, self.progress, self.fails = watch, events, progress, fails
        self.is_first = True

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
    config: Compile, parts: Components, events: EventLog, progress: Progress
) -> CompileCallback:
    """Build the callback of a job that compiles."""
    assert parts.compiled is not None
    watch = Watch(parts.compiled, config.recompile_limit)
    return CompileCallback(watch, events, progress, config.fallback == "fail")
