"""What changed in `[data]`, for the migrations of the jobs that hold it."""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config import Added, Operation

# A list of sources is a path such as `data.sources`.
NEW_OF_SOURCES = {"weight": None, "epochs": None}


def mixtures(*sources: str) -> Iterator[Operation]:
    """Sources have weights, and `[data]` says how they are mixed.

    Arguments:
        sources: where the job has lists of sources.
    """
    for path in sources:
        for name, value in NEW_OF_SOURCES.items():
            yield Added(f"{path}.*.{name}", value)
    yield Added("data.mixture", {"temperature": 1.0})
    yield Added("data.phases", [])
    yield Added("data.anneal", None)
