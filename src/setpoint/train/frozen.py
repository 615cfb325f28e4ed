"""Frozen parameters that checkpoints omit, and that are read from `model.pretrained` again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.checkpoint.manifest import Base
from setpoint.files.tensor_file import DTYPES
from setpoint.model.build import skeleton
from setpoint.model.config import TransformerConfig
from setpoint.model.pretrained.locate import Place, locate
from setpoint.shapes.placed import as_placed, local_part
from setpoint.train.build.job_parameters import add_adapter

if TYPE_CHECKING:
    from setpoint.checkpoint.loading import LoadedCheckpoint
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job


class FrozenParameters:
    """The source weights of frozen parameters, and those that checkpoints omit.

    Every rank calls every method.

    Arguments:
        job, components: of the run; the model is not compared before `decide`.
    """

    def __init__(self, job: Job, components: Components) -> None:
        self.job, self.components = job, components
        self.left_out: Base | None = None
        self._loaded: tuple[Base, Place] | None = None
        self._source: Path | None = None

    def completed(self, checkpoint: LoadedCheckpoint) -> LoadedCheckpoint:
        """A checkpoint completed by its omitted frozen parameters.

        Raises:
            SetpointError: if the weights with them are missing or changed.
        """
        self._source, base = checkpoint.path, checkpoint.base
        if base is None:
            self._loaded = None
            return checkpoint
        from setpoint.model.pretrained.base_model import completed, find_base

        known = self._loaded
        if known is None or known[0].files != base.files:
            pretrained = self.job.model.pretrained
            place = self.components.world.on_main(
                lambda: find_base(checkpoint.path, base, pretrained)
            )
            known = base, place
        self._loaded = base, known[1]
        words, outline = self.components.tokenizer.vocab_size, self._outline()
        return completed(checkpoint, known[1], self.job.model, words, outline)

    def decide(self) -> str | None:
        """Choose the parameters that checkpoints omit, once the model has its initial values.

        Frozen parameters are compared with the weights bit by bit, unless just loaded from there:
        those that were trained before they were frozen are saved.

        Returns:
            a note; None if nothing is omitted.

        Raises:
            SetpointError: if the weights cannot be read.
        """
        section, pretrained = self.job.checkpoint, self.job.model.pretrained
        if section.save_frozen or not section.save or pretrained is None:
            return None
        world = self.components.world
        base, place = self._loaded or world.on_main(lambda: _pretrained_base(pretrained))
        frozen = self._local_frozen()
        equal = self._unchanged(frozen, base, place)
        facts = {name: ((DTYPES[part.dtype],), name in equal) for name, part in frozen.items()}
        parts = world.all_of(facts)
        trained = {name for part in parts for name, (_, same) in part.items() if not same}
        names = {
            name: dtypes
            for part in parts
            for name, (dtypes, _) in part.items()
            if name not in trained
        }
        self.left_out = Base(base.name, base.directory, base.files, names) if names else None
        changed = f"; {len(trained)} others have been trained, and are saved" if trained else ""
        return (
            f"checkpoints leave out {len(names)} frozen parameters, which come from "
            f"{base.name}{changed}"
        )

    def _outline(self) -> nn.Module | None:
        """The dense model on the meta device, if parts are quantized."""
        adapter, config = self.job.adapter, self.job.model
        if adapter is None or adapter.quantize is None or not isinstance(config, TransformerConfig):
            return None
        model = skeleton(config, self.components.tokenizer.vocab_size)
        add_adapter(self.job, model)
        return model

    def _local_frozen(self) -> dict[str, Tensor]:
        """The frozen parameters of this rank, by their names in checkpoints."""
        state = self.components.model.state_dict(keep_vars=True)
        return {
            name: tensor.detach()
            for name, tensor in state.items()
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        }

    def _unchanged(self, frozen: dict[str, Tensor], base: Base, place: Place) -> set[str]:
        """The parameters that equal the weights bit by bit."""
        config, size = self.job.model, self.components.tokenizer.vocab_size
        known = set(base.tensors) & frozen.keys()
        if self._source is None and self.components.pretrained is not None:
            # They have just come from there, but for what is not part of the model by itself, and
            # what adapters of PEFT have changed.
            if not isinstance(config, TransformerConfig):
                return set(frozen)
            if not config.adapters:
                known = frozen.keys() & skeleton(config, size).state_dict().keys()
        unknown = {n: (DTYPES[tensor.dtype],) for n, tensor in frozen.items() if n not in known}
        if not unknown or self.components.replicas.holds_state:
            return known
        from setpoint.model.pretrained.base_model import tensors_at

        directory = self._source or place.directory
        weights = tensors_at(place, unknown, config, size, directory, self._outline())
        for name, weight in weights.items():
            placed = local_part(as_placed(weight, frozen[name]))
            if torch.equal(placed.to(frozen[name].device), local_part(frozen[name])):
                known.add(name)
        return known


def _pretrained_base(pretrained: str) -> tuple[Base, Place]:
    """The weights of `model.pretrained`, with nothing omitted yet."""
    from setpoint.model.pretrained.base_model import files_at

    place = locate(pretrained)
    return Base(pretrained, str(place.directory.resolve()), files_at(place), {}), place
