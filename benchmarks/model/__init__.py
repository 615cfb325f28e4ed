"""Setpoint's models beside those of transformers and plain PyTorch."""

import os

# Idle threads sleep, as in `setpoint train`; `gpu.bare` imports nothing of Setpoint.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
