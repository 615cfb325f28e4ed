"""Setpoint: training from one configuration that fully determines the run.

`import setpoint as sp` offers the words that a user's own configuration needs; each is imported
when it is first used, so that the import itself costs nothing.
"""

from .config.lazy import exports
from .version import VERSION as __version__  # noqa: F401

__getattr__, __dir__, __all__ = exports(__name__)
