"""Training, its optimizers, memory, checkpoints and ranks."""

import setpoint.train  # noqa: F401 - makes idle threads of OpenMP sleep, before torch is imported
