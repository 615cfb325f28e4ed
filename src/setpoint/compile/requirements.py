"""Checks of `[compile]`: backend, options, the machine and cache folders."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import Free, Problem, SetpointError, did_you_mean

if TYPE_CHECKING:
    from setpoint.compile.config import Compile

INTERNAL = ("TESTING_ONLY", "minifier", "crossref", "accuracy")


def name_problems(config: Compile) -> Iterator[Problem]:
    """Find an unknown backend and unknown options."""
    import torch

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
            f"have no effect: the backend {config.backend} accepts none",
            also=("backend",),
            hint="Remove them.",
        )


def _backends(everyone: list[str]) -> list[str]:
    import torch

    usual = torch.compiler.list_backends()
    return [*usual, *sorted(set(everyone) - set(usual) - set(filter(_is_internal, everyone)))]


def _is_internal(name: str) -> bool:
    return any(part in name for part in INTERNAL)


def _takes_options(backend: str) -> bool:
    from setpoint.compile.internals import backend_function

    # Backends that accept any name ignore unknown ones.
    return "options" in inspect.signature(backend_function(backend)).parameters


def _option_problems(config: Compile) -> Iterator[Problem]:
    if not config.options.dump():
        return
    from setpoint.compile.internals import inductor_options

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
    """Find missing requirements of inductor on this machine.

    Returns:
        problems of compile.backend, with paths from the root; none for other backends.
    """
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        if os.environ.get(name) == "1":
            yield Problem(
                "compile",
                f"{name} is set, so nothing would be compiled",
                valid=("null",),
                hint="Unset it, or set compile to null.",
            )
            break
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
    """Reason why inductor cannot compile for a CPU."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler):
        return None
    return f"inductor needs a C++ compiler, but {compiler} was not found (install g++, or set CXX)"


def _missing_triton() -> str | None:
    if importlib.util.find_spec("triton"):
        return None
    return "inductor needs Triton for a GPU, but it is not installed (pip install triton)"


def flatten(options: Free, known: Collection[str]) -> dict[str, Any]:
    """Flatten nested options to the dotted names of inductor: `triton.cudagraphs`.

    Arguments:
        known: names of options; their values are unchanged, even if they are mappings.
    """
    return dict(_flat(options.dump(), known, ""))


def _flat(
    options: Mapping[str, Any], known: Collection[str], before: str
) -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        name = before + key
        if isinstance(value, Mapping) and name not in known:
            yield from _flat(value, known, f"{name}.")
        else:
            yield name, value


def cache_problems(config: Compile) -> Iterator[Problem]:
    """Report a cache folder in a section that cannot be used."""
    for name, folder in (("cache", config.cache), ("artifacts", config.artifacts)):
        reason = None if folder is None else why_unfit(folder)
        if reason is not None:
            yield Problem(name, reason)


def why_unfit(folder: Path) -> str | None:
    """Find the reason why a folder cannot be used.

    Returns:
        the reason; None if it can be used.
    """
    existing = folder.absolute()
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is not a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written to: no permission"
    return None


def make_folder(folder: Path, field: str = "cache") -> None:
    """Create the folder of a field if it does not exist.

    Raises:
        SetpointError: the folder cannot be created or written to.
    """
    reason = why_unfit(folder)
    if reason is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # it has changed since, or the disk is full or read-only
            reason = f"it cannot be created: {error.strerror}"
    if reason is not None:
        raise SetpointError(f"compile.{field} = {folder}: {reason}")
