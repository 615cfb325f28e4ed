"""Portable compile artifacts: what a run compiled, as a file that others begin with."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import torch

DIGEST = 32
"""Bytes at the beginning of a file: SHA-256 of the rest, which PyTorch itself does not check."""


class Artifacts:
    """The file of a job on one kind of machine.

    PyTorch looks up each graph in it by what it was compiled from, so that a file of another
    configuration is of no use and does no harm.

    Arguments:
        key: of the job; the file is also named after what compiled code depends on and PyTorch's
            own keys leave out, such as the instruction set of a CPU.
    """

    def __init__(self, folder: Path, key: str, device: torch.device) -> None:
        self.path = folder / f"{key}-{machine_key(device)}.bin"

    def load(self) -> int | None:
        """Put the artifacts into inductor's cache.

        Returns:
            how many; 0 where there is no file; None if it is damaged.
        """
        if not self.path.is_file():
            return 0
        content = self.path.read_bytes()
        digest, artifacts = content[:DIGEST], content[DIGEST:]
        if hashlib.sha256(artifacts).digest() != digest:
            return None
        found = torch.compiler.load_cache_artifacts(artifacts)
        return None if found is None else sum(len(each) for each in found.artifacts.values())

    def save(self) -> bool:
        """Write what was compiled or loaded so far; the file is there whole or as before.

        Returns:
            whether there was anything.
        """
        found = torch.compiler.save_cache_artifacts()
        if found is None:
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            beside.write_bytes(hashlib.sha256(found[0]).digest() + found[0])
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)
        return True


def machine_key(device: torch.device) -> str:
    """Twelve digits that stand for PyTorch, Python and the device."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = torch.backends.cpu.get_cpu_capability()
    facts = (torch.__version__, platform.python_version(), platform.machine(), device.type, name)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
