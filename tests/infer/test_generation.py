import pytest
import torch
from torch import nn

from setpoint.config import RunError
from setpoint.infer import generation
from setpoint.infer.distributed import ModelRunner
from setpoint.infer.generation import Sampling, UncachedReader, generate, reader_of, sample
from setpoint.shapes.outcome import Projection

from ..support.snapshots import refused
from .small import Successor, small_model

GREEDY = Sampling(temperature=0)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13]]


def tokens_of(model: nn.Module, prompts: list[list[int]], **settings) -> list[list[int]]:
    settings = {"sampling": GREEDY, **settings}
    return [each.tokens for each in generate(model, prompts, **settings)]


def test_feeds_back_what_it_drew():
    prompts = [[0, 1], [10, 20]]
    assert tokens_of(Successor(), prompts, max_tokens=3) == [[3, 6, 10], [22, 25, 29]]
    assert prompts == [[0, 1], [10, 20]]
    assert tokens_of(Successor(), [[0]], max_tokens=0) == [[]]


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


def test_empty_prompt():
    with refused():
        generate(Successor(), [[1], []], max_tokens=1)


TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5], [3, 5, 8]]
KINDS = {
    "rotary": {},
    "learned": {"positions": "learned"},
    "sliding": {"sliding_window": 4, "attention_pattern": ("sliding", "full")},
    "mla": {"kv_heads": None, "mla": {"kv_rank": 8, "rope_head_dim": 4, "nope_head_dim": 8,
                                   "value_head_dim": 8}},
    "experts": {"moe": {"experts": 4, "top_k": 2, "expert_dim": 16}},
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    from setpoint.model.attention.config import MLA
    from setpoint.model.moe.config import MoE

    fields = dict(KINDS[request.param])
    for name, kind in (("mla", MLA), ("moe", MoE)):
        if name in fields:
            fields[name] = kind(**fields[name])  # type: ignore[arg-type]
    return small_model(**fields)


def logits_alone(model: torch.nn.Module, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([text]))[0, -1]


@pytest.mark.parametrize("cached", [False, True])
def test_rows_are_what_they_are_alone(model: torch.nn.Module, cached: bool) -> None:
    read = reader_of(ModelRunner(model), None, cached)
    texts = [list(text) for text in TEXTS]
    with torch.no_grad():
        for step in range(5):
            expected = torch.stack([logits_alone(model, text) for text in texts])
            torch.testing.assert_close(read(texts), expected, rtol=0, atol=2e-5)
            for row, text in enumerate(texts):
                text.append((7 * step + row) % 40)


def test_rows_that_leave_change_nothing_for_the_others(model: torch.nn.Module) -> None:
    read = reader_of(ModelRunner(model), None, True)
    texts = [list(text) for text in TEXTS]
    with torch.no_grad():
        read(texts)
        read.keep([1, 2])
        texts = [[*text, 11] for text in texts[1:]]
        expected = torch.stack([logits_alone(model, text) for text in texts])
        torch.testing.assert_close(read(texts), expected, rtol=0, atol=2e-5)


def test_beyond_the_context_only_the_last_tokens_count() -> None:
    model = small_model(max_sequence_length=8)
    text = list(range(20))
    for cached in (False, True):
        read = reader_of(ModelRunner(model), 8, cached)
        with torch.no_grad():
            for length in range(5, 20):
                expected = logits_alone(model, text[:length][-8:])
                torch.testing.assert_close(read([text[:length]])[0], expected, rtol=0, atol=2e-5)


def test_a_short_row_may_go_on_where_a_long_one_filled_the_cache() -> None:
    model = small_model(max_sequence_length=8)
    read = reader_of(ModelRunner(model), 8, True)
    with torch.no_grad():
        read([[1, 2, 3, 4, 5, 6, 7], [9]])
        read.keep([1])
        text = [9]
        for token in range(7):
            text.append(token)
            torch.testing.assert_close(
                read([text])[0], logits_alone(model, text), rtol=0, atol=2e-5
            )


def test_models_that_take_tokens_only() -> None:
    model = Successor()
    read = reader_of(ModelRunner(model), 3, True)
    assert isinstance(read, UncachedReader)
    assert read([[1, 2], [5], [7, 7, 7, 7]]).argmax(-1).tolist() == [4, 6, 10]
    assert sorted(length for length, _ in model.seen) == [1, 2, 3]


def test_only_the_last_logits_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        last = ModelRunner(model).logits(tokens, last=True)
        torch.testing.assert_close(last, model(tokens)[:, -1])
    rows: list[int] = []
    logits = Projection.logits

    def computed(self: Projection, hidden: torch.Tensor) -> torch.Tensor:
        rows.append(hidden.shape[:-1].numel())
        return logits(self, hidden)

    monkeypatch.setattr(Projection, "logits", computed)
    ModelRunner(model).logits(tokens, last=True)
    assert rows == [1]


def test_what_is_excluded_is_never_drawn():
    """Also where the sum of the probabilities is rounded to less than the number drawn."""

    class Highest:
        def __call__(self, *shape, **kwargs):
            return torch.tensor([1 - 2**-53], dtype=torch.float64)

    logits = torch.tensor([[0.0, 1.0, 0.5, -100.0, -100.0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", Highest())
        assert sample(logits, Sampling(top_k=3)).item() == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_a_number_is_refused(temperature):
    logits = torch.zeros(2, 5)
    logits[1, 3] = float("nan")
    with refused(RunError):
        sample(logits, Sampling(temperature=temperature))


FILTERED_LOGITS = 3 * torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, 50, (6, 9), generator=torch.Generator().manual_seed(1))


FILTERS: list[tuple[str, str, tuple[float, ...]]] = [
    ("scaled", "TemperatureLogitsWarper", (0.3, 1.0, 2.5)),
    ("top_k", "TopKLogitsWarper", (1, 3, 50, 500)),
    ("top_p", "TopPLogitsWarper", (0.01, 0.5, 0.9, 0.999, 1.0)),
    ("min_p", "MinPLogitsWarper", (0.001, 0.1, 0.9, 1.0)),
]


@pytest.mark.parametrize(("ours", "theirs", "values"), FILTERS)
def test_filters_against_transformers(ours: str, theirs: str, values: tuple[float, ...]) -> None:
    from transformers.generation import logits_process

    for value in values:
        expected = getattr(logits_process, theirs)(value)(IDS, FILTERED_LOGITS.clone())
        found = getattr(generation, ours)(FILTERED_LOGITS, value)
        torch.testing.assert_close(found.softmax(-1), expected.softmax(-1))


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3, 5.0])
def test_repetition(penalty: float) -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    seen = torch.zeros(FILTERED_LOGITS.shape, dtype=torch.bool).scatter(1, IDS, True)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(IDS, FILTERED_LOGITS.clone())
    torch.testing.assert_close(generation.repetition(FILTERED_LOGITS, seen, penalty), expected)
