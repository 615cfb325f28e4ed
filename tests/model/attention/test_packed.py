import pytest
import torch

from setpoint.config import SetpointError
from setpoint.model.attention.packed import attend_packed, pack

from .layouts import BATCH, DOCUMENTS, LAYOUTS, LENGTH, layout


@pytest.mark.parametrize(
    ("name", "queries", "keys"),
    [
        ("plain", [11, 11], [11, 11]),
        ("shifted", [11, 11], [11, 11]),
        ("documents", [3, 5, 3, 6, 5], [3, 5, 3, 6, 5]),
        ("left padding", [11, 8], [11, 8]),
        ("right padding", [7, 11], [7, 11]),
        ("padding and documents", [3, 4, 6, 5], [3, 4, 6, 5]),
        ("last one", [1, 1], [11, 11]),
        ("last four, left padding", [4, 4], [11, 8]),
        ("last four, documents", [0, 1, 3, 0, 4], [3, 5, 3, 6, 5]),
        ("last six, right padding", [2, 6], [7, 11]),
    ],
)
def test_lengths(name, queries, keys):
    packed = pack(LAYOUTS[name], None)
    assert packed.query_starts.diff().tolist() == queries
    assert packed.key_starts.diff().tolist() == keys
    assert (packed.longest_query, packed.longest_key) == (max(queries), max(keys))
    assert packed.query_starts[0] == packed.key_starts[0] == 0
    assert packed.query_starts.dtype == packed.key_starts.dtype == torch.int32


def test_nothing_is_gathered_without_padding():
    for name, places in LAYOUTS.items():
        packed = pack(places, None)
        assert (packed.queries is not None) == places.padded, name
        assert (packed.keys is not None) == places.padded, name


def test_windows_count_what_lies_before():
    assert pack(LAYOUTS["plain"], None).window == (-1, 0)
    assert pack(LAYOUTS["plain"], 1).window == (0, 0)
    assert pack(LAYOUTS["documents, positions anew"], 4).window == (3, 0)


def test_padding_gives_zeros_and_takes_no_gradient():
    places = LAYOUTS["left padding"]
    x = torch.randn(BATCH, LENGTH, 2, 3, requires_grad=True)
    mixed = attend_packed(lambda q, k, v: q + k + v, x, x, x, pack(places, None))
    assert torch.equal(mixed[0], 3 * x[0])
    assert not mixed[1, :3].any()
    mixed.sum().backward()
    assert (x.grad[1, :3] == 0).all()
    assert (x.grad[1, 3:] == 3).all()


def test_documents_in_pieces_are_refused():
    torn = DOCUMENTS.clone()
    torn[0, -1] = 0
    with pytest.raises(SetpointError, match="5 documents are in 6; use sdpa or flex"):
        pack(layout(documents=torn), None)


@pytest.mark.parametrize("padded", [False, True])
def test_windows_over_gaps_are_refused(padded):
    positions = torch.arange(LENGTH)[None] * 2
    places = layout(positions=positions, padded=padded)
    assert pack(places, None).window == (-1, 0)
    with pytest.raises(SetpointError, match="positions must follow on each other"):
        pack(places, 3)
