"""Attention whose sequences several ranks divide: the same as that of one, forward and backward."""

from typing import Any

import pytest
import torch

from setpoint.model.attention import blocks
from setpoint.model.attention.attention import attention_context
from setpoint.model.attention.backends import RowLayout
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.attention.over_ranks import causal_plan, masked_plan
from setpoint.shapes.batch import IGNORE_INDEX, Batch, ContextGroups, Count, SequenceParts, Split

from ...support.forks import forked
from ...support.snapshots import refused
from ..small import small_config
from .over_ranks import sequences_mask

CPU = torch.device("cpu")


def compare(*arguments: str) -> None:
    said = forked("tests.model.attention.over_ranks", *arguments)
    assert said.count("equal") == len(arguments) // 3


def test_two_ranks_attend_as_one_does_in_fp64() -> None:
    compare("2", "2", "1", "zigzag", "2", "1", "contiguous", "1", "2", "zigzag")


@pytest.mark.slow
def test_four_ranks_attend_as_one_does_in_fp64() -> None:
    shapes = ("4 1 zigzag", "4 1 contiguous", "1 4 zigzag", "2 2 zigzag", "2 2 contiguous")
    compare("4", *" ".join(shapes).split())


@pytest.mark.parametrize("split", ["zigzag", "contiguous"])
def test_the_parts_of_all_ranks_are_the_sequence(split: Split) -> None:
    places = torch.arange(24)[None]
    for ring, ulysses in ((2, 1), (3, 2), (1, 4)):
        ranks = [(r, u) for r in range(ring) for u in range(ulysses)]
        parts = [SequenceParts(ring, ulysses, *rank, split).take(places) for rank in ranks]
        assert sorted(torch.cat(parts, 1)[0].tolist()) == list(range(24))
        assert {part.shape for part in parts} == {(1, 24 // (ring * ulysses))}


def test_a_zigzag_gives_all_ranks_as_much_to_do() -> None:
    def work(split: Split) -> list[int]:
        return [
            sum(
                (block.queries.stop - block.queries.start)
                * (block.keys.stop - block.keys.start)
                // (1 + block.mask.causal)
                for blocks in causal_plan(SequenceParts(4, 1, rank, 0, split), 64)
                for block in blocks
            )
            for rank in range(4)
        ]

    assert len(set(work("zigzag"))) == 1
    assert work("contiguous")[0] < work("contiguous")[3]


def test_what_no_query_sees_is_not_computed() -> None:
    parts = SequenceParts(4, 1, 3, 0, "contiguous")

    def sources(window: int | None, **more: Any) -> list[int]:
        layout = RowLayout(queries=32, keys=32, batch=1, device=CPU, **more)
        plan = masked_plan(parts, layout, window)
        return [source for source in range(4) if plan[source]]

    assert sources(9) == [2, 3]
    assert sources(10) == [1, 2, 3]
    assert sources(None, documents=torch.arange(32)[None] // 16) == [2, 3]
    # What is seen whole needs no mask.
    layout = RowLayout(queries=32, keys=32, batch=1, device=CPU, documents=torch.zeros(1, 32))
    assert [block.mask.visible for block in masked_plan(parts, layout, None)[0]] == [None]


def test_rows_that_do_not_divide_are_padded() -> None:
    tokens = torch.arange(2 * 10).view(2, 10)
    batch = Batch(tokens, tokens + 1, 20, 20, 20, documents=torch.zeros(2, 10, dtype=torch.int64))
    parts = [SequenceParts(2, 1, rank, 0, "zigzag") for rank in range(2)]
    first, second = (each.cut(batch) for each in parts)
    assert first.inputs.tolist() == [[0, 1, 2, 9, 0, 0], [10, 11, 12, 19, 0, 0]]
    assert second.targets.tolist()[0] == [4, 5, 6, 7, 8, 9]
    assert first.targets.tolist()[0] == [1, 2, 3, 10, IGNORE_INDEX, IGNORE_INDEX]
    assert first.positions is not None and first.documents is not None
    assert first.positions[0].tolist() == [*range(10), -1, -1]
    assert second.positions is not None and second.positions.equal(first.positions)
    assert first.documents[0].tolist() == [0] * 10 + [-1] * 2
    valid = torch.ones(2, 10, dtype=torch.bool)
    part = parts[0].take_valid(Count(20, 20, 20.0, valid))
    assert part is not None and part.tolist() == [[True] * 4 + [False] * 2] * 2


def test_a_part_of_a_sequence_takes_no_cache() -> None:
    config = small_config()
    groups = ContextGroups(SequenceParts(2))
    with refused(ValueError):
        attention_context(config, torch.zeros(1, 4), cache=KeyValueCache(), groups=groups)


def test_kernels_of_gpus_take_what_they_are_given() -> None:
    """Their operators, called on tensors without data: no GPU is needed for that."""

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    query, key = meta(2, 4, 40, 16), meta(2, 4, 24, 16)
    lse = meta(2, 4, 40, dtype=torch.float32)
    masked = blocks.BlockMask(visible=meta(2, 1, 40, 24, dtype=torch.bool))
    left = blocks.BlockMask(left=3)
    for kernel, mask in (
        (blocks._FLASH, blocks.UNMASKED),
        (blocks._EFFICIENT, masked),
        (blocks._CUDNN, masked),
        (blocks.SEQUENCES, left),
    ):
        out, found = kernel.forward(blocks.Inputs(query, key, key, mask, 0.5))
        assert out.shape == query.shape and found.shape[:2] == lse.shape[:2]
        assert found.shape[2] >= lse.shape[2]
        grads = kernel.backward(blocks.Inputs(query, key, key, mask, 0.5), query, out, lse)
        assert [each.shape for each in grads] == [query.shape, key.shape, key.shape]
    starts = blocks.BlockMask(True, None, 3, meta(5, dtype=torch.int32), 32)
    inputs = blocks.Inputs(query, query, query, starts, 0.5)
    out, found = blocks.SEQUENCES.forward(inputs)
    assert (out.shape, found.shape) == (query.shape, lse.shape)
    grads = blocks.SEQUENCES.backward(inputs, query, out, lse)
    assert [each.shape for each in grads] == [query.shape] * 3


CUDA = pytest.mark.cuda
STARTS = torch.tensor([0, 20, 40, 72, 80], dtype=torch.int32)


@pytest.mark.parametrize(
    ("kernel", "device", "mask"),
    [
        ("sdpa", "cpu", blocks.CAUSAL),
        pytest.param("sdpa", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("sdpa_cudnn", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("sdpa_cudnn", "cuda", blocks.UNMASKED, marks=CUDA),
        pytest.param("sdpa_efficient", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("varlen", "cuda", blocks.CAUSAL, marks=CUDA),
        pytest.param("varlen", "cuda", blocks.BlockMask(left=3), marks=CUDA),
        pytest.param("varlen", "cuda", blocks.BlockMask(True, None, 3, STARTS, 32), marks=CUDA),
    ],
)
def test_a_block_by_each_kernel(kernel: Any, device: str, mask: blocks.BlockMask) -> None:
    """Output, lse and gradients in bf16 against plain operations in fp32."""
    torch.manual_seed(0)
    half = torch.bfloat16 if device == "cuda" else torch.float32
    if mask.starts is not None:
        mask = mask._replace(starts=mask.starts.to(device))
    query, grad = (torch.randn(2, 4, 40, 16, device=device, dtype=half) for _ in range(2))
    key, value = (torch.randn(2, 2, 40, 16, device=device, dtype=half) for _ in range(2))
    plain = blocks.BlockMask(visible=sequences_mask(query, key, mask))
    results: list[list[torch.Tensor]] = []
    for name, hidden in ((kernel, mask), ("eager", plain)):
        scores = blocks.BlockScores(0.25, None, name)
        out, lse = blocks.attend_block(query, key, value, scores, hidden)
        given = (grad, query, key, value, out.to(half), lse.float())
        results.append([out, lse, *blocks.block_gradients(*given, scores, hidden)])
    tolerance = 3e-2 if device == "cuda" else 1e-4
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), reference.float(), rtol=tolerance, atol=tolerance)
