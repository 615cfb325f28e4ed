import pytest
import torch

from setpoint.config import SetpointError
from setpoint.model.attention.attention import attention_context
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.rope.config import LinearScaling
from setpoint.model.rope.rotation import rotation

from ..small import small_config
from .small import SLIDING, latent_config

TOKENS = torch.zeros(2, 9, dtype=torch.int64)


def test_positions_count_up_or_go_on():
    context = attention_context(small_config(), TOKENS)
    assert context.positions.tolist() == list(range(9))
    cache = KeyValueCache()
    attention_context(small_config(), TOKENS, cache=cache)
    context = attention_context(small_config(), TOKENS[:, :2], cache=cache)
    assert context.positions.tolist() == [9, 10]
    given = torch.arange(18).view(2, 9)
    assert attention_context(small_config(), TOKENS, given).positions is given


def test_only_kinds_that_the_model_has_are_prepared():
    both = {**SLIDING, "attention_pattern": ("full", "sliding")}
    assert attention_context(small_config(), TOKENS).views.keys() == {"full"}
    assert attention_context(small_config(**SLIDING), TOKENS).views.keys() == {"sliding"}
    assert attention_context(small_config(**both), TOKENS).views.keys() == {"full", "sliding"}


def test_the_plain_case_makes_no_mask():
    mask = attention_context(small_config(), TOKENS).views["full"].mask
    assert (mask.is_causal, mask.mask) == (True, None)
    long = small_config(attention_pattern=("sliding",), sliding_window=9)
    mask = attention_context(long, TOKENS).views["sliding"].mask
    assert (mask.is_causal, mask.mask) == (True, None)
    mask = attention_context(small_config(), TOKENS, torch.arange(3, 12)).views["full"].mask
    assert (mask.is_causal, mask.mask) == (True, None)
    cache = KeyValueCache()
    attention_context(small_config(), TOKENS, cache=cache)
    mask = attention_context(small_config(), TOKENS[:, :1], cache=cache).views["full"].mask
    assert (mask.is_causal, mask.mask) == (False, None)


def test_kinds_share_a_rotation_unless_their_bases_differ():
    changes = {**SLIDING, "attention_pattern": ("full", "sliding")}
    scaled = {**changes, "rope_scaling": LinearScaling(factor=2.0)}
    views = attention_context(small_config(**scaled), TOKENS).views
    assert views["full"].rotation is views["sliding"].rotation
    halved = rotation(torch.arange(9), 4, 10_000.0, LinearScaling(factor=2.0))
    assert torch.equal(views["full"].rotation.cos, halved.cos)
    # A base of its own is not scaled (Gemma 3).
    views = attention_context(small_config(rope_base_sliding=50.0, **scaled), TOKENS).views
    assert torch.equal(views["full"].rotation.cos, halved.cos)
    own = rotation(torch.arange(9), 4, 50.0)
    assert torch.equal(views["sliding"].rotation.sin, own.sin)


@pytest.mark.parametrize("positions", ["learned", "none"])
def test_other_positions_do_not_turn(positions):
    context = attention_context(small_config(positions=positions), TOKENS)
    assert context.views["full"].rotation is None
    x = torch.randn(2, 9, 6, 4)
    assert context.apply_rotary(x, "full") is x


def test_latent_attention_turns_its_own_part():
    by = attention_context(latent_config(), TOKENS).views["full"].rotation
    assert by.cos.shape == (9, 1, 4)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"positions": torch.arange(8)}, r"positions have shape \(8,\); tokens need \(2, 9\) or"),
        ({"documents": torch.arange(9)}, r"documents have shape \(9,\); tokens need \(2, 9\)$"),
        ({"positions": torch.arange(9) - 1}, "must not be negative; give padding by"),
    ],
)
def test_places_that_do_not_fit_are_refused(places, message):
    with pytest.raises(ValueError, match=message):
        attention_context(small_config(), TOKENS, **places)


def test_a_backend_that_is_not_here_is_refused_at_once():
    config = small_config(attention_backend="varlen", head_dim=8)
    with pytest.raises(SetpointError, match="varlen: it needs a GPU"):
        attention_context(config, TOKENS)


def test_engines_that_cast_inputs_leave_rotations_alone():
    from torch.utils._pytree import tree_leaves

    context = attention_context(small_config(), TOKENS)
    assert tree_leaves(context) == [context]
