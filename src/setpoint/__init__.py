"""Setpoint: training from one configuration that fully determines the run.

`import setpoint as sp` offers the words that a user's own configuration needs; each is imported
when it is first used, so that the import itself costs nothing.
"""

from .config.lazy import exports

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = exports(__name__)
