"""Results of a model in training: the projection to logits, and expert routing statistics."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.shapes.peers import Peers, gather_parts
from setpoint.shapes.protocols import Adapted

if TYPE_CHECKING:
    from setpoint.shapes.batch import Batch


class VocabularyPart(NamedTuple):
    """Division of the rows of an output matrix among ranks.

    Arguments:
        rows: rows per rank; the last rank has the remainder.
        gathers: whether losses receive the logits of all rows.
    """

    peers: Peers
    rows: int
    gathers: bool = True


class Columns(NamedTuple):
    """This rank's columns of the logits: from token `first`, out of `total` over all ranks."""

    peers: Peers
    first: int
    total: int


class Projection(NamedTuple):
    """The projection of hidden states to logits, as data, so that a loss can apply it in chunks.

    Arguments:
        weight: (rows, dim) output matrix, or this rank's rows; rows from vocab_size on are padding.
        soft_cap: logits become soft_cap * tanh(logits / soft_cap) (Gemma 2); None: none.
        part: division of the rows among ranks; None: this rank has all rows.
    """

    weight: Tensor
    vocab_size: int
    scale: float = 1.0
    soft_cap: float | None = None
    part: VocabularyPart | None = None

    @property
    def columns(self) -> Columns | None:
        """Columns returned by `logits`; None: all."""
        if self.part is None or self.part.gathers:
            return None
        peers, rows, _ = self.part
        return Columns(peers, peers.rank * rows, self.vocab_size)

    def logits(self, hidden: Tensor, weight: Tensor | None = None) -> Tensor:
        """Project hidden states, with another matrix if `weight` is given."""
        return self.finish(F.linear(hidden, self.weight if weight is None else weight))

    def finish(self, logits: Tensor) -> Tensor:
        """Remove padding rows from a product with the output matrix, then scale and cap it."""
        count, columns = self.vocab_size, self.columns
        if columns is not None:
            count = min(max(count - columns.first, 0), logits.shape[-1])
        elif self.part is not None:
            # All ranks compute the same loss with the gathered logits.
            logits = F.pad(logits, (0, self.part.rows - logits.shape[-1]))
            logits = gather_parts(logits, -1, self.part.peers, sums=False)
        if logits.shape[-1] != count:
            logits = logits[..., :count]
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits


class Routing(NamedTuple):
    """Expert choices of one or more forward passes in training.

    Counts are integers, so their sums are exact in any order, and engines that cast outputs leave
    them alone.

    Arguments:
        counts: (layers with experts, E) int64 number of times each expert was chosen, including
            dropped choices.
        dropped: (layers with experts,) int64 choices dropped for lack of capacity.
        balance, sequence_balance, z: fp32 scalars without gradient: the unweighted means over
            tokens of `moe.balance_loss` and so on, summed over layers.
    """

    counts: Tensor
    dropped: Tensor
    balance: Tensor
    sequence_balance: Tensor
    z: Tensor

    def flat(self) -> Tensor:
        """All numbers as one (N,) fp64 tensor; integers are exact up to 2**53."""
        return torch.cat([part.double().flatten() for part in self])

    def from_flat(self, numbers: Tensor) -> "Routing":
        """Inverse of `flat`, with the shapes and dtypes of this routing."""
        parts = zip(numbers.split([tensor.numel() for tensor in self]), self, strict=True)
        return Routing(*(part.view(tensor.shape).to(tensor.dtype) for part, tensor in parts))

    def metrics(self) -> dict[str, float]:
        """Summarize the routing of a step.

        Returns:
            numbers by name. expert_load: the load of the busiest expert divided by the mean load,
            averaged over layers; expert_load_worst: in the worst layer (1 is an even load; Wang et
            al., 2024, subtract 1 and call it MaxVio). experts_idle: number of experts without
            tokens, in all layers. expert_drops: the fraction of dropped choices. balance_loss,
            sequence_balance_loss and router_z_loss: means over layers, without their weights; the
            first two are 1 for an even load.
        """
        counts, layers = self.counts.double(), len(self.counts)
        loads = counts.amax(dim=1) / counts.mean(dim=1).clamp(min=1e-9)
        metrics = {
            "expert_load": loads.mean(),
            "expert_load_worst": loads.amax(),
            "experts_idle": (counts == 0).sum().double(),
            "expert_drops": self.dropped.sum() / counts.sum().clamp(min=1),
            "balance_loss": self.balance.double() / layers,
            "sequence_balance_loss": self.sequence_balance.double() / layers,
            "router_z_loss": self.z.double() / layers,
        }
        # One transfer, since each waits for the device.
        values = torch.stack(list(metrics.values())).tolist()
        return dict(zip(metrics, values, strict=True))


class Outcome(NamedTuple):
    """Result of a forward pass with a head.

    Arguments:
        auxiliary: fp32 scalar added to the mean loss over tokens; None: nothing.
        routing: expert choices; None for models without experts.
    """

    result: Any
    auxiliary: Tensor | None = None
    routing: Routing | None = None


def weight_in_use(module: nn.Module) -> Tensor:
    """The weight as the module computes with it, for code that does not call the module."""
    if isinstance(module, Adapted):
        return module.adapted_weight()
    weight: Any = module.weight
    return weight


def compute_dtype(x: Tensor) -> torch.dtype:
    """Dtype of matrix products with a tensor: that of autocast, if it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def supports_head(model: nn.Module) -> bool:
    """True if the model's class has `supports_head = True`.

    Then `model(tokens, head=...)` calls the head with hidden states and a `Projection`, and returns
    an `Outcome`; other models return logits.
    """
    return getattr(model, "supports_head", False) is True


def takes_documents(model: nn.Module) -> bool:
    """True if `model(tokens, positions=..., documents=...)` is a valid call.

    It is for models that support a head, and for classes with `takes_documents = True`.
    """
    return supports_head(model) or getattr(model, "takes_documents", False) is True


def position_arguments(model: nn.Module, batch: "Batch") -> dict[str, Any]:
    """Positions and documents of a batch as keyword arguments of a model.

    Includes their lengths for models with `takes_lengths = True` on their class.
    """
    names = ["positions", "documents"]
    if getattr(model, "takes_lengths", False) is True:
        names.append("lengths")
    return {name: value for name in names if (value := getattr(batch, name)) is not None}
