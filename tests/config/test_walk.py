"""Leaves, roles and minimal forms of a tree."""

from typing import Literal

from setpoint.config import BUDGET, IDENTITY, RUNTIME, Config, Free, field, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.walk import effective_role, leaves, to_minimal
from setpoint.config.record.python_source import to_python
from setpoint.config.record.record import fingerprint, minimal_toml

from .sample import AdamW, Batch, Sgd, Tracker


def test_roles_narrow_from_the_outside_in() -> None:
    assert effective_role(IDENTITY, IDENTITY) is IDENTITY
    assert effective_role(IDENTITY, BUDGET) is effective_role(BUDGET, IDENTITY) is BUDGET
    assert effective_role(RUNTIME, BUDGET) is effective_role(BUDGET, RUNTIME) is RUNTIME

    class Root(Config):
        batch: Batch = field(factory=Batch, role=RUNTIME)
        tracker: Tracker | None = None
        trackers: tuple[Tracker, ...] = ()

    assert {leaf.role for leaf in leaves(resolve(Root()))} == {RUNTIME}


def test_nothing_in_a_list_of_sections_is_left_out() -> None:
    class Empty(Config):
        pass

    class Root(Config):
        mixed: tuple[int, Batch, Batch | None] = field(factory=lambda: (3, Batch(), None))
        lists: tuple[tuple[Batch, ...], ...] = ((),)
        empties: tuple[Empty, ...] = field(factory=lambda: (Empty(), Empty()))

    found = {leaf.key: leaf.value for leaf in leaves(resolve(Root()))}
    assert found == {
        "mixed.0": 3, "mixed.1.size": 32, "mixed.1.sequence_length": 256, "mixed.2": None,
        "lists.0": [], "empties.0": {}, "empties.1": {},
    }  # fmt: skip


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
