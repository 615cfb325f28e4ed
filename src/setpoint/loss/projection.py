"""What a loss needs of a model that hands over hidden states."""

from typing import Protocol

from torch import Tensor


class Projection(Protocol):
    """The way from hidden states to logits; models give a `setpoint.model.outcome.Projection`."""

    @property
    def weight(self) -> Tensor:
        """(rows, dim) the output matrix; the first vocab_size rows count."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many logits there are."""
        ...

    @property
    def scale(self) -> float:
        """What logits are multiplied by."""
        ...

    @property
    def soft_cap(self) -> float | None:
        """Logits become soft_cap * tanh(logits / soft_cap); None: they stay as they are."""
        ...

    def logits(self, hidden: Tensor, weight: Tensor | None = None) -> Tensor:
        """Project hidden states.

        Arguments:
            weight: stands in for the output matrix; None: that matrix.
        """
        ...

    def finish(self, logits: Tensor) -> Tensor:
        """Cut, scale and cap what the output matrix gives."""
        ...
