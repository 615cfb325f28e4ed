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

    def update_by(self, optimizer: torch.optim.Optimizer, overflows: bool) -> bool:
        """Let the optimizer take its step, unless a gradient is not finite; adjust the scale.

        Arguments:
            optimizer: whose gradients have been unscaled by `unscale_`.
            overflows: whether one of `overflows` is above 0.

        Raises:
            RunError: the scale has become so small that it cannot be what makes them infinite.
        """
        if not self.is_enabled():
            optimizer.step()
            return True
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            self.step(optimizer)  # fused: skips on the device
        elif not overflows:
            optimizer.step()
        if not overflows:
            self.update()
            return True
        before = self.get_scale()
        self.update()
        self.skipped += 1
        if self.get_scale() < LEAST:
            raise RunError(
                f"the gradients of fp16 are not finite even with the loss scaled by {before:g}; "
                f"{self.skipped} steps were skipped. Lower optimizer.lr, or compute in bf16"
            )
        return False

    def pass_over(self) -> None:
        """Adjust the scale after gradients that were unscaled, and from which no step is taken."""
        if self.is_enabled():
            self.update()

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
