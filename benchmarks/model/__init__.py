"""Setpoint's models beside those of transformers and plain PyTorch."""

import setpoint.train  # noqa: F401 - makes idle threads of OpenMP sleep, before torch is imported
