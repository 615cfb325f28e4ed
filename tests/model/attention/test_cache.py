import pytest
import torch

from setpoint.model.attention.attention import attention_context
from setpoint.model.attention.key_value_cache import ROOM, KeyValueCache

from ...support.cases import pairs
from ...support.snapshots import refused
from ..small import small_config
from .layouts import ANEW, BATCH, CPU, DOCUMENTS, LEFT_PADDED, LENGTH, RIGHT_PADDED
from .small import CONFIGS, small_attention

PIECES = {
    "one by one": [1] * LENGTH,
    "a prompt, then one by one": [6, 1, 1, 1, 1, 1],
    "chunks": [4, 4, 3],
    "at once": [11],
}


def pieces_through(attention, config, x, sizes, positions=None, documents=None):
    """The results of each piece, with a cache between them."""
    cache, results, start = KeyValueCache(), [], 0
    for size in sizes:
        part = slice(start, start + size)
        at = positions if positions is None else positions[..., part]
        within = documents if documents is None else documents[:, part]
        context = attention_context(config, x[:, part], at, within, cache)
        results.append(attention(x[:, part], context))
        start += size
    return torch.cat(results, dim=1), cache


PLACES = {
    "plain": {},
    "shifted": {"positions": torch.arange(30, 30 + LENGTH)},
    "left padding": {"positions": LEFT_PADDED},
    "right padding": {"positions": RIGHT_PADDED},
    "documents": {"documents": DOCUMENTS},
    "anew": {"documents": DOCUMENTS, "positions": ANEW},
}


@pytest.mark.parametrize(("name", "pieces", "where"), pairs(CONFIGS, PIECES, PLACES))
@torch.inference_mode()
def test_pieces_equal_the_whole(name, pieces, where):
    config, sizes, places = CONFIGS[name], PIECES[pieces], PLACES[where]
    attention = small_attention(config)
    x = torch.randn(BATCH, LENGTH, config.dim)
    whole = attention(x, attention_context(config, x, **places))
    pieces, cache = pieces_through(attention, config, x, sizes, **places)
    positions = places.get("positions", torch.zeros(LENGTH))
    counts = (positions >= 0).expand(BATCH, -1)
    torch.testing.assert_close(pieces[counts], whole[counts], rtol=1e-4, atol=1e-5)
    assert cache.length == LENGTH


@pytest.mark.parametrize("backend", ["eager", "sdpa", "sdpa_math"])
@torch.inference_mode()
def test_each_backend_goes_on_from_a_cache(backend):
    config = small_config(attention_backend=backend)
    attention = small_attention(config)
    x = torch.randn(BATCH, LENGTH, config.dim)
    whole = attention(x, attention_context(config, x, LEFT_PADDED))
    pieces, _ = pieces_through(attention, config, x, [5, 3, 1, 1, 1], LEFT_PADDED)
    counts = LEFT_PADDED >= 0
    torch.testing.assert_close(pieces[counts], whole[counts], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["sliding", "chunked"])
@torch.inference_mode()
def test_layers_with_a_window_or_chunks_keep_what_is_visible(name):
    config = CONFIGS[name]
    attention = small_attention(config)
    cache = KeyValueCache()
    x = torch.randn(1, 10 * ROOM, config.dim)
    for step in range(x.shape[1]):
        part = x[:, step : step + 1]
        attention(part, attention_context(config, part, cache=cache))
    kept, _ = cache.append(0, (x[:, :0, None, :4], x[:, :0, None, :4]), cache.length - 3)
    assert kept.shape[1] == 3
    # The memory is moved now and then, and does not grow with the text.
    assert cache.layers[0].room == ROOM
    whole = attention(x, attention_context(config, x))
    again = attention(part, attention_context(config, part, cache=KeyValueCache()))
    assert not torch.allclose(whole[:, -1:], again, atol=1e-4)


@torch.inference_mode()
def test_latent_attention_keeps_latents():
    config = CONFIGS["latent"]
    attention = small_attention(config)
    x = torch.randn(1, 7, config.dim)
    _, cache = pieces_through(attention, config, x, [5, 1, 1])
    latent, turned = cache.append(0, (torch.empty(1, 0, 10), torch.empty(1, 0, 1, 4)), 0)
    assert latent.shape == (1, 7, 10)
    assert turned.shape == (1, 7, 1, 4)


@torch.inference_mode()
def test_rows_can_be_selected():
    config = small_config()
    attention = small_attention(config)
    x = torch.randn(BATCH, LENGTH, config.dim)
    whole, cache = pieces_through(attention, config, x[:, :8], [8], LEFT_PADDED[:, :8])
    whole = attention(x, attention_context(config, x, LEFT_PADDED))
    cache.select(torch.tensor([1]))
    rest = attention(
        x[1:, 8:], attention_context(config, x[1:, 8:], LEFT_PADDED[1:, 8:], None, cache)
    )
    torch.testing.assert_close(rest, whole[1:, 8:], rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_the_cache_is_refused():
    cache = KeyValueCache()
    cache.extend((2, 3), CPU, None, None)
    with refused(ValueError):
        cache.extend((3, 1), CPU, None, None)
    with refused(ValueError):
        cache.extend((2, 1), CPU, None, torch.zeros(2, 1))
    assert cache.length == 3


def test_positions_cannot_go_back_behind_a_window():
    cache = KeyValueCache()
    cache.trim(cache.extend((1, 9), CPU, torch.arange(9), None), "sliding", 3)
    layout = cache.extend((1, 1), CPU, torch.tensor([9]), None)
    assert cache.trim(layout, "sliding", 3) == 7
    assert cache.trim(layout, "chunked", 4) == 8
    layout = cache.extend((1, 1), CPU, torch.tensor([5]), None)
    with refused(ValueError):
        cache.trim(layout, "sliding", 3)
    with refused(ValueError):
        cache.trim(layout, "chunked", 4)


def test_gradients_are_refused():
    config = small_config()
    x = torch.randn(1, 3, config.dim)
    with refused(ValueError):
        small_attention(config)(x, attention_context(config, x, cache=KeyValueCache()))
