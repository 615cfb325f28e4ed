"""Request for nodes of a cluster, whichever scheduler it has."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

MARGIN = 60
"""Seconds beside the grace period in which a save that has begun is finished."""


class Request(NamedTuple):
    """A job on nodes of a cluster, each of which runs one launcher.

    Arguments:
        name: for people and the scheduler.
        words: of `setpoint train`, without the number of ranks and nodes.
        variables: assignments of environment variables to put before the command; may be empty.
        nodes: their number.
        ranks: on each node.
        has_gpus: whether each rank has one.
        cpus: cores for each rank; None leaves it to the scheduler.
        image: the container image; None for the node's own files.
        volumes: what is mounted in the image, and where.
        setup: lines of shell before the command.
        restarts: how often the ranks are started again.
        grace: seconds that a stop takes, as `resilience.grace_period`.
        interpreter: of Python, where there is no image.
    """

    name: str
    words: Sequence[str]
    variables: str
    nodes: int
    ranks: int
    has_gpus: bool
    cpus: int | None = None
    image: str | None = None
    volumes: Sequence[tuple[str, str]] = ()
    setup: Sequence[str] = ()
    restarts: int | None = None
    grace: float = 120.0
    interpreter: str = "python"

    @property
    def notice(self) -> int:
        """Seconds before its end at which a job must hear of it."""
        return ceil(self.grace) + MARGIN

    def command(self, endpoint: str, run_id: str, restarts: bool = True) -> str:
        """The command that each node runs, for a shell.

        Arguments:
            endpoint, run_id: words of the shell, with its variables.
            restarts: whether the launcher starts ranks again itself.
        """
        python = "python" if self.image is not None else shlex.quote(self.interpreter)
        words = f"exec env {self.variables}{python} -m setpoint train {shlex.join(self.words)}"
        words += f" --nproc {self.ranks}"
        if self.nodes > 1:
            words += f" --nnodes {self.nodes} --rdzv-endpoint {endpoint} --rdzv-id {run_id}"
        if restarts and self.restarts is not None:
            words += f" --max-restarts {self.restarts}"
        return words
