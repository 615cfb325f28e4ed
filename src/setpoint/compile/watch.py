"""What torch.compile has done since one last looked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from setpoint.compile.apply import Compiled
from setpoint.compile.failure import reason_in

LIMIT = "recompile limit exceeded"
OWN = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class News:
    """What happened since one last looked.

    Arguments:
        recompilations: why graphs among them were compiled anew, in PyTorch's words.
        fallbacks: what ran as it is written although it was to be compiled, and why; each is told
            once.
    """

    graphs: int = 0
    seconds: float = 0.0
    recompilations: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != News()


class Watch:
    """Looks at what PyTorch's compiler keeps count of, and at what ran without it.

    Compiled code that silently gives way to Python is found by the module itself: what was to be
    compiled notes when Python runs it, whatever the reason. Why, the compiler's records tell.
    """

    def __init__(self, compiled: Compiled, limit: int) -> None:
        from torch._dynamo import utils

        self.compiled = compiled
        self.limit = limit
        self._utils: Any = utils
        self._told: set[str] = set()
        self._breaks = len(utils.graph_break_reasons)
        records = utils.get_compilation_metrics()
        self._last: Any = records[-1] if records else None

    def news(self) -> News:
        """Look."""
        records = self._new_records()
        forward = [record for record in records if record.is_forward]
        # Code between two graphs, in which nothing is computed, has records as well.
        made = [record for record in forward if record.graph_op_count and not record.fail_type]
        found = [*self._found_breaks(), *self._found_failures(records)]
        names = self.compiled.take()
        if names:
            found.append(
                f"{_listed(names)} ran as written, {len(names)} of {len(self.compiled.names)} "
                f"compiled modules"
            )
        new = [text for text in dict.fromkeys(found) if text not in self._told]
        self._told.update(new)
        return News(
            graphs=len(made),
            seconds=sum(record.entire_frame_compile_time_s or 0.0 for record in forward),
            recompilations=tuple(
                reason_in(record.recompile_reason) for record in made if record.recompile_reason
            ),
            fallbacks=tuple(new),
        )

    def _new_records(self) -> list[Any]:
        records = list(self._utils.get_compilation_metrics())
        known = [index for index, record in enumerate(records) if record is self._last]
        if records:
            self._last = records[-1]
        return records[known[-1] + 1 :] if known else records

    def _found_breaks(self) -> list[str]:
        reasons = list(self._utils.graph_break_reasons)
        # PyTorch forgets them when it is reset.
        new = reasons[self._breaks :] if len(reasons) >= self._breaks else reasons
        self._breaks = len(reasons)
        return [
            f"a graph ends, and what ends it runs as written: {reason_in(r.reason)}"
            f"{_place(r.user_stack)}"
            for r in new
            if not _is_meant(r)
        ]

    def _found_failures(self, records: list[Any]) -> list[str]:
        found: list[str] = []
        for record in records:
            if record.fail_type is None:
                continue
            reason = record.fail_reason or record.fail_type
            where = f" of {record.co_name}" if record.co_name else ""
            if LIMIT in reason:
                why = reason_in(record.recompile_reason or "")
                found.append(f"compile.recompile_limit = {self.limit} is reached; last: {why}")
            else:
                found.append(f"the code{where} was not compiled: {reason_in(reason)}")
        return found


def _is_meant(reason: Any) -> bool:
    """Whether Setpoint itself keeps something out of what is compiled, such as the chunked loss."""
    stack = reason.user_stack
    own = bool(stack) and Path(stack[-1].filename).is_relative_to(OWN)
    return own and "torch.compiler.disable" in reason.reason


def _place(stack: list[FrameSummary]) -> str:
    return f" ({stack[-1].filename}:{stack[-1].lineno})" if stack else ""


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others"
