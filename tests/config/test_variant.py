"""Variants, and sections that may be null: what a switch keeps, and what it names as dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, ConfigError, field, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values
from setpoint.config.values.node import chain_of

from ..support.snapshots import refused


class Opt(Config):
    pass


class Momentum(Opt, type="sgd"):
    lr: float = 0.1
    mom: float = 0.0


class Adam(Opt, type="adam"):
    lr: float = 1e-3
    eps: float = 1e-8


class Strict(Opt, type="strict"):
    lr: float = field(default=1e-4, le=1e-2)


class Other(Opt, type="other"):
    """With a field of this name that takes other values."""

    lr: str = "auto"


class Root(Config):
    """Variants in a field, in a mapping, in a list, and in a section that may be null."""

    opt: Opt = field(factory=lambda: Momentum(lr=0.5, mom=0.9))
    opts: dict[str, Opt] = field(factory=lambda: {"k": Momentum(lr=0.5, mom=0.9)})
    listed: list[Opt] = field(factory=lambda: [Momentum(lr=0.5, mom=0.9)])
    maybe: Holder | None = field(factory=lambda: Holder(a=5))


class Holder(Config):
    a: int = 1
    b: int = 2
    opt: Opt = field(factory=Momentum)


def composed(*flags: str, source: Root | str | None = None, **layers: Any) -> Root:
    return compose(Root, source, flags=flags, **layers).resolve()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("f.toml").write_text('opt = {type = "sgd", lr = 0.3, mom = 0.2}\n')
    Path("h.toml").write_text('opt = "adam"\n')
    Path("k.toml").write_text('extends = ["f.toml", "h.toml"]\n')
    Path("m.toml").write_text('extends = "k.toml"\nopt = "sgd"\n')
    return "f.toml"


@pytest.mark.parametrize(
    "flags",
    [
        ["--opt", "sgd"],
        ["--opt", "adam", "--opt", "sgd"],
        ["--opt", "adam", "--opt", "strict", "--opt", "other", "--opt", "sgd"],
        ["--opt.type", "adam", "--opt", "{type: sgd}"],
    ],
)
def test_a_variant_that_is_chosen_again_has_what_was_given_for_it(
    flags: list[str], file: str
) -> None:
    root = composed(*flags, source=file)
    assert root.opt == resolve(Momentum(lr=0.3, mom=0.2)) and not list(dropped_values(root))
    assert [origin.describe(("opt", "mom")) for origin, _ in chain_of(root.opt, "mom")][-1] == (
        "f.toml:1:32"
    )
    # The default is a layer as well.
    assert composed(*flags).opt == resolve(Momentum(lr=0.5, mom=0.9))
    draft = Root(opt=Momentum(lr=0.7, mom=0.8))
    assert composed(*flags, source=draft).opt == resolve(Momentum(lr=0.7, mom=0.8))


def test_a_variant_that_another_kind_of_layer_chose_in_between(file: str) -> None:
    kept = resolve(Momentum(lr=0.3, mom=0.2))
    assert composed("--opt=sgd", source=file, environ={"SETPOINT__OPT": "adam"}).opt == kept
    assert composed("--opt=sgd", source=file, files=["h.toml"]).opt == kept
    assert composed(source="m.toml").opt == kept
    assert composed("--opt=sgd", source="k.toml").opt == kept
    assert composed("--opt=adam", source=file, program={"opt": "sgd"}).opt == kept
    # In Python an object is put in place of another one, which a later layer can still undo.
    draft = compose(Root, file).draft
    draft.opt = Adam(eps=0.5)
    root = composed("--opt=sgd", source=draft)
    assert root.opt == kept
    (line,) = dropped_values(root)
    assert line.startswith("opt.eps = 0.5, from program (") and "type = sgd has no such" in line


def test_values_that_a_later_layer_gave_in_between_count(file: str) -> None:
    flags = ["--opt=adam", "--opt.lr=0.4", "--opt=sgd"]
    assert composed(*flags, source=file).opt == resolve(Momentum(lr=0.4, mom=0.2))
    # A value of another type is none, and what stood there before counts again.
    root = composed("--opt=sgd", source=file, environ={"SETPOINT__OPT": "{type: other, lr: x}"})
    assert root.opt == resolve(Momentum(lr=0.3, mom=0.2))
    (line,) = dropped_values(root)
    assert line.startswith("opt.lr = 'x', from environment variable SETPOINT__OPT: type = sgd: lr")


def test_the_reason_why_a_value_is_dropped_is_the_true_one(file: str) -> None:
    assert list(dropped_values(composed("--opt=strict", source=file))) == [
        "opt.lr = 0.3, from f.toml:1:22: type = strict: lr is out of range: it must be <= 0.01",
        "opt.mom = 0.2, from f.toml:1:32: type = strict has no such field",
    ]
    # Two switches on, it is still named.
    root = composed("--opt=adam", source=file, program={"opt": "other"})
    assert "opt.mom = 0.2, from f.toml:1:32: type = other has no such field" in [
        *dropped_values(root)
    ]


def test_an_error_of_one_layer_is_withdrawn_where_the_layer_undoes_it() -> None:
    assert composed("opt={mom: 0.7}", "opt=adam", "opt=sgd").opt == resolve(
        Momentum(lr=0.5, mom=0.7)
    )
    with refused(ConfigError):
        composed("opt={mom: 0.7}", "opt=adam", "opt=strict")


@pytest.mark.parametrize(("path", "place"), [("opts.k", "opts"), ("listed.0", "listed")])
def test_items_that_become_another_variant_and_back(path: str, place: str) -> None:
    def item(*flags: str) -> object:
        held: Any = getattr(composed(*flags), place)
        return held["k"] if place == "opts" else held[0]

    assert item(f"{path}=adam", f"{path}=sgd") == resolve(Momentum(lr=0.5, mom=0.9))
    assert item(f"{path}=sgd") == resolve(Momentum(lr=0.5, mom=0.9))
    assert item(f"{path}=adam", f"{path}.lr=3", f"{path}.type=sgd") == resolve(
        Momentum(lr=3.0, mom=0.9)
    )
    assert item(f"{path}={{mom: 0.7}}", f"{path}=adam", f"{path}=other", f"{path}=sgd") == resolve(
        Momentum(lr=0.5, mom=0.7)
    )


def test_null_and_back_keeps_what_other_layers_gave(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[maybe]\nb = 7\nopt = {mom = 0.6}\n")
    off = composed("--maybe=null", source=str(file))
    assert off.maybe is None
    assert [line.partition(": ")[0] for line in dropped_values(off)] == [
        f"maybe.b = 7, from {file}:2:1",
        f"maybe.opt.mom = 0.6, from {file}:3:8",
    ]
    assert all("maybe = null (command line --maybe) rep" in line for line in dropped_values(off))
    for flags in (["--maybe=null", "--maybe.opt.lr=3"], ["--maybe=null", "--maybe={opt: {lr: 3}}"]):
        on = composed(*flags, source=str(file))
        assert on.maybe == resolve(Holder(a=5, b=7, opt=Momentum(lr=3.0, mom=0.6)))
        assert [line.partition(", ")[0] for line in dropped_values(on)] == ["maybe = null"]
    environ = {"SETPOINT__MAYBE": "null"}
    on = composed("--maybe.opt=adam", "--maybe.opt=sgd", source=str(file), environ=environ)
    assert on.maybe == resolve(Holder(a=5, b=7, opt=Momentum(mom=0.6)))
    draft = compose(Root, str(file)).draft
    draft.maybe = None
    assert composed("--maybe.a=6", source=draft).maybe == resolve(
        Holder(a=6, b=7, opt=Momentum(mom=0.6))
    )


def test_what_a_modifier_replaced_comes_back_with_its_variant(file: str) -> None:
    assert flatten
    flat = f"{__name__}:flatten"
    gone = composed(source=file, modifiers=[flat])
    assert [line.partition(", from ")[0] for line in dropped_values(gone)] == [
        "opt.lr = 0.3",
        "opt.mom = 0.2",
    ]
    back = composed("--opt=sgd", source=file, modifiers=[flat])
    assert back.opt == resolve(Momentum(lr=0.3, mom=0.2)) and not list(dropped_values(back))
    # What was dropped before the modifier is still named after it.
    again = composed(source="k.toml", modifiers=[flat])
    assert "opt.mom = 0.2, from f.toml:1:32: type = adam has no such field" in [
        *dropped_values(again)
    ]


def flatten(root: Root) -> Root:
    root.opt = Strict()
    return root


class Optional(Config):
    """Items that may be null, and a section of a mapping."""

    listed: list[Opt | None] = field(factory=lambda: [Momentum()])
    named: dict[str, Holder | None] = field(factory=dict)


def test_items_that_become_null_or_another_section(tmp_path: Path) -> None:
    file, more = tmp_path / "x.toml", tmp_path / "more.toml"
    file.write_text("listed = {0 = {mom = 0.6}}\nnamed = {k = {a = 7, b = 8}}\n")
    more.write_text("named = {k = {a = 9}}\n")
    config = compose(Optional, str(file), flags=["listed.0=null", "named.k=null"]).resolve()
    assert (config.listed[0], config.named["k"]) == (None, None)
    lines = list(dropped_values(config))
    assert [line.partition(", from ")[0] for line in lines] == [
        "listed.0.mom = 0.6",
        "named.k.a = 7",
        "named.k.b = 8",
    ]
    assert lines[2].endswith("named.k = null (command line named.k) replaces the section")
    config = compose(Optional, str(file), files=[str(more)]).resolve()
    assert config.named["k"] == resolve(Holder(a=9))
    assert [line.partition(", from ")[0] for line in dropped_values(config)] == [
        "named.k.a = 7",
        "named.k.b = 8",
    ]
