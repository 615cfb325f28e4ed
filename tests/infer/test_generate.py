import pytest
import torch
from torch import nn

from setpoint.config import SetpointError, resolve
from setpoint.infer.generation import Sampling, generate
from setpoint.loss.config import CrossEntropy
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.optim.clip import clip_gradients
from setpoint.optim.config import AdamWConfig
from setpoint.optim.schedule.config import Cosine

from .small import Successor, generators, small_model

GREEDY = Sampling(temperature=0)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13]]


def tokens_of(model: nn.Module, prompts: list[list[int]], **settings) -> list[list[int]]:
    settings = {"sampling": GREEDY, **settings}
    return [each.tokens for each in generate(model, prompts, **settings)]


def test_feeds_back_what_it_drew():
    prompts = [[0, 1], [10, 20]]
    assert tokens_of(Successor(), prompts, max_tokens=3) == [[3, 6, 10], [22, 25, 29]]
    assert prompts == [[0, 1], [10, 20]]


def test_sees_the_last_tokens_only():
    model = Successor()
    assert tokens_of(model, [[0, 1]], max_tokens=4, context=3) == [[3, 6, 9, 12]]
    assert [length for length, _ in model.seen] == [2, 3, 3, 3]


def test_runs_in_evaluation_mode_and_returns_the_mode():
    model = Successor().train()
    generate(model, [[0]], max_tokens=2)
    assert all(not training for _, training in model.seen)
    assert model.training


def test_stops_where_told():
    model = Successor()
    first, second = generate(model, [[2], [6]], max_tokens=10, sampling=GREEDY, stop=[5])
    # 2 -> 3 -> 5; 6 -> 7 -> 9 -> 12 ... never 5 in ten steps
    assert (first.tokens, first.finish) == ([3], "stop")
    assert (len(second.tokens), second.finish) == (10, "length")


def test_a_row_that_has_ended_costs_nothing():
    model = small_model()
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[0]))
    ended = generate(model, PROMPTS, max_tokens=4, on_token=lambda row, _: row != 2)
    assert rows == [4, 1, 1, 1]
    assert [each.finish for each in ended] == ["ended", "ended", "length", "ended"]
    assert [len(each.tokens) for each in ended] == [1, 1, 4, 1]


def test_shows_tokens_as_they_come():
    shown: list[tuple[int, int]] = []

    def show(row: int, token: int) -> bool:
        shown.append((row, token))
        return False

    new = tokens_of(Successor(), [[0], [1]], max_tokens=3, on_token=show)
    assert shown == [(row, new[row][place]) for place in range(3) for row in (0, 1)]


@pytest.mark.parametrize("fields", [{}, {"sliding_window": 6, "attention_pattern": ("sliding",)}])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.5, repetition_penalty=1.3)])
def test_with_and_without_cache_alone_and_together(fields, sampling):
    """Beyond the context, too, where the cache is of no use."""
    model = small_model(max_sequence_length=16, **fields)
    settings = {"max_tokens": 24, "context": 16, "sampling": sampling}
    together, cached = (
        tokens_of(model, PROMPTS, generators=generators(1, 2, 3, 4), cache=cache, **settings)
        for cache in (False, True)
    )
    assert together == cached
    for row, prompt in enumerate(PROMPTS):
        alone = tokens_of(model, [prompt], generators=generators(row + 1), **settings)
        assert alone == [together[row]]


def test_only_tokens_of_the_vocabulary_are_drawn():
    model = small_model(vocab_size=40)
    drawn = tokens_of(model, PROMPTS, max_tokens=30, sampling=Sampling(), vocab_size=7)
    assert {token for row in drawn for token in row} <= set(range(7))


def test_stop_tokens_are_not_made_less_likely():
    class Even(nn.Module):
        """Likes 3 a little more than 4, and 4 more than the others."""

        def forward(self, tokens):
            return torch.tensor([0.0, 0, 0, 2, 1.5]).expand(*tokens.shape, 5)

    penalty = Sampling(temperature=0, repetition_penalty=2.0)
    assert tokens_of(Even(), [[3]], max_tokens=1, sampling=penalty) == [[4]]
    (ended,) = generate(Even(), [[3]], max_tokens=1, sampling=penalty, stop=[3])
    assert ended.finish == "stop"


def test_zero_tokens():
    assert tokens_of(Successor(), [[0]], max_tokens=0) == [[]]
    assert generate(Successor(), [], max_tokens=3) == []


def test_empty_prompt():
    with pytest.raises(SetpointError, match="the prompt is empty"):
        generate(Successor(), [[]], max_tokens=1)
    with pytest.raises(SetpointError, match="prompt 1 is empty"):
        generate(Successor(), [[1], []], max_tokens=1)


TEXT = b"Zebras jump over 13 lazy dogs while 57 quick wizards vex them. "


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def trained(request):
    """Model, loss, optimizer, schedule and clipping together, on one short text."""
    steps = 150
    config = resolve(
        TransformerConfig(dim=48, layers=2, heads=2, kv_heads=1, max_sequence_length=64)
    )
    model = config.build(vocab_size=257)
    initialize(model, 0)
    loss_of = resolve(CrossEntropy()).build()
    optimization = resolve(AdamWConfig(lr=1e-2))
    optimizer = optimization.build(parameters=model.named_parameters())
    factor = resolve(Cosine(horizon=steps)).build()
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
    (new,) = tokens_of(model, [list(TEXT[:12])], max_tokens=len(TEXT), context=48)
    assert bytes(new) == (TEXT + TEXT)[12 : 12 + len(TEXT)]


def test_a_seed_repeats_a_sample(trained):
    model, _ = trained

    def sampled(seed: int) -> list[list[int]]:
        sampling = Sampling(temperature=3.0, top_k=40)
        return tokens_of(
            model, [list(b"57")], max_tokens=30, sampling=sampling, generators=generators(seed)
        )

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
