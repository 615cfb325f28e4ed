from typing import Any, Literal

import pytest

from setpoint.config import Config, Free, field, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.walk import to_minimal, to_plain
from setpoint.config.record.python_source import to_python
from setpoint.config.record.record import fingerprint, minimal_toml

from .sample import AdamW, Batch, Experts, Job, Sgd, Synthetic, Text, Transformer


def test_a_complete_config_in_plain_data() -> None:
    plain = to_plain(resolve(Job(sources=[Synthetic(documents=2)], tracker=None)))
    assert plain["model"] == {
        "type": "transformer", "dim": 192, "heads": 6, "head_dim": 32, "context": 256,
        "dropout": 0.0, "experts": None,
    }  # fmt: skip
    assert plain["sources"] == [{"type": "synthetic", "weight": 1.0, "documents": 2, "length": 32}]
    assert (plain["mode"], plain["folder"], plain["duration"]) == ("FAST", "runs", "300 steps")


def test_drafts_leave_out_what_is_not_known_and_keep_references() -> None:
    plain = to_plain(Job(seed="${batch.size}"))
    assert "head_dim" not in plain["model"]
    assert plain["seed"] == "${batch.size}"
    assert to_minimal(Job(seed="${batch.size}")) == {"seed": "${batch.size}"}


@pytest.mark.parametrize(
    ("job", "minimal"),
    [
        (Job(), {}),
        (Job(seed=None), {"seed": None}),
        (Job(model=Transformer(experts=Experts())), {"model": {"experts": {}}}),
        (Job(model=Transformer(head_dim=32)), {"model": {"head_dim": 32}}),
        (Job(optimizer=AdamW(lr=1)), {"optimizer": {"lr": 1.0}}),
        (Job(sources=[Text(paths=["a"])]), {"sources": [{"type": "text", "paths": ["a"]}]}),
        (Job(evaluations={"q": Batch(size=3)}), {"evaluations": {"q": {"size": 3}}}),
        (Job(user={"a": {"b": 1}}), {"user": {"a": {"b": 1}}}),
    ],
)
def test_only_what_differs(job: Job, minimal: dict[str, Any]) -> None:
    assert to_minimal(resolve(job)) == minimal


def test_defaults_that_a_factory_sets_are_defaults_of_their_place() -> None:
    class Root(Config):
        batch: Batch = field(factory=lambda: Batch(size=5))
        maybe: Batch | None = field(factory=lambda: Batch(size=5))
        optimizer: AdamW | Sgd = field(factory=lambda: AdamW(lr=5.0))

    for draft, minimal in (
        (Root(), {}),
        (Root(batch=Batch()), {"batch": {"size": 32}}),
        (Root(maybe=None), {"maybe": None}),
        (Root(optimizer=AdamW()), {"optimizer": {"lr": 3e-4}}),
        (Root(optimizer=Sgd(lr=5.0)), {"optimizer": {"type": "sgd", "lr": 5.0}}),
        (Root(optimizer=Sgd()), {"optimizer": {"type": "sgd"}}),
    ):
        config = resolve(draft)
        assert to_minimal(config) == minimal
        assert compose(Root, program=to_minimal(config)).resolve() == config


def test_optional_and_nested_lists_of_sections() -> None:
    class Root(Config):
        maybe: tuple[Batch, ...] | None = None
        pair: tuple[Batch, AdamW | Sgd] = field(factory=lambda: (Batch(), Sgd()))
        table: dict[str, tuple[Batch, ...]] = field(factory=dict)

    config = resolve(Root(maybe=[Batch(size=2)], table={"a": [Batch(), Batch(size=3)]}))
    minimal = to_minimal(config)
    assert minimal == {"maybe": [{"size": 2}], "table": {"a": [{}, {"size": 3}]}}
    assert compose(Root, program=minimal).resolve() == config
    config = resolve(Root(pair=[Batch(size=7), AdamW()]))
    assert to_minimal(config) == {"pair": [{"size": 7}, {"type": "adamw"}]}
    assert compose(Root, program=to_minimal(config)).resolve() == config
    assert isinstance(Job().user, Free)


def test_numbers_of_another_kind_are_other_values(tmp_path) -> None:
    class Kinds(Config):
        warmup: int | float = 1
        flag: bool | int = False
        word: Literal[1, True] = 1
        values: list[int | float] = field(factory=lambda: [1])
        user: Free = field(factory=Free)

    plain = resolve(Kinds())
    for values in ({"warmup": 1.0}, {"flag": 0}, {"word": True}, {"values": [1.0]}):
        config = resolve(Kinds(**values))
        assert config != plain and to_minimal(config) == values
        assert repr(next(iter(values.values()))) in to_python(config)
        (tmp_path / "a.toml").write_text(minimal_toml(config))
        again = compose(Kinds, str(tmp_path / "a.toml")).resolve()
        assert again == config and fingerprint(again) == fingerprint(config)
    one, other = resolve(Kinds(user=Free(a=1))), resolve(Kinds(user=Free(a=True)))
    assert one != other and fingerprint(one) != fingerprint(other)
