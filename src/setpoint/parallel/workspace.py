"""The workspaces with which cuBLAS gives the same sums in each run."""

from __future__ import annotations

import os

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")
"""The two that NVIDIA documents as deterministic; the first is the faster one."""


def unfit_workspace() -> str | None:
    """Look for a setting of the user's that makes cuBLAS nondeterministic.

    Returns:
        the value; None where there is none, or one that will do.
    """
    value = os.environ.get(VARIABLE)
    return None if value in (None, *WORKSPACES) else value
