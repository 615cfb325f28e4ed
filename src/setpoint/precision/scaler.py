"""Dynamic loss scaling for fp16, with a count of skipped steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from setpoint.config import RunError

if TYPE_CHECKING:
    from setpoint.precision.config import LossScale

LEAST = 2.0**-14
"""Smallest normal number of fp16: gradients that overflow under such a scale are no numbers."""


class LossScaler(torch.amp.GradScaler):
    """PyTorch's scaler of losses (Micikevicius et al., 2018), which counts what it skips.

    Where it is not enabled it does nothing, and no step is skipped.

    Arguments:
        device: the type of the device, such as `"cuda"`.
        config: the section; None: PyTorch's defaults.
    """

    def __init__(
        self, device: str, config: LossScale | None = None, *, enabled: bool = True
    ) -> None:
        given: dict[str, Any] = {}
        if config is not None:
            given = {
                "init_scale": config.initial,
                "growth_factor": config.growth,
                "backoff_factor": config.backoff,
                "growth_interval": config.growth_interval,
            }
        super().__init__(device, enabled=enabled, **given)
        self.skipped = 0

    def overflows(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Whether gradients that were unscaled are not finite, without waiting for the device.

        Returns:
            fp32 scalars, one for each device of gradients, above 0 if so; none where it is not
            enabled.
        """
        if not self.is_enabled():
            return []
        found: dict[Any, torch.Tensor]
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return list(found.values())

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adjust the scale after each step whose gradients were unscaled, taken or not."""
        if self.is_enabled():
            super().update(new_scale)

    def skip(self, scale: float) -> None:
        """Count a step that was not taken, since gradients were not finite.

        Arguments:
            scale: of its loss.

        Raises:
            RunError: the scale has become so small that it cannot be what makes them infinite.
        """
        self.skipped += 1
        if scale * self.get_backoff_factor() < LEAST:
            raise RunError(
                f"the gradients of fp16 are not finite even with the loss scaled by {scale:g}; "
                f"{self.skipped} steps were skipped. Lower optimizer.lr, or compute in bf16"
            )

    def metrics(self) -> dict[str, float]:
        """What a row of metrics says.

        Returns:
            the scale, and how many steps of the run were skipped; nothing where it is not
            enabled.
        """
        if not self.is_enabled():
            return {}
        return {"loss_scale": self.get_scale(), "skipped_steps": self.skipped}

    def state_dict(self) -> dict[str, Any]:
        """See `torch.amp.GradScaler.state_dict`."""
        state = super().state_dict()
        return {**state, "skipped": self.skipped} if state else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the scale and the counts; growth, backoff and interval stay as configured.

        Arguments:
            state_dict: of `state_dict`; empty, if the loss was not scaled before.
        """
        if not self.is_enabled() or not state_dict:
            return
        # torch grows the scale where the count equals the interval, which may have become shorter.
        counted = {
            "scale": state_dict["scale"],
            "_growth_tracker": min(state_dict["_growth_tracker"], self.get_growth_interval() - 1),
        }
        super().load_state_dict({**super().state_dict(), **counted})
        self.skipped = state_dict.get("skipped", 0)
