"""Adapters and their quantized bases."""

import setpoint.train  # noqa: F401 - makes idle threads of OpenMP sleep, before torch is imported
