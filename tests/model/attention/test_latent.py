import pytest
import torch

from setpoint.model.attention.attention import LatentAttention, attention_context
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.initialize import initialize

from .small import CONFIGS, latent_config, small_attention


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


@pytest.mark.parametrize("changes", [{"attention_soft_cap": 1.0}, {"attention_scale": 2.0}])
def test_options_count(changes):
    config, plain = latent_config(**changes), latent_config()
    x = torch.randn(2, 9, 24)
    results = [small_attention(c)(x, attention_context(c, x)) for c in (config, plain)]
    assert not torch.allclose(*results, atol=1e-3)


def test_the_output_may_have_a_bias_and_weights_are_dropped():
    config = latent_config(attention_output_bias=True, attention_dropout=0.5)
    attention = small_attention(config)
    assert not attention.output.bias.any()
    x = torch.randn(2, 9, 24)
    context = attention_context(config, x)
    assert not torch.allclose(attention(x, context), attention(x, context), atol=1e-3)
    assert torch.equal(attention.eval()(x, context), attention(x, context))


def test_initialization():
    attention = LatentAttention(latent_config(query_rank=40), 0)
    initialize(attention, 1)
    for name, parameter in attention.named_parameters():
        if parameter.ndim == 2:
            # Four layers have eight outputs that write to the residual stream.
            std = 0.2 / 8**0.5 if name == "output.weight" else 0.2
            assert parameter.std().item() == pytest.approx(std, rel=0.2), name
        else:
            assert (parameter == 1).all(), name
