"""What checkpoints cost: time, memory and size on disk."""

import setpoint.train  # noqa: F401 - makes idle threads of OpenMP sleep, before torch is imported
