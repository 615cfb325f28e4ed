"""The section `[compile]`: torch.compile of the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from setpoint.config import RUNTIME, Config, Free, Problem, Rule, dead, field, rule

RULES = (
    Rule("setpoint.compile.requirements:cache_problems",
         "Folders that cannot hold compiled code", needs="files"),
    Rule("setpoint.compile.requirements:name_problems",
         "A backend or options that PyTorch lacks", needs="torch"),
)  # fmt: skip


class Compile(
    Config, role=RUNTIME, owner="setpoint.compile.compile_model:compile_model", rules=RULES
):
    """torch.compile of the model; without this section it runs eagerly."""

    scope: Literal["block", "model", "graph"] = "block"
    """Compilation scope. block: each layer, identical ones compiled once; model: the whole
    model; graph: forward, loss and backward of a micro-batch as one graph, without breaks."""

    backend: str = "inductor"
    """Compiler backend (torch.compiler.list_backends()); eager and aot_eager are for debugging and
    give no speed-up."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = None
    """torch.compile mode: what inductor optimizes for; null: inductor's default."""

    fullgraph: bool = False
    """Treat a graph break as an error (fullgraph); false: the code that causes it runs eagerly."""

    dynamic: bool | None = None
    """Dynamic shapes. true: compile once for all sizes; false: compile for each size; null: dynamic
    from the second size on."""

    options: Free = field(factory=Free)
    """Backend options (torch._inductor.config), nested or dotted, such as triton.cudagraphs;
    cannot be combined with mode."""

    cache: Path | None = None
    """Compile cache directory of inductor, reused by later runs; null: PyTorch's default."""

    artifacts: Path | None = None
    """Directory of portable compile artifacts (torch.compiler.save_cache_artifacts), loaded before
    the first step of later runs; one file per job and kind of machine; null: none."""

    optimize_ddp: bool = True
    """Split graphs at DDP's gradient buckets, so that their all-reduce overlaps the backward pass
    (optimize_ddp of torch.compile); false: graphs stay whole."""

    recompile_limit: int = field(default=8, ge=1)
    """Recompile limit: recompilations of a function before it runs eagerly."""

    fallback: Literal["report", "fail"] = "report"
    """Handling of compilation failures. report: run that part eagerly, warn and record an event;
    fail: end the run."""

    @rule
    def _check_options(self) -> Iterator[Problem]:
        if self.options.dump() and self.mode is not None:
            yield Problem(
                "options",
                "contradicts mode, which sets options itself",
                also=("mode",),
                hint="Remove one of the two.",
            )
        if self.mode not in (None, "default") and self.backend != "inductor":
            yield Problem(
                "mode",
                f"is an option of inductor, but the backend is {self.backend}",
                valid=("null",),
                also=("backend",),
            )
        for name in ("cache", "artifacts"):
            if getattr(self, name) is not None and self.backend != "inductor":
                yield Problem(
                    name,
                    f"has no effect: only inductor uses it, but the backend is {self.backend}",
                    valid=("null",),
                    also=("backend",),
                )

    @dead("fullgraph", holds=(True,))
    def _fullgraph_is_dead(self) -> str | None:
        return "scope = graph always compiles one full graph" if self.scope == "graph" else None

    @dead("optimize_ddp", holds=(False,))
    def _optimize_ddp_is_dead(self) -> str | None:
        is_graph = self.scope == "graph"
        return "scope = graph sums gradients after backward, without DDP" if is_graph else None
