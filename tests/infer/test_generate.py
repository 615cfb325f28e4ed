import pytest
import torch
from torch import Tensor, nn

from setpoint.config import SetpointError, resolve
from setpoint.infer.generate import generate
from setpoint.loss.config import CrossEntropy
from setpoint.model.config import Transformer
from setpoint.model.initialize import initialize
from setpoint.optim.clip import clip_gradients
from setpoint.optim.config import AdamW, Cosine


class Successor(nn.Module):
    """Says with certainty that the next token is the last one plus how many it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, bool]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append((tokens.shape[1], self.training))
        following = (tokens + tokens.shape[1]) % 50
        return nn.functional.one_hot(following, 50).float() * 100


def test_feeds_back_what_it_drew():
    prompt = torch.tensor([[0, 1], [10, 20]])
    new = generate(Successor(), prompt, max_tokens=3, temperature=0)
    assert new.tolist() == [[3, 6, 10], [22, 25, 29]]
    assert torch.equal(prompt, torch.tensor([[0, 1], [10, 20]]))


def test_sees_the_last_tokens_only():
    model = Successor()
    new = generate(model, torch.tensor([[0, 1]]), max_tokens=4, temperature=0, context=3)
    assert [length for length, _ in model.seen] == [2, 3, 3, 3]
    assert new.tolist() == [[3, 6, 9, 12]]


def test_runs_in_evaluation_mode_and_returns_the_mode():
    model = Successor().train()
    generate(model, torch.tensor([[0]]), max_tokens=2)
    assert all(not training for _, training in model.seen)
    assert model.training


def test_stops_where_told():
    prompt = torch.tensor([[2], [6]])
    new = generate(Successor(), prompt, max_tokens=10, temperature=0, stop=5)
    # 2 -> 3 -> 5, then 5 again; 6 -> 7 -> 9 -> 12 ... never 5 in ten steps
    assert new[0].tolist() == [3, *[5] * 9]
    assert new.shape == (2, 10)
    assert generate(Successor(), prompt[:1], max_tokens=10, temperature=0, stop=5).shape == (1, 2)


def test_shows_tokens_as_they_come():
    shown = []
    new = generate(Successor(), torch.tensor([[0], [1]]), max_tokens=3, on_token=shown.append)
    assert torch.equal(torch.stack(shown, dim=1), new)


def test_zero_tokens():
    assert generate(Successor(), torch.tensor([[0]]), max_tokens=0).shape == (1, 0)


def test_empty_prompt():
    with pytest.raises(SetpointError, match="the prompt is empty"):
        generate(Successor(), torch.zeros(1, 0, dtype=torch.int64), max_tokens=1)


def test_bad_settings_are_refused_before_any_work():
    model = Successor()
    with pytest.raises(SetpointError, match="temperature"):
        generate(model, torch.tensor([[0]]), max_tokens=1, temperature=-1.0)
    assert model.seen == []


TEXT = b"Zebras jump over 13 lazy dogs while 57 quick wizards vex them. "


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def trained(request):
    """Model, loss, optimizer, schedule and clipping together, on one short text."""
    steps = 150
    config = resolve(Transformer(dim=48, layers=2, heads=2, kv_heads=1, max_sequence_length=64))
    model = config.build(vocab_size=257)
    initialize(model, 0)
    loss_of = resolve(CrossEntropy()).build()
    optimization = resolve(AdamW(lr=1e-2))
    optimizer = optimization.build(parameters=model.named_parameters())
    factor = resolve(Cosine(horizon_steps=steps)).build()
    data = torch.tensor(list(TEXT * 3))
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        starts = torch.randint(len(TEXT), (4,), generator=generator).tolist()
        windows = torch.stack([data[start : start + 49] for start in starts])
        with torch.autocast("cpu", torch.bfloat16, enabled=request.param == "bf16"):
            logits = model(windows[:, :-1])
        loss = loss_of(logits, windows[:, 1:])
        (loss.total / windows[:, 1:].numel()).backward()
        clip_gradients(model.parameters(), optimization.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = optimization.lr * factor(step)
        optimizer.step()
        optimizer.zero_grad()
    return model, (loss.nats / windows[:, 1:].numel()).item()


def test_learns_a_text_and_says_it_back(trained):
    model, nats = trained
    assert nats < 0.1
    prompt = torch.tensor([list(TEXT[:12])])
    new = generate(model, prompt, max_tokens=len(TEXT), temperature=0, context=48)
    assert bytes(new[0].tolist()) == (TEXT + TEXT)[12 : 12 + len(TEXT)]


def test_a_seed_repeats_a_sample(trained):
    model, _ = trained

    def sampled(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.tensor([list(b"57")])
        return generate(
            model, prompt, max_tokens=30, temperature=3.0, top_k=40, generator=generator
        )[0].tolist()

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
