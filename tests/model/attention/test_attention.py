import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.model.attention.attention import Attention, attention_context
from setpoint.model.initialize import initialize

from .. import reference
from ..small import small_config


def make(layer: int = 0, **changes) -> Attention:
    attention = Attention(small_config(**changes), layer)
    initialize(attention, 1)
    return attention


def run(attention: Attention, x: torch.Tensor, at=None, **changes) -> torch.Tensor:
    return attention(x, attention_context(small_config(**changes), x, at))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("head_dim", [6, 8])
def test_against_plain_mathematics(heads, kv_heads, head_dim):
    changes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    config, attention = small_config(**changes), make(**changes)
    x = torch.randn(2, 7, config.dim)
    positions = [3, 4, 5, 6, 7, 8, 9]
    y = run(attention, x, torch.tensor(positions), **changes)
    weights = {name: tensor.double() for name, tensor in attention.state_dict().items()}
    for row in range(2):
        expected = reference.attention(config, weights, x[row].double(), positions)
        torch.testing.assert_close(y[row].double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_against_plain_mathematics():
    config, attention = small_config(), make()
    x, grad = torch.randn(1, 5, config.dim, requires_grad=True), torch.randn(1, 5, config.dim)
    run(attention, x).backward(grad)
    weights = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in attention.named_parameters()
    }
    exact = x.detach().double().requires_grad_()
    reference.attention(config, weights, exact[0], list(range(5))).backward(grad[0].double())
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)
    for name, parameter in attention.named_parameters():
        torch.testing.assert_close(
            parameter.grad.double(), weights[name].grad, rtol=1e-4, atol=1e-5
        )


def test_the_plain_case_is_one_call_of_pytorch_bit_for_bit():
    from setpoint.model.rope.rotation import rotate, rotation

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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_merged_projections_equal_separate_ones(bias, qk_norm):
    changes = {"qkv_bias": bias, "qk_norm": qk_norm}
    apart, merged = make(**changes).double(), make(merge_qkv=True, **changes).double()
    state = apart.state_dict()
    for end in ("weight", "bias"):
        parts = [state.pop(f"{name}.{end}", None) for name in ("query", "key", "value")]
        if parts[0] is not None:
            # Biases start at zero, where they would show nothing.
            parts = [part + torch.randn_like(part) for part in parts]
            state[f"query_key_value.{end}"] = torch.cat(parts)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                apart.get_parameter(f"{name}.{end}").data.copy_(part)
    merged.load_state_dict(state)
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    one = run(apart, x, **changes)
    other = run(merged, x, **changes)
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    one.square().sum().backward()
    other.square().sum().backward()
    grads = [apart.get_parameter(f"{name}.weight").grad for name in ("query", "key", "value")]
    grad = merged.query_key_value.weight.grad
    torch.testing.assert_close(torch.cat(grads), grad, rtol=1e-9, atol=1e-9)


def test_queries_and_keys_are_normalized_in_each_head_before_they_turn():
    attention = make(qk_norm=True)
    x = torch.randn(2, 9, 24)
    before = run(attention, x)
    with torch.no_grad():
        # Any scale of the projections is taken out again.
        attention.query.weight.mul_(3)
        attention.key.weight.mul_(5)
    torch.testing.assert_close(run(attention, x), before, rtol=1e-3, atol=1e-3)
    assert attention.query_norm.weight.shape == (4,)
    plain = run(make(), x)
    assert not torch.allclose(plain, before, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"qkv_bias": True}, {"query.bias", "key.bias", "value.bias"}),
        ({"qkv_bias": True, "merge_qkv": True}, {"query_key_value.bias"}),
        ({"attention_output_bias": True}, {"output.bias"}),
        ({}, set()),
    ],
)
def test_biases_start_at_zero_and_count(changes, names):
    attention = make(**changes)
    biases = {n: p for n, p in attention.named_parameters() if n.endswith("bias")}
    assert biases.keys() == names
    x = torch.randn(2, 9, 24)
    before = run(attention, x)
    for name, bias in biases.items():
        assert not bias.any()
        with torch.no_grad():
            bias.normal_()
        after = run(attention, x)
        # The same bias on all keys changes no softmax unless keys turn.
        assert not torch.equal(before, after), name
        before = after


def test_scales():
    x = torch.randn(2, 9, 24)
    plain = run(make(), x)
    assert torch.equal(run(make(attention_scale=0.5), x), plain)  # 1 / sqrt(4)
    given = run(make(attention_scale=2.0), x)
    attention = make()
    with torch.no_grad():
        attention.query.weight.mul_(4)
    torch.testing.assert_close(run(attention, x), given, rtol=1e-5, atol=1e-5)


def test_a_soft_cap_bounds_scores():
    x = torch.randn(2, 9, 24)
    capped = run(make(attention_soft_cap=1e-6), x, attention_soft_cap=1e-6)
    with torch.no_grad():
        flat = make()
        flat.query.weight.zero_()
    torch.testing.assert_close(capped, run(flat, x), rtol=1e-4, atol=1e-5)
    loose = run(make(attention_soft_cap=1e4), x, attention_soft_cap=1e4)
    torch.testing.assert_close(loose, run(make(), x), rtol=1e-4, atol=1e-4)


def test_layers_differ_by_the_pattern():
    changes = {"attention_pattern": ("sliding", "full"), "sliding_window": 3}
    x = torch.randn(1, 9, 24)
    other = x.clone()
    other[:, 0] = 1.0
    for layer, reach in ((0, 3), (1, 9)):
        attention = make(layer, **changes)
        difference = (run(attention, x, **changes) - run(attention, other, **changes)).abs()
        changed = difference.amax(dim=(0, 2)) > 1e-6
        assert changed.tolist() == [position < reach for position in range(9)]


def test_positions_need_not_turn():
    x = torch.randn(1, 9, 24)
    attention = make()
    still = run(attention, x, positions="none")
    assert torch.equal(still[:, -1], run(attention, x, torch.zeros(9, dtype=torch.int64))[:, -1])
    assert not torch.allclose(still, run(attention, x), atol=1e-3)
    # Without positions the last one sees the others as a set.
    order = torch.cat((torch.randperm(8), torch.tensor([8])))
    shuffled = run(attention, x[:, order], positions="none")
    torch.testing.assert_close(shuffled[:, -1], still[:, -1], rtol=1e-5, atol=1e-5)


def test_weights_are_dropped_in_training_alone():
    x = torch.randn(2, 9, 24)
    attention = make(attention_dropout=0.5)
    torch.manual_seed(0)
    dropped = run(attention, x)
    assert not torch.allclose(dropped, run(attention, x), atol=1e-3)
    assert torch.equal(run(attention.eval(), x), run(make(), x))


def test_nothing_is_kept_between_calls():
    attention = make(qk_norm=True)
    before = set(vars(attention))
    run(attention, torch.randn(2, 9, 24))
    assert set(vars(attention)) == before
    assert not list(attention.buffers())


def test_bf16_stays_near_fp32():
    x = torch.randn(2, 9, 24)
    for changes in ({}, {"attention_soft_cap": 2.0}, {"qk_norm": True}):
        attention = make(**changes)
        exact = run(attention, x, **changes)
        with torch.autocast("cpu", torch.bfloat16):
            rough = run(attention, x, **changes)
        assert rough.dtype == torch.bfloat16
        torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("merge_qkv", [False, True])
def test_initialization(merge_qkv):
    attention = make(dim=96, heads=8, merge_qkv=merge_qkv)
    for name, parameter in attention.named_parameters():
        # Four projections of the two layers write to the residual stream.
        std = 0.2 / 2 if name == "output.weight" else 0.2
        assert parameter.std().item() == pytest.approx(std, rel=0.05), name


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
