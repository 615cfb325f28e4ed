"""What the plan of a job says, beside what was measured."""

import sys
from pathlib import Path

import setpoint.train  # noqa: F401 - makes idle threads of OpenMP sleep, before torch is imported

sys.path.append(str(Path(__file__).parents[2]))  # for tests.support.ranks
