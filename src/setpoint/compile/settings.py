"""Settings of torch.compile that belong to the process, for as long as one job needs them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from setpoint.compile.checks import make_folder
from setpoint.compile.config import Compile
from setpoint.compile.internals import dynamo_config, forget_compiled, inductor_config, more_records
from setpoint.compile.split_backward import kept_for_two_passes

CACHE = "TORCHINDUCTOR_CACHE_DIR"
KERNELS = "TRITON_CACHE_DIR"
LOGGERS = (
    "torch._dynamo.convert_frame",
    "torch._dynamo.variables.tensor",
    "torch._higher_order_ops.wrap",
)
BEGINNINGS = ("torch._dynamo hit config.", "Graph break")
"""Of the limit of recompilation and of what ends a graph, both of which `Watch` finds."""
KEPT = "Detected that context_fn is passed to torch.utils.checkpoint under torch.compile"
"""Compilers write operations in place as others, which a policy that names those in place would not
see. Ours names products and attention (`memory/operators.py`), and gradients are right."""


@contextmanager
def compiling(
    config: Compile | None, splits_backward: bool = False, fuses_messages: bool = False
) -> Iterator[None]:
    """Set what the code of a job is compiled under.

    PyTorch compiles when a function is first called, and its backward pass when that is, so that
    the context stays open until the job has ended.

    Arguments:
        config: the section; None: the job compiles nothing.
        splits_backward: whether gradients of inputs are computed apart from those of weights.
        fuses_messages: whether inductor fuses messages of tensor parallelism with products.

    Returns:
        a context, after which all is as it was before and what was compiled is forgotten.

    Raises:
        SetpointError: a folder for compiled code cannot be made or written to.
    """
    if config is None:
        yield
        return
    if config.cache is not None:
        make_folder(config.cache)
    if config.artifacts is not None:
        make_folder(config.artifacts, "artifacts")
    settings: Any = torch.compiler.config
    with ExitStack() as stack:
        # What other jobs of this process compiled would count towards the limit of this one.
        torch.compiler.reset()
        stack.callback(torch.compiler.reset)
        stack.enter_context(more_records())
        limit = config.recompile_limit
        together = max(limit, settings.accumulated_recompile_limit)
        patch = settings.patch(recompile_limit=limit, accumulated_recompile_limit=together)
        stack.enter_context(patch)
        stack.enter_context(dynamo_config().patch(optimize_ddp=config.optimize_ddp))
        stack.enter_context(quiet_compiler())
        if fuses_messages:
            stack.enter_context(inductor_config().patch(_micro_pipeline_tp=True))
        if splits_backward:
            stack.enter_context(kept_for_two_passes())
        if config.cache is not None:
            stack.enter_context(cached_in(config.cache))
        yield


def is_repeated(record: logging.LogRecord) -> bool:
    """Say whether a line of PyTorch's log repeats what `Watch` reports, or warns of no harm."""
    repeated = record.levelno == logging.WARNING and str(record.msg).startswith(BEGINNINGS)
    return repeated or KEPT in record.getMessage()


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keep PyTorch's own warnings about graphs and limits, 5 to 20 lines each, from the terminal.

    Whoever sets TORCH_LOGS gets what is asked for.

    Returns:
        a context, after which the loggers are as before.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return

    def passes(record: logging.LogRecord) -> bool:
        return not is_repeated(record)

    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(passes)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(passes)


@contextmanager
def cached_in(folder: Path) -> Iterator[None]:
    """Keep compiled code in a folder, although torch has been imported already."""
    path = str(folder.absolute())
    before = {name: os.environ.get(name) for name in (CACHE, KERNELS)}
    os.environ.update({CACHE: path, KERNELS: os.path.join(path, "triton")})
    # What is kept in memory points into the folder of before.
    forget_compiled()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        forget_compiled()
