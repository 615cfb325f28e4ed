"""What a model says after texts: padded, cached, alone or side by side, it is the same."""

from __future__ import annotations

import pytest
import torch

from setpoint.infer.distributed import ModelRunner
from setpoint.infer.generation import CachedReader, UncachedReader, left_padded, reader_of
from setpoint.shapes.outcome import Projection

from .small import Successor, small_model

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


def test_a_cached_token_costs_one_position() -> None:
    model = small_model()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    read = reader_of(ModelRunner(model), 48, True)
    assert isinstance(read, CachedReader)
    with torch.no_grad():
        read([[1, 2, 3, 4]])
        read([[1, 2, 3, 4, 5]])
        read([[1, 2, 3, 4, 5, 6]])
    assert seen == [4, 1, 1]


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


def test_padding_is_on_the_left() -> None:
    tokens, positions = left_padded([[1, 2, 3], [4]], torch.device("cpu"))
    assert tokens.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert positions is not None
    assert positions.tolist() == [[0, 1, 2], [-2, -1, 0]]
    assert left_padded([[1], [2]], torch.device("cpu"))[1] is None
