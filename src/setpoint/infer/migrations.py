"""What changed between the schemas of an inference job; see `setpoint.config.migration`."""

from __future__ import annotations

from collections.abc import Iterable

from setpoint.config import RUNTIME, Added, Operation, migration
from setpoint.data.migrations import mixtures, sources_of_many_kinds


@migration(to=2)
def passes() -> Iterable[Operation]:
    """Passes through the model are profiled, and garbage is collected at a pace."""
    return [
        Added("profiling", None, role=RUNTIME),
        Added("resilience", {"gc": None}, role=RUNTIME),
    ]


@migration(to=3)
def validation() -> Iterable[Operation]:
    """Held-out text may have sources of its own."""
    return [Added("data.validation", [])]


@migration(to=4)
def mixed_data() -> Iterable[Operation]:
    """Sources are mixed by weight, and of more kinds."""
    sources = ("data.sources", "data.validation", "evaluation.sets.*.sources")
    return [*sources_of_many_kinds(*sources), *mixtures(*sources)]


@migration(to=5)
def adapters() -> Iterable[Operation]:
    """Runs may have adapters."""
    return [
        Added("adapter", None),
        Added("model.adapters", [], of="transformer"),
        Added("weights.merge_adapter", True),
        Added("export.adapter", False),
    ]
