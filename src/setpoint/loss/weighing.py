"""Which targets count, and how much."""

from collections.abc import Mapping

import torch
from torch import Tensor

from setpoint.shapes.batch import IGNORE_INDEX


class Weigher:
    """Joins what the data and the configuration say about the weight of each target.

    A target's weight is the product of the one that the data gives and that of its token; what
    weighs nothing does not count.

    Arguments:
        ignore_index: a token that does not count; None: all do.
        token_weights: weights by the id of the token, as text; others weigh 1. None: all do.
    """

    def __init__(
        self,
        ignore_index: int | None = None,
        token_weights: Mapping[str, float] | None = None,
    ) -> None:
        self.ignore_index = ignore_index
        self._tables: dict[torch.device, Tensor] = {}
        if token_weights:
            ids = [int(name) for name in token_weights]
            # One entry beyond the last id stands for all tokens that are not named.
            table = torch.ones(max(ids) + 2)
            table[torch.tensor(ids)] = torch.tensor([float(w) for w in token_weights.values()])
            self._tables[table.device] = table

    @property
    def is_trivial(self) -> bool:
        """Whether all targets weigh what the data says."""
        return self.ignore_index is None and not self._tables

    def __call__(
        self, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Weigh targets; nothing waits for the device.

        Arguments:
            targets: int64 of any shape; IGNORE_INDEX marks what does not count.
            weights: fp32 of that shape, from the data; None: all weigh 1.

        Returns:
            the targets, with IGNORE_INDEX at all that does not count, and their weights, 0 there;
            None if all that count weigh 1.
        """
        if self.ignore_index is not None:
            targets = targets.masked_fill(targets == self.ignore_index, IGNORE_INDEX)
        if self._tables:
            table = self._table(targets.device)
            of_token = table[targets.clamp(0, len(table) - 1)]
            weights = of_token if weights is None else weights * of_token
        if weights is None:
            return targets, None
        targets = targets.masked_fill(weights == 0, IGNORE_INDEX)
        return targets, weights.masked_fill(targets == IGNORE_INDEX, 0.0)

    def _table(self, device: torch.device) -> Tensor:
        if device not in self._tables:
            self._tables[device] = next(iter(self._tables.values())).to(device)
        return self._tables[device]
