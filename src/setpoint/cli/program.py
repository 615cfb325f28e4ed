"""Whose command line it is: Setpoint's own, or that of somebody's script."""

from __future__ import annotations

from setpoint.config import Config

TRAINING = "setpoint.train.config:Job"
INFERENCE = "setpoint.infer.config:Inference"


class Program:
    """A command line and the config class that it is about.

    Arguments:
        name: what is typed before a command, as in `python train.py`.
        root: the class of the configuration; of Setpoint's own jobs the place where it is
            defined, which is imported when it is needed.
    """

    __slots__ = ("_root", "name")

    def __init__(self, name: str, root: type[Config] | str = TRAINING) -> None:
        self.name = name
        self._root = root

    @property
    def is_own(self) -> bool:
        """Whether this is somebody's script, with a root class of its own."""
        return not isinstance(self._root, str)

    @property
    def command(self) -> str:
        """The word that a shell knows it by: of `python train.py` and `./train.py` `train.py`."""
        return self.name.rpartition(" ")[2]

    @property
    def root(self) -> type[Config]:
        """The class of the configuration."""
        if isinstance(self._root, str):
            from importlib import import_module

            module, _, name = self._root.partition(":")
            return getattr(import_module(module), name)
        return self._root


SETPOINT = Program("setpoint")
"""The command `setpoint`, and its training jobs."""
