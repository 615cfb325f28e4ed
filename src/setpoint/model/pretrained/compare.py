"""What a model needs held against what files hold, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from setpoint.config import RunError
from setpoint.model.pretrained.header import CODES, FLOATS, TensorInfo
from setpoint.model.pretrained.pieces import Shape

_SHOWN = 3


def require_tensors(
    where: object,
    wanted: Mapping[str, Shape],
    held: Mapping[str, TensorInfo],
    surplus: Iterable[str] = (),
    coded: Collection[str] = (),
) -> None:
    """Refuse files that lack tensors, or have others, or of other shapes.

    Arguments:
        coded: names of tensors that may hold whole numbers: parts of quantized weights.

    Raises:
        RunError: if anything differs, each kind with the first few names and their number.
    """
    patterns = [re.compile(pattern) for pattern in surplus]
    missing = [f"{name} {_sized(shape)}" for name, shape in wanted.items() if name not in held]
    beyond = [
        f"{name} {_sized(info.shape)}"
        for name, info in held.items()
        if name not in wanted and not any(pattern.fullmatch(name) for pattern in patterns)
    ]
    common = [name for name in wanted if name in held]
    shapes = [
        f"{name} {_sized(held[name].shape)}, the model's is {_sized(wanted[name])}"
        for name in common
        if held[name].shape != wanted[name]
    ]
    kinds = [
        f"{name} {held[name].dtype}"
        for name in common
        if held[name].dtype not in (*FLOATS, *(CODES if name in coded else ()))
    ]
    found = [
        _line(missing, "missing"),
        _line(beyond, "not in the model"),
        _line(shapes, "of another shape"),
        _line(kinds, f"of a type that weights cannot have ({', '.join(FLOATS)} can)"),
    ]
    if any(found):
        lines = "\n  ".join(filter(None, found))
        raise RunError(f"{where} does not fit the model, and nothing was loaded:\n  {lines}")


def _line(names: list[str], what: str) -> str:
    if not names:
        return ""
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    count = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return f"{count} {what}: {'; '.join(names[:_SHOWN])}{more}"


def _sized(shape: Shape) -> str:
    return f"({', '.join(str(size) for size in shape)})"
