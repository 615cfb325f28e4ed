"""The section `[compile]`: torch.compile of the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from setpoint.config import RUNTIME, Config, Free, Problem, Rule, check, field

RULES = (
    Rule("setpoint.compile.folder:cache_problems", ("cache",),
         "Whether compiled code can be kept in the folder", needs="files"),
    Rule("setpoint.compile.checks:name_problems", ("backend", "options"),
         "Whether PyTorch has the backend and its options", needs="torch"),
)  # fmt: skip


class Compile(Config, role=RUNTIME, owner="setpoint.compile.apply:compile_model", rules=RULES):
    """torch.compile of the model; without the section it runs eagerly."""

    scope: Literal["block", "model"] = field(default="block")
    """Compilation scope: each layer, compiled once for all that are alike, or the whole model as
    one."""

    backend: str = field(default="inductor", also_called=("torch_compile_backend",))
    """Compiler backend, by its name in torch.compiler.list_backends(); eager and aot_eager, which
    make no faster code, show what is captured."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = field(default=None, also_called=("torch_compile_mode",))
    """torch.compile mode: what inductor optimizes for; null: its default."""

    fullgraph: bool = False
    """fullgraph: a graph break is an error, in place of running that part eagerly."""

    dynamic: bool | None = None
    """Dynamic shapes: compile for all sizes, true, or for each size anew, false; null: for all from
    the second size on."""

    options: Free = field(factory=Free)
    """Backend options by its own names, nested or dotted: triton.cudagraphs; instead of mode."""

    cache: Path | None = field(
        default=None, also_called=("precompile_artifact_dir", "cache_dir", "inductor_cache_dir")
    )
    """Compile cache: folder that inductor keeps compiled code in, for the next run; null: PyTorch's
    default."""

    recompile_limit: int = field(default=8, ge=1, also_called=("cache_size_limit",))
    """Recompile limit: how often a function may be recompiled before it runs eagerly."""

    fallback: Literal["report", "fail"] = "report"
    """Fallback to eager: report warns and records an event, fail ends the run with an error."""

    @check
    def _check_options(self) -> Iterator[Problem]:
        if self.options.dump() and self.mode is not None:
            yield Problem(
                "options",
                "contradicts mode, which is a set of options",
                also=("mode",),
                hint="Remove one of the two.",
            )
        if self.mode is not None and self.backend != "inductor":
            yield Problem(
                "mode",
                f"is inductor's, and the backend is {self.backend}",
                valid=("null",),
                also=("backend",),
            )
        if self.cache is not None and self.backend != "inductor":
            yield Problem(
                "cache",
                f"has no effect: the code in it is inductor's, and the backend is {self.backend}",
                valid=("null",),
                also=("backend",),
            )
