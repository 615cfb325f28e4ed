"""Checks of `[compile]`: whether this PyTorch has what it names, and what compiling needs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any

import torch

from setpoint.compile.config import Compile
from setpoint.compile.options import flatten, inductor_options
from setpoint.config import Problem, did_you_mean

INTERNAL = ("TESTING_ONLY", "minifier", "crossref", "accuracy")


def name_problems(config: Compile) -> Iterator[Problem]:
    """Look for a backend and options that PyTorch does not have."""
    everyone: Any = torch.compiler.list_backends(exclude_tags=())
    if config.backend not in everyone:
        yield Problem(
            "backend",
            f"PyTorch {torch.__version__} has no backend of that name",
            valid=_backends(everyone),
            hint=did_you_mean(config.backend, everyone),
        )
    elif config.backend == "inductor":
        yield from _option_problems(config)
    elif config.options.dump() and not _takes_options(config.backend):
        yield Problem(
            "options",
            f"have no effect: the backend {config.backend} takes none",
            also=("backend",),
            hint="Remove them.",
        )


def _backends(everyone: list[str]) -> list[str]:
    usual = torch.compiler.list_backends()
    return [*usual, *sorted(set(everyone) - set(usual) - set(filter(_is_internal, everyone)))]


def _is_internal(name: str) -> bool:
    return any(part in name for part in INTERNAL)


def _takes_options(backend: str) -> bool:
    # Those that take any name drop what they do not know.
    function: Any = torch._dynamo.lookup_backend(backend)
    return "options" in inspect.signature(function).parameters


def _option_problems(config: Compile) -> Iterator[Problem]:
    if not config.options.dump():
        return
    known = inductor_options()
    for name, value in flatten(config.options, known).items():
        if name not in known:
            yield Problem(
                f"options.{name}",
                "inductor has no such option",
                hint=did_you_mean(name, known),
            )
            continue
        before = known[name]
        if before is not None and not _is_of_type(value, before):
            yield Problem(
                f"options.{name}",
                f"is a {type(before).__name__}, such as {before!r}; got {value!r}",
            )


def _is_of_type(value: object, before: object) -> bool:
    if isinstance(before, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(before, bool)
    return isinstance(value, type(before))


def machine_problems(config: Compile, device: str) -> Iterator[Problem]:
    """Look for what inductor needs of the machine and does not find.

    Returns:
        problems of compile.backend, with paths from the root; none for other backends.
    """
    # PyTorch looks at the one when it is imported, and at the other whenever it compiles.
    at_import, always = torch._dynamo.config.disable, os.environ.get("TORCHDYNAMO_DISABLE") == "1"
    if at_import or always:
        yield Problem(
            "compile",
            f"{'TORCHDYNAMO_DISABLE' if always else 'TORCH_COMPILE_DISABLE'} is set, so that "
            f"nothing would be compiled",
            valid=("null",),
            hint="Unset it, or set compile to null.",
        )
    if config.backend != "inductor":
        return
    reason = _missing_compiler() if device == "cpu" else _missing_triton()
    if reason is not None:
        yield Problem(
            "compile.backend",
            reason,
            valid=("aot_eager", "eager"),
            hint="Or set compile to null.",
        )


def _missing_compiler() -> str | None:
    """Why inductor cannot compile for a CPU."""
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError) as error:
        told = " ".join(str(error).split())
        return f"inductor needs a C++ compiler, and finds none (install g++, or set CXX): {told}"
    return None


def _missing_triton() -> str | None:
    from torch.utils._triton import has_triton

    if has_triton():
        return None
    return "inductor needs Triton for a GPU, and does not find it (pip install triton)"
