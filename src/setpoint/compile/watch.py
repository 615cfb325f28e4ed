"""Reports of torch.compile: graphs, recompilations, eager fallbacks and explained errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from setpoint.compile.compile_model import Compiled
from setpoint.compile.internals import compilations, graph_breaks
from setpoint.config import RunError

LIMIT = "recompile limit exceeded"
OWN = Path(__file__).parents[1]
# Of the compiler's errors.
ERRORS = ("torch._dynamo.", "torch._inductor.")


@dataclass(frozen=True, slots=True)
class News:
    """Events since the last call of `Watch.news`.

    Arguments:
        recompilations: reasons for recompiled graphs, as stated by PyTorch.
        fallbacks: parts to be compiled that ran eagerly, with reasons; each is reported once.
    """

    graphs: int = 0
    seconds: float = 0.0
    recompilations: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != News()


class Watch:
    """Watches the counters of PyTorch's compiler and eager fallbacks.

    Compiled code that silently falls back to Python is detected by the module itself: code to be
    compiled records when Python runs it, whatever the reason. The reason is in the compiler's
    records.
    """

    def __init__(self, compiled: Compiled, limit: int) -> None:
        self.compiled = compiled
        self.limit = limit
        self._reported: set[str] = set()
        self._breaks = len(graph_breaks())
        records = compilations()
        self._last: Any = records[-1] if records else None

    def news(self) -> News:
        """Collect the events since the last call."""
        records = self._new_records()
        forward = [record for record in records if record.is_forward]
        # Code without computation between two graphs has records as well.
        compiled = [record for record in forward if record.graph_op_count and not record.fail_type]
        messages = [*self._found_breaks(), *self._found_failures(records)]
        names = self.compiled.take()
        if names:
            messages.append(
                f"{_listed(names)} ran eagerly, {len(names)} of {len(self.compiled.names)} "
                f"compiled modules"
            )
        new = [text for text in dict.fromkeys(messages) if text not in self._reported]
        self._reported.update(new)
        return News(
            graphs=len(compiled),
            seconds=sum(record.entire_frame_compile_time_s or 0.0 for record in forward),
            recompilations=tuple(
                reason_in(record.recompile_reason) for record in compiled if record.recompile_reason
            ),
            fallbacks=tuple(new),
        )

    def _new_records(self) -> Sequence[Any]:
        records = compilations()
        known = [index for index, record in enumerate(records) if record is self._last]
        if records:
            self._last = records[-1]
        return records[known[-1] + 1 :] if known else records

    def _found_breaks(self) -> list[str]:
        reasons = graph_breaks()
        # PyTorch clears them on a reset.
        new = reasons[self._breaks :] if len(reasons) >= self._breaks else reasons
        self._breaks = len(reasons)
        return [
            f"graph break; the code that causes it runs eagerly: {reason_in(r.reason)}"
            f"{_place(r.user_stack)}"
            for r in new
            if not _is_meant(r)
        ]

    def _found_failures(self, records: Sequence[Any]) -> list[str]:
        messages: list[str] = []
        for record in records:
            if record.fail_type is None:
                continue
            reason = record.fail_reason or record.fail_type
            where = f" of {record.co_name}" if record.co_name else ""
            if LIMIT in reason:
                why = reason_in(record.recompile_reason or "")
                messages.append(f"compile.recompile_limit = {self.limit} is reached; last: {why}")
            else:
                messages.append(f"the code{where} was not compiled: {reason_in(reason)}")
        return messages


def _is_meant(reason: Any) -> bool:
    """True if a graph break is intended: before code kept out of graphs, and at DDP buckets."""
    if reason.reason.startswith("DDPOptimizer"):  # compile.optimize_ddp
        return True
    stack = reason.user_stack
    is_ours = bool(stack) and Path(stack[-1].filename).is_relative_to(OWN)
    return is_ours and "torch.compiler.disable" in reason.reason


def _place(stack: list[FrameSummary]) -> str:
    return f" ({stack[-1].filename}:{stack[-1].lineno})" if stack else ""


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others"


def explain(error: Exception) -> RunError | None:
    """Explain a compiler error.

    Returns:
        an error with advice; None for other errors.
    """
    # By name: the modules may be missing if nothing has been compiled.
    if not any(cls.__module__.startswith(ERRORS) for cls in type(error).__mro__):
        return None
    return RunError(
        f"torch.compile: {reason_in(str(error))}\n"
        f"Change that code, or set compile = null. If compile.fullgraph is true, set it to false "
        f"to run such code eagerly; compile.backend = aot_eager shows whether the backend is the "
        f"cause"
    )


def reason_in(text: str) -> str:
    """Extract the reason from an error message of PyTorch's compiler.

    Arguments:
        text: paragraphs with explanations, hints, a place in the code and advice on debugging.

    Returns:
        one line, without memory addresses; followed by the last code position.
    """
    head = [line.strip() for line in text.strip().split("\n\n")[0].splitlines()]
    lines = [line.removeprefix("Explanation: ") for line in head if not line.startswith("Hint:")]
    # After a number sign PyTorch quotes the source, which the position gives as well.
    words = " ".join(" ".join(lines).partition(" # ")[0].split())
    words = re.sub(r" at 0x[0-9a-f]+", "", words)
    places = re.findall(r'File "(.+?)", line (\d+)', text)
    return f"{words} ({places[-1][0]}:{places[-1][1]})" if places else words
