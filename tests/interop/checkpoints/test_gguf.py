"""GGUF files by the format's specification, and blocks by its formulas, number by number."""

import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from setpoint.config import RunError, SetpointError
from setpoint.interop.checkpoints.gguf import TYPES, read_gguf

from ...support.snapshots import refused
from . import written


def half(content: bytes) -> float:
    return float(np.frombuffer(content, np.float16)[0])


def q4_0(block: bytes) -> list[float]:
    """x[i] = d (q - 8); the first half of the block is in the low bits."""
    d, codes = half(block[:2]), block[2:]
    return [d * ((c & 15) - 8) for c in codes] + [d * ((c >> 4) - 8) for c in codes]


def q4_k(block: bytes, bits: bytes = bytes(32)) -> list[float]:
    """As `dequantize_row_q4_K` and `get_scale_min_k4` of ggml-quants.c count them."""
    d, least, packed, codes = half(block[:2]), half(block[2:4]), block[4:16], block[-128:]

    def pair(j: int) -> tuple[int, int]:
        if j < 4:
            return packed[j] & 63, packed[j + 4] & 63
        scale = (packed[j + 4] & 0xF) | ((packed[j - 4] >> 6) << 4)
        return scale, (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4)

    numbers: list[float] = []
    for group in range(4):
        (s1, m1), (s2, m2) = pair(2 * group), pair(2 * group + 1)
        here = codes[32 * group : 32 * group + 32]
        first, second = ([16 * (bit >> (2 * group + i) & 1) for bit in bits] for i in (0, 1))
        numbers += [d * s1 * ((c & 0xF) + h) - least * m1 for c, h in zip(here, first, strict=True)]
        numbers += [d * s2 * ((c >> 4) + h) - least * m2 for c, h in zip(here, second, strict=True)]
    return numbers


def q5_k(block: bytes) -> list[float]:
    """As `dequantize_row_q5_K` of ggml-quants.c counts them."""
    return q4_k(block, block[16:48])


def q6_k(block: bytes) -> list[float]:
    """As `dequantize_row_q6_K` of ggml-quants.c counts them."""
    d = half(block[208:])
    numbers = [0.0] * 256
    for n in range(2):
        low, high = block[64 * n : 64 * n + 64], block[128 + 32 * n : 160 + 32 * n]
        scales = struct.unpack("8b", block[192 + 8 * n : 200 + 8 * n])
        for k in range(32):
            i = k // 16
            q = (
                (low[k] & 0xF) | ((high[k] & 3) << 4),
                (low[k + 32] & 0xF) | (((high[k] >> 2) & 3) << 4),
                (low[k] >> 4) | (((high[k] >> 4) & 3) << 4),
                (low[k + 32] >> 4) | (((high[k] >> 6) & 3) << 4),
            )
            for part, code in enumerate(q):
                numbers[128 * n + 32 * part + k] = d * scales[i + 2 * part] * (code - 32)
    return numbers


def q8_0(block: bytes) -> list[float]:
    return [half(block[:2]) * code for code in struct.unpack("32b", block[2:])]


BLOCKS = {2: (q4_0, 32, [0]), 8: (q8_0, 32, [0]), 12: (q4_k, 256, [0, 2]), 13: (q5_k, 256, [0, 2]),
          14: (q6_k, 256, [208])}  # fmt: skip
"""Formula, numbers of a block, and places of its scales in fp16, by the number of the type."""


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks(tmp_path: Path, kind: int) -> None:
    formula, numbers, halves = BLOCKS[kind]
    random, size, rows = np.random.default_rng(kind), TYPES[kind].size, 3
    blocks = [bytearray(random.integers(0, 256, size, np.uint8).tobytes()) for _ in range(2 * rows)]
    for block in blocks:
        for place in halves:
            block[place : place + 2] = np.float16(random.normal()).tobytes()
    expected = [number for block in blocks for number in formula(bytes(block))]
    tensor = (kind, (rows, 2 * numbers), b"".join(map(bytes, blocks)))
    path = written.write_gguf(tmp_path / "m.gguf", {}, {"w": tensor})
    found = read_gguf(path).tensors["w"]
    assert found.shape == (rows, 2 * numbers)
    torch.testing.assert_close(found.flatten(), torch.tensor(expected), rtol=1e-6, atol=1e-6)
    theirs = pytest.importorskip("transformers.integrations.gguf.dequant")  # of recent versions
    codes = torch.tensor(list(tensor[2]), dtype=torch.uint8)
    torch.testing.assert_close(found.flatten(), theirs.dequantize(codes, kind).flatten())


def test_metadata_and_plain_tensors(tmp_path: Path) -> None:
    metadata = {
        "a": 7, "b": "ä", "c": [1.5, 2.5], "d": ["x", "yz"], "general.alignment": 32, "e": True,
    }  # fmt: skip
    tensors = {
        str(dtype): torch.arange(6, dtype=dtype).view(2, 3)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    }
    content = {name: written.plain(tensor) for name, tensor in tensors.items()}
    found = read_gguf(written.write_gguf(tmp_path / "m.gguf", metadata, content))
    assert found.metadata == metadata
    for name, tensor in tensors.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    path = written.write_gguf(tmp_path / "m.gguf", {}, {"w": (11, (256,), b"\0" * 110)})
    with refused():
        read_gguf(path)


def test_damage_is_reported(tmp_path: Path) -> None:
    """A file cut or changed anywhere gives a sentence, and never another error."""
    path = written.write_gguf(
        tmp_path / "m.gguf", {"a": ["x"], "b": 1.0}, {"w": written.plain(torch.ones(4, 8))}
    )
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises((RunError, SetpointError)):
            read_gguf(path)
    random = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(whole)
        changed[random.integers(0, len(whole) - 128)] = random.integers(0, 256)
        path.write_bytes(changed)
        with suppress(RunError, SetpointError):
            read_gguf(path)
