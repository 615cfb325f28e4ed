"""Results of a model in training, beside logits."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.shapes.peers import Peers, gather_parts
from setpoint.shapes.protocols import Adapted

if TYPE_CHECKING:
    from setpoint.shapes.batch import Batch


class VocabularyPart(NamedTuple):
    """The division of the rows of an output matrix among ranks.

    Arguments:
        rows: of each rank but the last, which has those that are left.
        gathers: whether losses get the logits of all rows.
    """

    peers: Peers
    rows: int
    gathers: bool = True


class Columns(NamedTuple):
    """The columns of logits that this rank has, where ranks divide the vocabulary.

    Arguments:
        first: the token of the first one.
        total: how many all ranks have together.
    """

    peers: Peers
    first: int
    total: int


class Projection(NamedTuple):
    """The way from the last hidden states to logits, as data, so that a loss can take it in parts.

    Arguments:
        weight: (rows, dim) the output matrix, or this rank's rows; the first vocab_size rows of all
            count.
        soft_cap: logits become soft_cap * tanh(logits / soft_cap); None: they stay as they are.
        part: which rows these are, where ranks divide them; None: all.
    """

    weight: Tensor
    vocab_size: int
    scale: float = 1.0
    soft_cap: float | None = None
    part: VocabularyPart | None = None

    @property
    def columns(self) -> Columns | None:
        """The columns that `logits` gives; None: all."""
        if self.part is None or self.part.gathers:
            return None
        peers, rows, _ = self.part
        return Columns(peers, peers.rank * rows, self.vocab_size)

    def logits(self, hidden: Tensor, weight: Tensor | None = None) -> Tensor:
        """Project hidden states.

        Arguments:
            weight: stands in for the output matrix; None: that matrix.
        """
        return self.finish(F.linear(hidden, self.weight if weight is None else weight))

    def finish(self, logits: Tensor) -> Tensor:
        """Cut, scale and cap what the output matrix gives."""
        count, columns = self.vocab_size, self.columns
        if columns is not None:
            count = min(max(count - columns.first, 0), logits.shape[-1])
        elif self.part is not None:
            # All of them compute the same loss with what is gathered.
            logits = F.pad(logits, (0, self.part.rows - logits.shape[-1]))
            logits = gather_parts(logits, -1, self.part.peers, sums=False)
        if logits.shape[-1] != count:
            logits = logits[..., :count]
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is not None:
            # A soft limit on their size (Gemma 2, 2024).
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits


class Routing(NamedTuple):
    """The choice of experts by tokens in one or several forward passes in training.

    Counts are whole numbers, so that their sums are exact in any order, and engines that cast what
    modules return leave them alone.

    Arguments:
        counts: (layers with experts, E) int64 how often each expert was chosen, also where it took
            no more.
        dropped: (layers with experts,) int64 how many of these choices no expert took.
        balance, sequence_balance, z: fp32 scalars without gradient: the means over tokens that
            `moe.balance_loss` and so on weigh, summed over layers, without their weights.
    """

    counts: Tensor
    dropped: Tensor
    balance: Tensor
    sequence_balance: Tensor
    z: Tensor


class Outcome(NamedTuple):
    """The result of a forward pass with a head.

    Arguments:
        auxiliary: fp32 scalar that the model adds to the mean loss over tokens; None: nothing.
        routing: how tokens chose experts; None for models without.
    """

    result: Any
    auxiliary: Tensor | None = None
    routing: Routing | None = None


def weight_in_use(module: nn.Module) -> Tensor:
    """The weight of a module as it computes, for code that does not call the module itself."""
    if isinstance(module, Adapted):
        return module.adapted_weight()
    weight: Any = module.weight
    return weight


def supports_head(model: nn.Module) -> bool:
    """Tell whether a model takes a head, which is called with hidden states and gives an `Outcome`.

    A model says so by `supports_head = True` on its class; others give logits.

    Returns:
        Whether it can be called as `model(tokens, head=...)`.
    """
    return getattr(model, "supports_head", False) is True


def takes_documents(model: nn.Module) -> bool:
    """Tell whether a model takes the positions and documents of a batch.

    Those that take a head do, and others that say so by `takes_documents = True` on their class.

    Returns:
        Whether it can be called as `model(tokens, positions=..., documents=...)`.
    """
    return supports_head(model) or getattr(model, "takes_documents", False) is True


def position_arguments(model: nn.Module, batch: "Batch") -> dict[str, Any]:
    """Keyword arguments of a model for the positions and documents of a batch.

    Returns:
        positions and documents, where the batch has them; lengths of the documents only for models
        that say `takes_lengths = True` on their class.
    """
    names = ["positions", "documents"]
    if getattr(model, "takes_lengths", False) is True:
        names.append("lengths")
    return {name: value for name in names if (value := getattr(batch, name)) is not None}
