"""What an update that PyTorch or somebody's optimizer refuses comes to, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from setpoint.compile.failure import in_words as compiling_in_words
from setpoint.config import RunError, SetpointError
from setpoint.config import error_in_words as any_in_words
from setpoint.optim.build import title_of
from setpoint.optim.section import OptimizerConfig
from setpoint.parallel.determinism import in_words as determinism_in_words
from setpoint.train.step.out_of_memory import is_shortage


def in_words(error: Exception) -> RunError | None:
    """Say what a setting asks for that PyTorch cannot do.

    Returns:
        an error that says what to change; None where it is not known what the error is about.
    """
    # Compilers pass on, in an error of their own, that an operation cannot be deterministic.
    return determinism_in_words(error) or compiling_in_words(error)


@contextmanager
def stepping(config: OptimizerConfig) -> Iterator[None]:
    """Name the optimizer where Setpoint has not written it and its step fails.

    Raises:
        RunError: in place of whatever it raises, unless that is about memory, or `in_words` knows
            what it is about.
    """
    try:
        yield
    except SetpointError:
        raise
    except Exception as error:
        title = title_of(config)
        if title is None or is_shortage(error) or in_words(error) is not None:
            raise
        raise RunError(
            f"{title} failed in its step: {any_in_words(error)}. The gradients are dense tensors, "
            f"one for each parameter of its groups; choose an optimizer that takes them"
        ) from error
