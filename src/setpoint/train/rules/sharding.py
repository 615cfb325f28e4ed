"""Cross-section checks of `[parallel.sharding]`: its patterns on the names of modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem, nearest
from setpoint.model.config import Transformer
from setpoint.model.parameters import parameters_of
from setpoint.model.parts import units_around_layers
from setpoint.model.size import unknown_size
from setpoint.train.build.parameters import described, is_listed

if TYPE_CHECKING:
    from setpoint.train.config import Job


def replicated_problems(job: Job) -> Iterator[Problem]:
    """Find patterns of parameters left whole that match none, or weights that ranks divide."""
    parallel = job.parallel
    if not is_listed(job.model) or job.adapter is not None or not parallel.uses_fsdp:
        return
    names = [each.name for each in described(job, 1)[0]]
    for index, pattern in enumerate(parallel.sharding.replicated):
        path = f"parallel.sharding.replicated.{index}"
        found = [name for name in names if re.search(pattern, name)]
        if not found:
            yield Problem(path, "matches no parameter", valid=nearest(pattern, names) or names[:3])
        experts = [name for name in found if "experts." in name]
        if experts and parallel.divides_experts:
            yield Problem(
                path,
                f"matches {experts[0]}, of experts that the ranks divide",
                also=("parallel.expert",),
            )


def unit_problems(job: Job) -> Iterator[Problem]:
    """Find patterns that match no module of a transformer, or one that cannot be a unit."""
    model, patterns = job.model, job.parallel.sharding.units
    if not isinstance(model, Transformer) or unknown_size(model) or not job.parallel.uses_fsdp:
        return
    names: dict[str, None] = {}
    for parameter in parameters_of(model, 1):
        parts = parameter.name.split(".")[:-1]
        names.update(dict.fromkeys(".".join(parts[:n]) for n in range(1, len(parts) + 1)))
    units = {name for unit in units_around_layers(model) for name in unit}
    units |= {name for name in names if re.fullmatch(r"layers(\.\d+)?", name)}
    modules = [name for name in names if name not in units]
    for index, pattern in enumerate(patterns):
        path = f"parallel.sharding.units.{index}"
        found = [name for name in modules if re.fullmatch(pattern, name)]
        if not found:
            unit = next((name for name in names if re.fullmatch(pattern, name)), None)
            what = "no module" if unit is None else f"{unit}, which is a unit already"
            yield Problem(
                path,
                f"matches {what}",
                valid=[re.escape(name) for name in modules[:5]],
                hint="A pattern matches whole names: '.*feed_forward' those that end so.",
            )
        for name in found:
            if reason := _why_no_unit(model, name):
                yield Problem(path, f"matches {name}, {reason}")
                break


def _why_no_unit(model: Transformer, name: str) -> str:
    """Say why a module's weights cannot be gathered when it is called; empty if they can."""
    if name == "embedding" and model.tie_embeddings:
        return "with whose weights the loss multiplies by itself (model.tie_embeddings)"
    if ".experts." in name or (".experts" in name and model.moe and not model.moe.packed):
        return "which is computed on ranks whose tokens choose it, and all ranks must gather it"
    return ""
