"""What callbacks of one's own are made of; it is defined beside the loop that calls them."""

from setpoint.train.loop import Callback, Loop, Phase, StepResult

__all__ = ["Callback", "Loop", "Phase", "StepResult"]
