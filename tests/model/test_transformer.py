import pytest
import torch

from setpoint.model.initialize import initialize

from . import reference
from .small import VOCAB, small_config, small_model


def some_tokens(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_embeddings": True}, {"kv_heads": 6, "rope_base": 50.0}, {"head_dim": 8}],
)
def test_logits_against_plain_mathematics(changes):
    model = small_model(**changes)
    tokens = some_tokens()
    logits = model(tokens)
    assert logits.shape == (2, 9, VOCAB)
    for row in range(2):
        expected = reference.logits(
            model.config, model.state_dict(), tokens[row].tolist(), list(range(9))
        )
        torch.testing.assert_close(logits[row].double(), expected, rtol=1e-4, atol=1e-4)


def test_explicit_positions_against_plain_mathematics():
    model = small_model()
    tokens = some_tokens(rows=1)
    positions = [0, 1, 2, 3, 0, 1, 2, 70, 71]
    logits = model(tokens, torch.tensor(positions))
    expected = reference.logits(model.config, model.state_dict(), tokens[0].tolist(), positions)
    torch.testing.assert_close(logits[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_shifting_all_positions_changes_nothing():
    model = small_model()
    tokens = some_tokens()
    shifted = model(tokens, torch.arange(9) + 100_000)
    torch.testing.assert_close(shifted, model(tokens), rtol=1e-4, atol=1e-4)
    stretched = model(tokens, torch.arange(9) * 2)
    assert not torch.allclose(stretched, model(tokens), atol=1e-2)


def test_the_future_has_no_influence():
    model = small_model()
    tokens = some_tokens()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCAB
    a, b = model(tokens), model(changed)
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.allclose(a[:, 5:], b[:, 5:], atol=1e-2)


def test_too_long_a_sequence_is_refused():
    model = small_model(max_sequence_length=8)
    with pytest.raises(ValueError, match="9 tokens is longer than max_sequence_length = 8"):
        model(some_tokens())


def test_parameter_names_and_shapes():
    # Checkpoints and initialization hang on these names.
    model = small_model(layers=1)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "embedding.weight": (VOCAB, 24),
        "layers.0.attention_norm.weight": (24,),
        "layers.0.attention.query.weight": (24, 24),
        "layers.0.attention.key.weight": (8, 24),
        "layers.0.attention.value.weight": (8, 24),
        "layers.0.attention.output.weight": (24, 24),
        "layers.0.feed_forward_norm.weight": (24,),
        "layers.0.feed_forward.gate.weight": (40, 24),
        "layers.0.feed_forward.up.weight": (40, 24),
        "layers.0.feed_forward.down.weight": (24, 40),
        "norm.weight": (24,),
        "output.weight": (VOCAB, 24),
    }
    assert list(model.buffers()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 48},
        {"layers": 3},
        {"heads": 4},
        {"kv_heads": 3},
        {"head_dim": 8},
        {"ffn_dim": 48},
        {"rope_base": 50.0},
        {"norm_eps": 0.5},
        {"init_std": 0.3},
        {"tie_embeddings": True},
        {"dropout": 0.5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_changes_the_logits(change):
    tokens = some_tokens()
    torch.manual_seed(0)
    assert not torch.allclose(small_model(**change)(tokens), small_model()(tokens), atol=1e-3)


def test_dropout_is_for_training_only():
    model = small_model(dropout=0.5)
    tokens = some_tokens()
    torch.manual_seed(0)
    first, second = model(tokens), model(tokens)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(model(tokens), first), "the global generator decides"
    model.eval()
    plain = small_model()
    assert torch.equal(model(tokens), plain(tokens))


def test_bf16_autocast():
    model = small_model()
    tokens = some_tokens()
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - exact).abs().max() < 0.05 * exact.abs().max()
    logits.float().logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_bf16_parameters():
    exact = small_model()
    model = small_config().build(vocab_size=VOCAB).bfloat16()
    initialize(model, 1)
    tokens = some_tokens()
    logits = model(tokens)
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - exact(tokens)).abs().max() < 0.1 * exact(tokens).abs().max()


def test_compiled_graph_gives_the_same():
    model = small_model()
    tokens = some_tokens()
    graph = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(graph(tokens), model(tokens), rtol=1e-5, atol=1e-5)
    graph(tokens).sum().backward()
    compiled = model.norm.weight.grad.clone()
    model.zero_grad()
    model(tokens).sum().backward()
    torch.testing.assert_close(model.norm.weight.grad, compiled, rtol=1e-4, atol=1e-4)
