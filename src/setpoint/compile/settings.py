"""Settings of torch.compile that belong to the process, for as long as one job needs them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from setpoint.compile.config import Compile
from setpoint.compile.folder import make_folder
from setpoint.compile.quiet import quiet_compiler

CACHE = "TORCHINDUCTOR_CACHE_DIR"
KERNELS = "TRITON_CACHE_DIR"
RECORDS = 1024
"""Records that PyTorch keeps; more may be compiled in a step than the 64 of its default."""
KEPT = "Detected that context_fn is passed to torch.utils.checkpoint under torch.compile"


@contextmanager
def compiling(config: Compile | None) -> Iterator[None]:
    """Set what the code of a job is compiled under.

    PyTorch compiles when a function is first called, and its backward pass when that is, so that
    the context stays open until the job has ended.

    Arguments:
        config: the section; None: the job compiles nothing.

    Returns:
        a context, after which all is as it was before and what was compiled is forgotten.

    Raises:
        SetpointError: the folder for compiled code cannot be made or written to.
    """
    if config is None:
        yield
        return
    if config.cache is not None:
        make_folder(config.cache)
    import torch._dynamo
    from torch._dynamo import utils

    dynamo: Any = torch._dynamo.config
    with ExitStack() as stack:
        # What other jobs of this process compiled would count towards the limit of this one.
        torch._dynamo.reset()
        stack.enter_context(quiet_compiler())
        stack.callback(torch._dynamo.reset)
        utils.set_compilation_metrics_limit(RECORDS)
        default = utils.DEFAULT_COMPILATION_METRICS_LIMIT
        stack.callback(utils.set_compilation_metrics_limit, default)
        limit = config.recompile_limit
        together = max(limit, dynamo.accumulated_recompile_limit)
        patch = dynamo.patch(recompile_limit=limit, accumulated_recompile_limit=together)
        stack.enter_context(patch)
        stack.enter_context(_quiet())
        if config.cache is not None:
            stack.enter_context(cached_in(config.cache))
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what PyTorch warns of where the results of some operators are kept.

    Compilers write operations in place as others, which a policy that names those in place would
    not see. Ours names products and attention (`memory/operators.py`), and gradients are right.
    """

    def other(record: logging.LogRecord) -> bool:
        return KEPT not in record.getMessage()

    logger = logging.getLogger("torch._higher_order_ops.wrap")
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


@contextmanager
def cached_in(folder: Path) -> Iterator[None]:
    """Keep compiled code in a folder, although torch has been imported already."""
    import torch._inductor.config
    from torch._inductor.utils import clear_caches

    inductor: Any = torch._inductor.config
    path = str(folder.absolute())
    before = {name: os.environ.get(name) for name in (CACHE, KERNELS)}
    os.environ.update({CACHE: path, KERNELS: os.path.join(path, "triton")})
    # What is kept in memory points into the folder of before.
    clear_caches()
    try:
        with inductor.patch(fx_graph_cache=True):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        clear_caches()
