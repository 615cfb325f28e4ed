"""How often the most probable token is the right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor

from setpoint.loss.columns import count_correct_in_parts
from setpoint.shapes.outcome import Columns, Projection

_P = ParamSpec("_P")
CHUNK = 1024  # tokens whose logits are held at once


def count_correct(logits: Tensor, targets: Tensor, columns: Columns | None = None) -> Tensor:
    """Count the targets that have the highest logit; of equal ones the first counts.

    Arguments:
        targets: (...) int64; IGNORE_INDEX marks positions that do not count.
        columns: those of the logits that are given; None: all.
    """
    if columns is not None:
        return count_correct_in_parts(logits, targets, columns)
    # IGNORE_INDEX is below 0 and so is never the place of the highest one.
    return (logits.argmax(dim=-1) == targets).sum()


def _eager(function: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """As with losses that take hidden states: the graph of a compiled model ends before it.

    `torch.compiler.disable` would import the compiler now, which takes as long as importing torch.
    """
    return torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]


@_eager
def count_correct_from_hidden(
    hidden: Tensor, projection: Projection, targets: Tensor, chunk: int = CHUNK
) -> Tensor:
    """Count the targets that have the highest logit, without holding the logits of all tokens.

    Arguments:
        targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.
        chunk: tokens whose logits are held at once.
    """
    states, wanted = hidden.flatten(0, 1), targets.flatten()
    device, format = hidden.device.type, hidden.dtype
    if torch.is_autocast_enabled(device):
        format = torch.get_autocast_dtype(device)
    # Cast once, not for each chunk.
    matrix = projection.weight.to(format)
    right = torch.zeros((), dtype=torch.int64, device=hidden.device)
    with torch.autocast(device, enabled=False):
        for start in range(0, len(wanted), chunk):
            part = slice(start, start + chunk)
            logits = projection.logits(states[part].to(format), matrix)
            right += count_correct(logits, wanted[part], projection.columns)
    return right
