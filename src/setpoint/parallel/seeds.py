"""Seeds for every generator of a process, none of which two ranks share."""

from __future__ import annotations

import hashlib
import random

import numpy
import torch

# torch takes 64 bits, Python any number and NumPy's global generator 32 bits.
BITS = 63


def seed_everything(seed: int, rank: int = 0) -> None:
    """Set the generators that components draw from without naming one.

    Python's, NumPy's and torch's, that of each GPU too.

    Arguments:
        rank: of this process; ranks draw different numbers, as for dropout. What must be the same
            on all of them, such as initial weights, is drawn from generators of its own.
    """
    _set_generators(rank_seed(seed, rank))


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Set the same generators as `seed_everything` before a step.

    What a step draws, such as dropout masks, then depends on nothing else: not on what was drawn
    before by whomever, nor on whether the run was resumed, so that checkpoints hold no generators.

    Arguments:
        step: how many were taken before.
        rank: among those that see other data; the parts of one model on several ranks share it.
    """
    own = hashed(f"{seed}/rank {rank}/step {step}")
    random.seed(own)
    numpy.random.seed(own % 2**32)
    # torch.manual_seed takes a quarter of a millisecond where no GPU is in use.
    torch.default_generator.manual_seed(own)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(own)


def rank_seed(seed: int, rank: int) -> int:
    """Find the seed of a rank.

    Returns:
        the job's own on rank 0, so that one process is as it always was; elsewhere one that is
        hashed, since seed + rank would make rank 1 of a job equal rank 0 of the job with the next
        seed.
    """
    return seed if rank == 0 else hashed(f"{seed}/rank {rank}")


def _set_generators(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def hashed(text: str) -> int:
    """Make a seed of a text.

    Returns:
        the first 63 bits of its SHA-256.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - BITS)
