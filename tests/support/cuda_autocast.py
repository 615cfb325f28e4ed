"""Autocast of CUDA on a CPU, whose own autocast leaves sums, powers and norms in bf16.

The lists are those of the header that the installed torch ships (`ATen/autocast_mode.h`). They are
registered for the dispatch key of the CPU's autocast, so that they hold wherever autocast does:
within autograd functions, operators made of others, recomputation and compiled graphs.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

KEY = torch._C.DispatchKey.AutocastCPU


def operators(macro: str) -> list[str]:
    """The operators of a list of the header, such as "sum.dim_IntList"."""
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    lines = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*\n)", header.read_text())
    assert lines is not None, macro
    names = re.findall(r"_\((\w+)(?:, (\w+))?\)", lines[1])
    return [f"{name}.{overload}" if overload else name for name, overload in names]


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Let autocast of the CPU compute in fp32 what that of CUDA does."""
    library = torch.library.Library("aten", "IMPL")
    for name in operators("AT_FORALL_FP32"):
        _implement(library, name, _in_fp32)
    for name in operators("AT_FORALL_FP32_SET_OPT_DTYPE"):
        _implement(library, name, _in_fp32_unless_told)
    try:
        yield
    finally:
        library._destroy()


def _implement(library: Any, name: str, rule: Callable[[Any], Any]) -> None:
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
        return
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    library.impl(name, rule(operator), "AutocastCPU")


def _in_fp32(operator: Any) -> Callable[..., Any]:
    def computed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(_widened, (args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            return operator(*args, **kwargs)

    return computed


def _in_fp32_unless_told(operator: Any) -> Callable[..., Any]:
    in_fp32 = _in_fp32(operator)

    def computed(*args: Any, **kwargs: Any) -> Any:
        dtypes = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)]
        if not dtypes:
            return in_fp32(*args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            return operator(*args, **kwargs)

    return computed


def _widened(value: Any) -> Any:
    is_low = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_low else value
