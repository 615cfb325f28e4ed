"""Training loops beside each other, and the scripts for one H200."""

import setpoint.train  # noqa: F401 - makes idle threads of OpenMP sleep, before torch is imported
