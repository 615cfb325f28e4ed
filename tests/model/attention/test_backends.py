"""Every backend against eager, forward and backward; those for GPUs by what they hand over."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from setpoint.model.attention.backends import SDPA, Eager, RowLayout, Scores, visible
from setpoint.model.attention.choose_backend import make_backend, unavailable_reason
from setpoint.model.attention.varlen import Flash, Varlen
from setpoint.shapes.batch import Lengths

from ...support.cases import pairs
from . import kernels
from .layouts import BATCH, LAYOUTS, LENGTH, counting

BACKENDS = {
    "sdpa": SDPA("sdpa"),
    "sdpa_flash": SDPA("sdpa_flash"),
    "sdpa_math": SDPA("sdpa_math"),
    "varlen": Varlen(kernels.varlen_attn),
    "flash_attention_2": Flash(2, kernels.flash_attn_varlen_func),
}


def draw(heads=4, kv_heads=2, queries=LENGTH, size=8, value_size=8, dtype=torch.float32, grad=True):
    torch.manual_seed(0)
    shapes = ((queries, heads, size), (LENGTH, kv_heads, size), (LENGTH, kv_heads, value_size))
    return [torch.randn(BATCH, *s, dtype=dtype).requires_grad_(grad) for s in shapes]


def compare(backend, places, window=None, *, inputs, atol=1e-5, **options):
    """Hold output and gradients against eager in fp32, where queries are not padding."""
    weights = torch.randn(inputs[0].shape[:3], dtype=torch.float32).unsqueeze(-1).to(places.device)
    weights = weights * counting(places)[:, :, None, None]
    exact = [x.detach().float().requires_grad_(x.requires_grad) for x in inputs]
    results = []
    for attend, given in ((backend, inputs), (Eager(), exact)):
        mixed = attend.attend(*given, attend.prepare_mask(places, window), Scores(**options))
        found = [(mixed * weights).float()]
        if given[0].requires_grad:
            found += torch.autograd.grad(found[0].sum(), given)
        results.append(found)
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), reference.float(), rtol=atol, atol=atol)


@pytest.mark.parametrize(("layout", "name", "window"), pairs(LAYOUTS, BACKENDS, [None, 4]))
def test_masks(layout, name, window):
    places = LAYOUTS[layout]
    compare(BACKENDS[name], places, window, inputs=draw(queries=places.queries))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", BACKENDS)
def test_groups_of_heads(name, kv_heads):
    compare(BACKENDS[name], LAYOUTS["plain"], inputs=draw(kv_heads=kv_heads))


@pytest.mark.parametrize("name", BACKENDS)
def test_scale(name):
    compare(BACKENDS[name], LAYOUTS["plain"], inputs=draw(), scale=0.7)


@pytest.mark.parametrize("window", [None, 4])
def test_soft_cap_of_the_flash_package(window):
    backend = BACKENDS["flash_attention_2"]
    compare(backend, LAYOUTS["documents"], window, inputs=draw(), soft_cap=0.5)


@pytest.mark.parametrize("layout", ["plain", "documents"])
@pytest.mark.parametrize("name", ["sdpa", "sdpa_flash", "sdpa_math"])
def test_bf16(name, layout):
    inputs = draw(dtype=torch.bfloat16)
    compare(BACKENDS[name], LAYOUTS[layout], inputs=inputs, atol=3e-2)


@pytest.mark.parametrize("name", ["sdpa", "sdpa_math"])
def test_values_of_another_size(name):
    compare(BACKENDS[name], LAYOUTS["documents"], inputs=draw(value_size=6))


@pytest.mark.parametrize(
    "layout", ["plain", "right padding", "last four, documents", "last four, chunks"]
)
def test_flex(layout):
    places = LAYOUTS[layout]
    inputs = draw(queries=places.queries, size=16, value_size=16, grad=False)
    compare(make_backend("flex"), places, 4, inputs=inputs, soft_cap=0.5, scale=0.7)


@pytest.mark.parametrize("name", ["eager", "sdpa", "sdpa_math"])
def test_weights_are_dropped(name):
    backend = make_backend(name)
    query, key, value = draw(grad=False)
    value = torch.ones_like(value)
    seen = backend.prepare_mask(LAYOUTS["plain"], None)
    torch.manual_seed(1)
    mixed = backend.attend(query, key, value, seen, Scores(dropout=0.5))
    # The weights of a row sum to one, and what is kept counts twice.
    assert mixed.mean().item() == pytest.approx(1.0, abs=0.2)
    assert mixed.std().item() > 0.2
    whole = backend.attend(query, key, value, seen)
    torch.testing.assert_close(whole, torch.ones_like(whole))


def test_eager_against_one_query_at_a_time():
    query, key, value = (x.double() for x in draw(grad=False))
    places = LAYOUTS["right padding"]
    seen = Eager().prepare_mask(places, 4)
    mixed = Eager().attend(query, key, value, seen, Scores(0.7, 0.5))
    for row in range(BATCH):
        for s in range(LENGTH):
            for head in range(4):
                others = [t for t in range(LENGTH) if seen[row, 0, s, t]]
                scores = [0.7 * query[row, s, head] @ key[row, t, head // 2] for t in others]
                shares = (0.5 * torch.tanh(torch.stack(scores) / 0.5)).softmax(0)
                expected = sum(
                    share * value[row, t, head // 2]
                    for share, t in zip(shares, others, strict=True)
                )
                torch.testing.assert_close(mixed[row, s, head], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("layout", ["plain", "documents", "padding and documents"])
@pytest.mark.parametrize(
    "name",
    [
        "sdpa", "sdpa_efficient", "sdpa_cudnn", "flex", "varlen", "flash_attention_2",
        "flash_attention_3", "flash_attention_4",
    ],
)  # fmt: skip
def test_kernels_of_a_gpu(name, layout, window):
    if (reason := unavailable_reason(name, "cuda")) is not None:
        pytest.skip(reason)
    device, places = torch.device("cuda"), LAYOUTS[layout]
    moved = {
        part: None if (tensor := getattr(places, part)) is None else tensor.to(device)
        for part in ("positions", "documents")
    }
    places = replace(places, device=device, **moved)
    inputs = draw(size=64, value_size=64, dtype=torch.bfloat16)
    inputs = [x.detach().to(device).requires_grad_() for x in inputs]
    compare(make_backend(name), places, window, inputs=inputs, atol=3e-2)


@pytest.mark.parametrize("window", [None, 4])
def test_sinks_take_their_share_of_the_weights(window):
    """By the log of the sums of exponentials, as eager does by a column for them."""
    sinks = torch.tensor([-1.0, 0.0, 1.0, 4.0])
    inputs = draw(size=16, value_size=16, grad=False)
    compare(make_backend("flex"), LAYOUTS["documents"], window, inputs=inputs, sinks=sinks)


def test_chunks_are_documents_to_kernels_of_lengths():
    """Those of each document begin with it, in lengths of the host as in the mask."""
    numbers = torch.tensor([[0] * 4 + [1] * 7, [0] * 8 + [-1] * 3])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6], [*range(8), -1, -1, -1]])
    lengths = Lengths.of_runs(numbers.numpy())
    whole = RowLayout(LENGTH, LENGTH, BATCH, numbers.device, positions, True, numbers, lengths)
    places = whole.chunked(3)
    assert places.lengths is not None
    assert places.lengths.starts.tolist() == [0, 3, 4, 7, 10, 11, 14, 17, 19, 22]
    compare(BACKENDS["varlen"], places, inputs=draw())
    alone = visible(places, None)[0, 0]
    assert alone[3].nonzero().flatten().tolist() == [3]
    assert alone[9].nonzero().flatten().tolist() == [7, 8, 9]


def test_a_query_sees_its_chunk():
    numbers = torch.arange(LENGTH)
    allowed = (numbers[:, None] // 4 == numbers // 4) & (numbers <= numbers[:, None])
    assert torch.equal(visible(LAYOUTS["chunks"], None)[0, 0], allowed)
    assert LAYOUTS["plain"].chunked(LENGTH) is LAYOUTS["plain"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_pair_by_itself(name):
    places = LAYOUTS[name]
    for window in (None, 1, 3, 20):
        mask = visible(places, window).expand(BATCH, 1, -1, -1)
        assert mask.shape == (BATCH, 1, places.queries, LENGTH)
        for row, s, other in product(range(BATCH), range(places.queries), range(LENGTH)):
            assert bool(mask[row, 0, s, other]) == sees(places, row, s, other, window)


def sees(places, row, s, other, window) -> bool:
    at = LENGTH - places.queries + s
    if places.positions is None:
        positions = list(range(LENGTH))
    else:
        positions = places.positions.expand(BATCH, -1)[row].tolist()
    if at == other:
        return True
    if other > at or positions[other] < 0:
        return False
    if window is not None and positions[at] - positions[other] >= window:
        return False
    if places.documents is None:
        return True
    documents = places.documents.expand(BATCH, -1)
    return bool(documents[row, at] == documents[row, other])


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_needs_no_mask_is_as_if_it_had_one(name):
    places = LAYOUTS[name]
    for window in (None, 1, 3, 20):
        mask = visible(places, window)
        if places.is_causal(window):
            assert torch.equal(mask[0, 0], torch.ones(LENGTH, LENGTH).tril().bool())
        if places.queries == 1 and not places.is_masked(window):
            assert mask.all()


def test_the_common_cases_need_no_mask():
    assert LAYOUTS["plain"].is_causal(None)
    assert LAYOUTS["plain"].is_causal(LENGTH)
    assert LAYOUTS["shifted"].is_causal(None)
    assert not LAYOUTS["plain"].is_causal(LENGTH - 1)
    assert not LAYOUTS["last one"].is_masked(None)
    assert not LAYOUTS["last one"].is_masked(LENGTH)
    assert LAYOUTS["last one"].is_masked(LENGTH - 1)


@pytest.mark.parametrize("name", ["plain", "documents, positions anew", "last four, left padding"])
def test_the_first_keys_can_be_left_out(name):
    places = LAYOUTS[name]
    for count in range(LENGTH - places.queries + 1):
        mask = visible(places.without_first(count), 4)
        assert torch.equal(mask, visible(places, 4)[..., count:])
