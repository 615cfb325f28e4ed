"""Checks of `[checkpoint.remote]`, in a module of their own, which few jobs need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.hub.urls import is_url, protocol_problem

if TYPE_CHECKING:
    from setpoint.train.config import Job

URL = "checkpoint.remote.url"


def url_problems(job: Job) -> Iterator[Problem]:
    """Find what is no URL."""
    section = job.checkpoint.remote
    assert section is not None
    if not is_url(section.url):
        valid = ("s3://bucket/runs", "gs://bucket/runs", "file:///shared/runs")
        yield Problem(URL, f"is not a URL: {section.url!r}", valid=valid)


def protocol_problems(job: Job) -> Iterator[Problem]:
    """Find URLs that nothing here opens."""
    section = job.checkpoint.remote
    assert section is not None
    problem = protocol_problem(section.url, "remote") if is_url(section.url) else ""
    if problem:
        message, _, valid = problem.partition("\nValid: ")
        yield Problem(URL, message, hint=f"Valid: {valid}")
