"""Deterministic operations, for as long as the process lives."""

from __future__ import annotations

import os

import torch


def set_determinism(required: bool) -> None:
    """Make PyTorch use deterministic operations only, and fail where it has none; or not.

    Arguments:
        required: whether to; False takes back what an earlier job of this process asked for.
    """
    if required:
        # cuBLAS reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(required)
