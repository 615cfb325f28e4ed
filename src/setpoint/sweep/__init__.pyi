from .run_sweep import SweepResult as SweepResult
from .run_sweep import sweep as sweep
