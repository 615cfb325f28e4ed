"""The states of the random generators that a program draws from without naming one.

Python's `random`, NumPy's global generator, torch's CPU generator and that of the current CUDA
device. Generators that a component owns are that component's state.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def capture_rng() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take the states of all generators; none of them is advanced.

    NumPy's is taken if NumPy has been imported, CUDA's if CUDA has been used: otherwise nothing
    was drawn from them.
    """
    version, words, gauss = random.getstate()
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "torch": torch.get_rng_state(),
    }
    state: dict[str, Any] = {"python": {"version": version, "gauss_next": gauss}}
    if "numpy" in sys.modules:
        import numpy

        state["numpy"] = _split(numpy.random.get_state(legacy=False), "numpy", tensors)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors, state


def restore_rng(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> list[str]:
    """Set all generators to the states that `capture_rng` took.

    Returns:
        the generators whose state was saved and that this process does not have (`numpy`, `cuda`);
        a run that goes on without them is not the uninterrupted one, and its record should say so.
    """
    missing: list[str] = []
    python = state["python"]
    words = tuple(tensors["python"].tolist())
    random.setstate((python["version"], words, python["gauss_next"]))
    torch.set_rng_state(tensors["torch"])
    if "numpy" in state:
        try:
            import numpy
        except ImportError:
            missing.append("numpy")
        else:
            numpy.random.set_state(_join(state["numpy"], "numpy", tensors))
    if "cuda" in tensors:
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["cuda"])
        else:
            missing.append("cuda")
    return missing


def _split(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move the arrays of a nested state to `tensors`, leaving their names behind."""
    import numpy

    if isinstance(value, Mapping):
        return {key: _split(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, numpy.ndarray):
        tensors[name] = torch.from_numpy(value.copy())
        return {"tensor": name}
    # NumPy's own scalars become Python's; the integers of some generators have 128 bits.
    return value.item() if isinstance(value, numpy.generic) else value


def _join(value: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    if value == {"tensor": name}:
        return tensors[name].numpy()
    if isinstance(value, Mapping):
        return {key: _join(item, f"{name}.{key}", tensors) for key, item in value.items()}
    return value
