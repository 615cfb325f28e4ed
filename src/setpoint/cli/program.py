"""Whose command line it is: Setpoint's own, or that of somebody's script."""

from __future__ import annotations

from setpoint.config import Config


class Program:
    """A command line and the config class that it is about.

    Arguments:
        name: what is typed before a command, as in `python train.py`.
        root: the class of the configuration; None for Setpoint's training job.
    """

    __slots__ = ("_root", "name")

    def __init__(self, name: str, root: type[Config] | None = None) -> None:
        self.name = name
        self._root = root

    @property
    def is_own(self) -> bool:
        """Whether this is somebody's script, with a root class of its own."""
        return self._root is not None

    @property
    def root(self) -> type[Config]:
        """The class of the configuration."""
        if self._root is not None:
            return self._root
        from setpoint.train.config import Job

        return Job


SETPOINT = Program("setpoint")
"""The command `setpoint`."""
