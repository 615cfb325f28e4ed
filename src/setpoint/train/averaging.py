"""The weights a model is evaluated and saved with, where its optimizer trains others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from setpoint.shapes.placed import Named, put

if TYPE_CHECKING:
    from setpoint.train.build.components import Components


TRAINING = "training"
"""The stem of the file of a checkpoint that holds the point that is trained."""


@runtime_checkable
class Averages(Protocol):
    """An optimizer whose result is an average of the points that it goes through."""

    def averaged(self) -> AbstractContextManager[Mapping[Tensor, Tensor]]:
        """Put the average into the parameters, and bring them back bit for bit at the end.

        Returns:
            a context; it gives the points that are trained, by the parameter.
        """
        ...


@contextmanager
def evaluation_point(components: Components) -> Iterator[dict[str, Tensor]]:
    """Give the model the weights that it is evaluated, saved and used with.

    Arguments:
        components: the objects of a job; for most optimizers nothing is done.

    Returns:
        a context, after which all weights are what they were, bit for bit. It gives the weights
        that are trained, by their names, where they are others.
    """
    optimizer = components.optimizer
    if not isinstance(optimizer, Averages):
        yield {}
        return
    try:
        with optimizer.averaged() as kept:
            components.weights.master_to_params()
            named = components.weights.named_parameters()
            yield {name: kept[held] for name, held in named if held in kept}
    finally:
        components.weights.master_to_params()


def go_on_from(components: Components, training: Named) -> None:
    """Bring the weights back that are trained, after a model was loaded as it is evaluated.

    Arguments:
        training: what `evaluation_point` gave when it was saved.
    """
    for name, held in components.weights.named_parameters():
        if name in training:
            put(held, training[name])
    components.weights.master_to_params()
