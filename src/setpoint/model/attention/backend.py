"""What each backend offers: what it needs to know of visibility, and attention itself."""

from typing import Any, Protocol

from torch import Tensor

from setpoint.model.attention.layout import Layout


class Backend(Protocol):
    """One way to compute softmax(scale * Q K^T) V among the positions that are visible."""

    def prepare_mask(self, layout: Layout, window: int | None) -> Any:
        """Prepare what is visible, once for all layers of a kind.

        Arguments:
            window: positions that one sees, itself included; None: all before it.

        Returns:
            what `attend` takes as `mask`.
        """
        ...

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        *,
        scale: float | None = None,
        soft_cap: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Mix the values that each query sees.

        Arguments:
            key: (B, L, K, D); each key-value head serves H / K query heads in a row.
            value: (B, L, K, V); V may differ from D where the backend takes that.
            mask: from `prepare_mask`.
            scale: of the products; None: 1 / sqrt(D).
            soft_cap: scaled products x become soft_cap * tanh(x / soft_cap); None: they stay.
        """
        ...
