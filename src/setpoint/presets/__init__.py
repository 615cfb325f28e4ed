"""Named jobs and modifiers; importing this package registers them."""

from setpoint.presets import modifiers as modifiers
from setpoint.presets import tiny as tiny
