import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.model.attention.attention import (
    Attention,
    LatentAttention,
    attention_context,
    rotation,
)
from setpoint.model.attention.config import LinearScaling
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.initialize import initialize

from ...support.snapshots import refused
from ..small import small_config
from .small import CONFIGS, SLIDING, latent_config, small_attention


def make(layer: int = 0, **changes) -> Attention:
    attention = Attention(small_config(**changes), layer)
    initialize(attention, 1)
    return attention


def run(attention: Attention, x: torch.Tensor, at=None, **changes) -> torch.Tensor:
    return attention(x, attention_context(small_config(**changes), x, at))


def test_the_plain_case_is_one_call_of_pytorch_bit_for_bit():
    from setpoint.model.attention.attention import rotate, rotation

    config, attention = small_config(), make()
    x = torch.randn(2, 9, config.dim)
    query, key, value = (
        part(x).unflatten(-1, (-1, config.head_dim))
        for part in (attention.query, attention.key, attention.value)
    )
    by = rotation(torch.arange(9), config.head_dim, config.rope_base)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        rotate(query, by).transpose(1, 2),
        rotate(key, by).transpose(1, 2),
        value.transpose(1, 2),
        is_causal=True,
        enable_gqa=True,
    )
    assert torch.equal(run(attention, x), attention.output(mixed.transpose(1, 2).flatten(2)))


def test_weights_are_dropped_in_training_alone():
    x = torch.randn(2, 9, 24)
    attention = make(attention_dropout=0.5)
    torch.manual_seed(0)
    dropped = run(attention, x)
    assert not torch.allclose(dropped, run(attention, x), atol=1e-3)
    assert torch.equal(run(attention.eval(), x), run(make(), x))


def test_the_softmax_is_computed_in_fp32():
    """Its result is what the backward pass multiplies by; in bf16 that would be rounded."""
    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if "softmax" in str(func):
                seen.add(result.dtype)
            return result

    attention = make(attention_backend="eager").to(torch.bfloat16)
    x = torch.randn(1, 6, small_config().dim, dtype=torch.bfloat16)
    with Watch():
        assert run(attention, x, attention_backend="eager").dtype == torch.bfloat16
    assert seen == {torch.float32}


def deepseek_attention(query_rank):
    """Attention of transformers, its rotations, and the same weights as ours has them."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    config = DeepseekV3Config(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=6,
        q_lora_rank=query_rank,
        kv_lora_rank=10,
        qk_rope_head_dim=4,
        qk_nope_head_dim=6,
        v_head_dim=5,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
    )
    attention = deepseek.DeepseekV3Attention(config, 0)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0, 0.3)
    weights = {name: tensor.clone() for name, tensor in attention.state_dict().items()}
    state = {
        "key_value_down.weight": halves(weights["kv_a_proj_with_mqa.weight"], heads=1),
        "key_value_down_norm.weight": weights["kv_a_layernorm.weight"],
        "key_value_up.weight": weights["kv_b_proj.weight"],
        "output.weight": weights["o_proj.weight"],
    }
    if query_rank is None:
        state["query.weight"] = halves(weights["q_proj.weight"], heads=6)
    else:
        state["query_down.weight"] = weights["q_a_proj.weight"]
        state["query_down_norm.weight"] = weights["q_a_layernorm.weight"]
        state["query_up.weight"] = halves(weights["q_b_proj.weight"], heads=6)
        attention.q_a_layernorm.variance_epsilon = 1e-5
    attention.kv_a_layernorm.variance_epsilon = 1e-5
    return attention, deepseek.DeepseekV3RotaryEmbedding(config), state


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """DeepSeek turns neighbours, the last four rows of a head; ours turns halves."""
    weight = weight.unflatten(0, (heads, -1)).clone()
    turned = weight[:, -4:]
    weight[:, -4:] = torch.cat((turned[:, 0::2], turned[:, 1::2]), dim=1)
    return weight.flatten(0, 1)


@pytest.mark.parametrize("query_rank", [None, 7])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_against_transformers(query_rank, backend):
    torch.manual_seed(0)
    theirs, rotary, state = deepseek_attention(query_rank)
    config = latent_config(query_rank=query_rank, attention_backend=backend)
    ours = LatentAttention(config, 0)
    ours.load_state_dict(state)
    x, grad = torch.randn(2, 9, 24), torch.randn(2, 9, 24)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    expected, _ = theirs(one, rotary(one, torch.arange(9)[None]), mask)
    mixed = ours(other, attention_context(config, other))
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)
    expected.backward(grad)
    mixed.backward(grad)
    torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_one_token_meets_latents_with_the_same_result():
    """A piece of one token is computed another way than a piece of several."""
    config = CONFIGS["latent"]
    attention = small_attention(config)
    x = torch.randn(2, 9, 24)
    whole = attention(x, attention_context(config, x))
    cache = KeyValueCache()
    attention(x[:, :8], attention_context(config, x[:, :8], cache=cache))
    attention.key_value_up.register_forward_hook(lambda *_: pytest.fail("expanded all keys"))
    last = attention(x[:, 8:], attention_context(config, x[:, 8:], cache=cache))
    torch.testing.assert_close(last, whole[:, 8:], rtol=1e-4, atol=1e-5)


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


def test_places_that_do_not_fit_are_refused():
    for places in (
        {"positions": torch.arange(8)},
        {"documents": torch.arange(9)},
        {"positions": torch.arange(9) - 1},
    ):
        with refused(ValueError):
            attention_context(small_config(), TOKENS, **places)


def test_a_backend_that_is_not_here_is_refused_at_once():
    config = small_config(attention_backend="varlen", head_dim=8)
    with refused():
        attention_context(config, TOKENS)


def test_engines_that_cast_inputs_leave_rotations_alone():
    from torch.utils._pytree import tree_leaves

    context = attention_context(small_config(), TOKENS)
    assert tree_leaves(context) == [context]
