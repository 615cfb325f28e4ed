"""Losses by their import path."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from setpoint.config import SetpointError, call_component
from setpoint.loss.cross_entropy import summed
from setpoint.loss.forms import LossOutput
from setpoint.shapes.batch import IGNORE_INDEX

if TYPE_CHECKING:
    from setpoint.loss.config import ImportedLoss as Section


class ImportedLoss:
    """A loss of another library, summed over tokens; the cross-entropy is measured beside it.

    Raises:
        SetpointError: it cannot be made, or does not sum over the valid tokens.
    """

    def __init__(self, config: "Section") -> None:
        handed = {"reduction": "sum", "ignore_index": IGNORE_INDEX}
        self.loss: Callable[[Tensor, Tensor], Tensor] = call_component(
            config, (), handed, tuple(handed)
        )
        self.per_token = False
        self._title = f"loss.target = {config.target}"
        self._prove_sum()

    def __call__(self, logits: Tensor, targets: Tensor) -> LossOutput:
        """Compute the loss of one micro-batch.

        Arguments:
            logits: (B, S, V) in any floating point dtype; computed in fp32 (fp64 stays fp64).
            targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.
        """
        flat, wanted = logits.flatten(0, 1), targets.flatten()
        if flat.dtype != torch.float64:
            flat = flat.float()
        total = self.loss(flat, wanted)
        with torch.no_grad():
            plain = summed(flat, wanted, self.per_token)
        return LossOutput(total, plain.nats, plain.each)

    def _prove_sum(self) -> None:
        """Try it on a token alone, on the same token twice, and beside one that does not count."""
        row = torch.tensor([[0.5, -1.0, 0.25]])
        target, ignored = torch.tensor([1]), torch.tensor([IGNORE_INDEX])
        once = self._value(row, target)
        for other, expected, words in (
            (target, 2 * once, "twice the same token"),
            (ignored, once, f"a token and one whose target is {IGNORE_INDEX}"),
        ):
            value = self._value(torch.cat((row, row)), torch.cat((target, other)))
            if not math.isclose(value, expected, rel_tol=1e-5):
                raise SetpointError(
                    f"{self._title} gives {once:.6g} for one token and {value:.6g} for "
                    f"{words}, where a sum over tokens gives {expected:.6g}; the loop divides by "
                    f"the tokens of the whole batch"
                )

    def _value(self, logits: Tensor, targets: Tensor) -> float:
        try:
            value = self.loss(logits, targets)
        except Exception as error:
            raise SetpointError(
                f"{self._title} cannot be called with (N, V) logits and (N,) targets: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(value, Tensor) or value.ndim:
            raise SetpointError(f"{self._title} must return a scalar tensor")
        return float(value)
