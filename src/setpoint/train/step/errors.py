"""Errors of a step, explained: what a setting asks for that PyTorch or an optimizer refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from setpoint.compile.watch import explain as explain_compiling
from setpoint.config import RunError, SetpointError, error_in_words
from setpoint.optim.build import title_of
from setpoint.optim.section import OptimizerConfig
from setpoint.parallel.determinism import explain as explain_determinism
from setpoint.train.step.out_of_memory import is_out_of_memory


def explain(error: Exception) -> RunError | None:
    """Say what a setting asks for that PyTorch cannot do.

    Returns:
        an error that says what to change; None where it is not known what the error is about.
    """
    # Compilers pass on, in an error of their own, that an operation cannot be deterministic.
    return explain_determinism(error) or explain_compiling(error)


@contextmanager
def stepping(config: OptimizerConfig) -> Iterator[None]:
    """Name the optimizer where Setpoint has not written it and its step fails.

    Raises:
        RunError: in place of whatever it raises, unless that is about memory, or `explain` knows
            what it is about.
    """
    try:
        yield
    except SetpointError:
        raise
    except Exception as error:
        title = title_of(config)
        if title is None or is_out_of_memory(error) or explain(error) is not None:
            raise
        raise RunError(
            f"{title} failed in its step: {error_in_words(error)}. The gradients are dense "
            f"tensors, one for each parameter of its groups; choose an optimizer that takes them"
        ) from error
