"""What changed in `[data]`, for the migrations of the jobs that hold it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from setpoint.config import RUNTIME, Added, Meant, Operation
from setpoint.data.sources.suffixes import TEXT, format_of

# A list of sources is a path such as `data.sources`.
NEW_OF_SOURCES = {"weight": None, "epochs": None, "filter": None}
PACKING: dict[str, Any] = {
    "method": "concatenate",
    "too_long": "split",
    "group_size": 100_000,
    "length_buckets": False,
    "pad_to_multiple_of": None,
}
READ_AS_RECORDS = (
    "files of records are no longer read as plain text; format = 'text' reads them as before"
)


def mixtures(*sources: str) -> Iterator[Operation]:
    """Sources have weights, and `[data]` says how they are mixed, packed and loaded.

    Arguments:
        sources: where the job has lists of sources.
    """
    for path in sources:
        for name, value in NEW_OF_SOURCES.items():
            yield Added(f"{path}.*.{name}", value)
    loader = {"workers": 0, "prefetch": 2, "pin_memory": True, "timeout": None}
    as_training = dict.fromkeys(loader)
    yield Added("data.loader", {**loader, "evaluation": as_training}, role=RUNTIME)
    yield Added("data.seed", None)
    yield Added("data.shuffle_buffer", 10_000)
    prepare = {"folder": None, "above": "256 MiB", "workers": None}
    yield Added("data.prepare", prepare, role=RUNTIME)
    yield Added("data.mixture", {"temperature": 1.0, "by": "sequences"})
    yield Added("data.packing", PACKING)
    yield Added("data.packing.isolate", False, derived=True)
    yield Added("data.phases", [])
    yield Added("data.anneal", None)


def sources_of_many_kinds(*sources: str) -> Iterator[Operation]:
    """Sources read files of records.

    Arguments:
        sources: where the job has lists of sources.
    """
    for path in sources:
        yield Added(f"{path}.*.format", None, of="text")
        yield Added(f"{path}.*.field", "text", of="text")
        yield Added(f"{path}.*.streaming", False, of="text")
        yield Meant(f"{path}.*.paths", READ_AS_RECORDS, _records, of="text")


def _records(paths: Any) -> bool:
    return isinstance(paths, list) and any(format_of(str(path)) != TEXT for path in paths)
