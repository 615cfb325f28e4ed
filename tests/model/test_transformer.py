import pytest
import torch

from setpoint.model.config import LayerNormConfig, RMSNormConfig
from setpoint.model.moe.config import MoE
from setpoint.shapes.outcome import Outcome, Projection

from ..support.snapshots import refused
from .small import VOCAB, small_config, small_model


def some_tokens(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(0))


SHAPES = {
    "default": {},
    "layer norm": {"norm": LayerNormConfig()},
    "norms around": {"norm_placement": "both", "norm": RMSNormConfig(zero_centered=True)},
    "biases": {"qkv_bias": True, "attention_output_bias": True, "ffn_bias": True},
    "caps": {"attention_soft_cap": 1.5, "logit_soft_cap": 2.0},
}


def test_shifting_all_positions_changes_nothing():
    model = small_model()
    tokens = some_tokens()
    shifted = model(tokens, torch.arange(9) + 100_000)
    torch.testing.assert_close(shifted, model(tokens), rtol=1e-4, atol=1e-4)
    stretched = model(tokens, torch.arange(9) * 2)
    assert not torch.allclose(stretched, model(tokens), atol=1e-2)


def test_too_long_a_sequence_is_refused():
    model = small_model(max_sequence_length=8)
    with refused(ValueError):
        model(some_tokens())


def test_parameter_names_and_shapes():
    # Checkpoints and initialization hang on these names.
    model = small_model(layers=1)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "embedding.weight": (VOCAB, 24), "layers.0.attention_norm.weight": (24,),
        "layers.0.attention.query.weight": (24, 24), "layers.0.attention.key.weight": (8, 24),
        "layers.0.attention.value.weight": (8, 24), "layers.0.attention.output.weight": (24, 24),
        "layers.0.feed_forward_norm.weight": (24,), "layers.0.feed_forward.gate.weight": (40, 24),
        "layers.0.feed_forward.up.weight": (40, 24), "layers.0.feed_forward.down.weight": (24, 40),
        "norm.weight": (24,), "output.weight": (VOCAB, 24),
    }  # fmt: skip
    assert list(model.buffers()) == []


def test_padding_the_vocabulary_changes_no_logit():
    model, padded = small_model(), small_model(vocab_multiple_of=64)
    assert padded.embedding.weight.shape == padded.output.weight.shape == (64, 24)
    for weight in (padded.embedding.weight, padded.output.weight):
        assert not weight[VOCAB:].any()
    assert torch.equal(padded.embedding.weight[:VOCAB], model.embedding.weight)
    tokens = some_tokens()
    torch.testing.assert_close(padded(tokens), model(tokens), rtol=1e-5, atol=1e-5)
    padded(tokens).logsumexp(-1).sum().backward()
    assert not padded.output.weight.grad[VOCAB:].any()
    assert not padded.embedding.weight.grad[VOCAB:].any()


def test_a_vocabulary_that_does_not_hold_the_tokenizers():
    with refused():
        small_config(vocab_size=VOCAB - 1).build(vocab_size=VOCAB)


def test_a_head_gets_hidden_states_and_the_projection():
    model = small_model(logit_soft_cap=3.0, logit_scale=0.5, vocab_multiple_of=16)
    tokens, seen = some_tokens(), []

    def head(hidden: torch.Tensor, projection: Projection) -> str:
        seen.append(projection.logits(hidden))
        assert hidden.shape == (2, 9, 24)
        return "result"

    outcome = model(tokens, head=head)
    assert outcome == Outcome("result", None, None)
    torch.testing.assert_close(seen[0], model(tokens), rtol=1e-6, atol=1e-6)


def test_experts_report_to_the_head_in_training():
    model = small_model(moe=MoE(experts=3, every=2, balance_loss=0.5), layers=4)
    tokens = some_tokens()
    outcome = model(tokens, head=lambda hidden, projection: hidden.sum())
    assert outcome.routing.counts.shape == (2, 3)
    assert outcome.routing.counts.sum() == 2 * tokens.numel() * 2
    assert outcome.auxiliary.item() == pytest.approx(0.5 * outcome.routing.balance.item())
    outcome.auxiliary.backward()
    assert model.layers["1"].feed_forward.router.weight.grad.abs().max() > 0
    assert torch.equal(model.eval()(tokens), model(tokens)), "nothing is kept"


def test_padding_has_no_influence():
    """What stands at negative positions is seen by nobody, whatever it is."""
    model = small_model(positions="learned")
    tokens = some_tokens(rows=1)
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.int64), tokens), dim=1)
    positions = torch.cat((torch.full((1, 3), -1), torch.arange(9)[None]), dim=1)
    logits = model(padded, positions)[:, 3:]
    torch.testing.assert_close(logits, model(tokens), rtol=1e-4, atol=1e-4)


def test_learned_positions_end():
    model = small_model(positions="learned", max_sequence_length=16)
    tokens = some_tokens()
    model(tokens, torch.arange(7, 16))
    with refused(ValueError):
        model(tokens, torch.arange(8, 17))


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


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_dropout_of_embeddings_keeps_their_mean(rate):
    model = small_model(embedding_dropout=rate, layers=1)
    seen = []
    model.layers["0"].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    torch.manual_seed(0)
    tokens = torch.zeros(8, 64, dtype=torch.int64)
    model(tokens)
    dropped = (seen[0] == 0).float().mean().item()
    assert dropped == pytest.approx(rate, abs=0.02)
    kept = seen[0][seen[0] != 0]
    whole = (model.embedding(tokens) / (1 - rate))[seen[0] != 0]
    torch.testing.assert_close(kept, whole)


@pytest.mark.parametrize("name", SHAPES)
def test_bf16_autocast(name):
    model = small_model(**SHAPES[name])
    tokens = some_tokens()
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - exact).abs().max() < 0.05 * exact.abs().max()
    logits.float().logsumexp(-1).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.dtype == torch.float32, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name
