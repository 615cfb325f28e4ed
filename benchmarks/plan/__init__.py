"""Times of planning, and plans beside published runs."""

import setpoint.train  # noqa: F401 - makes idle threads of OpenMP sleep, before torch is imported
