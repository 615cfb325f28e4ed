"""Messages of jobs that a check across sections refuses."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from setpoint.config import ConfigError

from ..small import small_job


def refusal(folder: Path, *flags: str, without: Collection[str] = ()) -> str:
    """The message of a small job with these flags, which must be refused; without its folder."""
    with pytest.raises(ConfigError) as caught:
        small_job(folder, *flags, without=tuple(without))
    return str(caught.value).replace(str(folder), "")


def refusals(folder: Path, cases: Mapping[str, tuple[str, ...]]) -> str:
    """The messages of several jobs, each with its name; see `refusal`.

    A job with a global batch size loses its own micro-batch and accumulation.
    """
    texts: list[str] = []
    for name, flags in cases.items():
        sized = any(flag.startswith("batch.global_size=") for flag in flags)
        without = ("micro_size", "accumulation") if sized else ()
        texts.append(f"{name}:\n{refusal(folder, *flags, without=without)}")
    return "\n\n".join(texts)
