"""Options of a backend, as torch.compile takes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from setpoint.config import Free


def flatten(options: Free, known: Collection[str]) -> dict[str, Any]:
    """Write nested options by dotted names, as inductor has them: `triton.cudagraphs`.

    Arguments:
        known: names of options; the value of one is left as it is, even if it is a mapping.
    """
    return dict(_flat(options.dump(), known, ""))


def _flat(
    options: Mapping[str, Any], known: Collection[str], before: str
) -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        name = before + key
        if isinstance(value, Mapping) and name not in known:
            yield from _flat(value, known, f"{name}.")
        else:
            yield name, value


def inductor_options() -> dict[str, Any]:
    """The options of inductor."""
    from torch._inductor import config

    copy: Any = config.get_config_copy
    return copy()
