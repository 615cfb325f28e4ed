"""References, `${...}`: their grammar, arithmetic, texts and escapes."""

import enum
import operator
import pickle
import re
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Config, ConfigError, Free, Invalid, field, resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint
from setpoint.config.values.node import chain_of
from setpoint.config.values.reference import Reference, ref, reference, reference_to
from setpoint.config.words.plain_data import escaped, refers, unescaped
from setpoint.units import Period

from ..support.snapshots import refused
from .helpers import write_record

VALUES: dict[tuple[str | int, ...], object] = {
    ("a",): 3, ("m", "dim"): 64, ("x", 0, "y"): 2.5, ("t", "loss"): 7, ("s",): "text", ("b",): True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${a}", 3), (" ${ m.dim * 4 } ", 256), ("${(a + 1) ** 2 // 3 % 4 / 2}", 0.5),
        ("${x[0].y * 1e1}", 25.0), ("${t['loss'] - 2.5}", 4.5), ("${b}", True),
    ],
)  # fmt: skip
def test_references_are_evaluated(text: str, value: object) -> None:
    assert Reference(text).evaluate(VALUES.__getitem__) == value


def test_arithmetic_of_a_draft_that_holds_a_reference() -> None:
    one = Reference("${a + m.dim}")
    for result, value in (
        (one * 2, 134), (2 * one, 134), (one + 0.5, 67.5), (1 + one, 68), (one - one, 0),
        (100 - one, 33), (one / 2, 33.5), (67 / one, 1), (one // 3, 22), (200 // one, 2),
        (one * -1, -67), (one * Reference("${ a }"), 201),
    ):  # fmt: skip
        assert result.evaluate(VALUES.__getitem__) == value
    for other in ("2", True, None, Reference):
        with pytest.raises(TypeError):
            operator.mul(one, other)
    with pytest.raises(TypeError):
        operator.add(reference("out/${a}", in_text=True), 1)


@pytest.mark.parametrize(
    "text",
    [
        "${}", "${a", "x${a}", "${a}${a}", "${a} ", "${f(a)}", "${a if b else a}", "${[1]}",
        "${lambda: 1}", "${a.b()}", "${'text'}", "${a and b}", "${a == b}", "${not a}", "${~a}",
        "${a @ b}", "${a << 2}", "${a[b]}", "${a[1:2]}", "${__import__('os')}", "${f'{a}'}",
        "${1j}", "${True}", "${" + "(" * 300 + "}", "${" + "-" * 450 + "a}", "${a\x00}", "${9" * 3,
        "${" + "a+" * 400 + "a}", "${a := 3}", "${*a}", "${yield}", "${await a}", "${...}",
    ],
)  # fmt: skip
def test_expressions_other_than_arithmetic_are_refused(text: str) -> None:
    if text == "${a} ":
        Reference(text)
        return
    try:
        value = Reference(text).evaluate(VALUES.__getitem__)
    except Invalid:
        return
    assert text.startswith(("${--", "${a+"))
    assert value == 3 * (1 + text.count("+"))


@pytest.mark.parametrize(
    "text",
    [
        "${a / 0}", "${a % 0}", "${2 ** 5000}", "${2 ** 2000 * 2 ** 2000 * 2 ** 2000}",
        "${(0 - 1) ** 0.5}", "${1e400}", "${1e308 * 10}", "${10 ** 400 / 3}",
        "${infinite - infinite}", "${0 ** -1}", "${s + 1}", "${2.0 ** 2 ** 4000}",
    ],
)  # fmt: skip
def test_arithmetic_that_has_no_value_is_refused(text: str) -> None:
    with refused(Invalid):
        Reference(text).evaluate({**VALUES, ("infinite",): inf}.__getitem__)


def test_what_is_infinite_may_stay_so() -> None:
    assert Reference("${a * 2}").evaluate(lambda path: inf) == inf
    assert Reference("${a}").evaluate(lambda path: -inf) == -inf


parts = st.integers(0, 99) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(parts, max_size=4))
def test_any_path_can_be_referred_to(path: list[str | int]) -> None:
    whole = ("first", *path)
    assert Reference(reference_to(whole)).path == whole


def test_how_paths_are_written() -> None:
    assert reference_to(("data", "sources", 0)) == "${data.sources.0}"
    assert reference_to(("sets", "a-b", 0, "x")) == "${sets['a-b'][0].x}"
    assert reference_to(("sets", "class")) == "${sets['class']}"
    assert Reference("${sets['a.0'].1}").path == ("sets", "a.0", 1)
    assert Reference("${a + 1}").path is None
    with pytest.raises(Invalid):
        Reference("${a[True]}")


def test_a_reference_into_a_section_that_is_null() -> None:
    from setpoint.train.config import Job as Training

    for flags in (
        ["seed=${evaluation.sequences}", "evaluation=null"],
        ["model.layers=${4 / 2}"],
    ):
        with refused(ConfigError):
            compose(Training, flags=flags).resolve()
    with refused(ConfigError):
        compose(Training, program={"model.layers": 2.0}).resolve()


class Color(enum.Enum):
    RED = 1


class Inner(Config):
    name: str = "in"
    width: int = 64


class Texts(Config):
    name: str = "run"
    count: int = 3
    rate: float = 3e-4
    on: bool = True
    color: Color = Color.RED
    folder: Path = Path("out")
    inner: Inner = field(factory=Inner)
    none: int | None = None
    every: Period = Period("10 steps")
    title: str | None = None
    place: Path = Path("x")
    parts: tuple[str, ...] = ()
    paths: dict[str, Path] = field(factory=dict)
    short: str = field(default="abc", pattern="[a-c]+")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${name}-${count}", "run-3"),
        ("a ${inner.name}/${ inner.width * 2 } b", "a in/128 b"),
        ("${rate},${on},${color},${folder}", "0.0003,true,RED,out"),
        ("$${name}-${count}", "${name}-3"),
        ("${paths['a}b']}!", "c!"),
        # One reference alone: the value if it fits, else as it stands within a text.
        ("${count}", "3"),
        ("${rate}", "0.0003"),
        ("${color}", "RED"),
        ("${none}", None),
        (" ${name} ", " run "),
    ],
)
def test_references_inside_a_text(text: str, value: str | None) -> None:
    config = compose(Texts, flags=[f"--title={text}", "--paths={'a}b': c}"]).resolve()
    assert config.title == value
    assert compose(Texts, program={"title": text, "paths": {"a}b": "c"}}).resolve().title == value
    (_, (origin, _)) = chain_of(config, "title")
    assert origin.describe(("title",)).startswith(f"reference {text} over ")


def test_references_inside_paths_and_items() -> None:
    flags = ["--place=${folder}/${name}", "--parts=[a, 'x-${count}', '${name}']"]
    config = compose(Texts, flags=[*flags, "--paths.k", "${place}/y", "--count", "4"]).resolve()
    assert config.place == Path("out/run") and config.paths == {"k": Path("out/run/y")}
    assert config.parts == ("a", "x-4", "run")
    again = resolve(config.evolve(name="other"))
    assert again.place == Path("out/other") and again.parts[2] == "other"
    assert resolve(Texts(place=ref("${folder}/z"))).place == Path("out/z")
    assert compose(Texts, flags=["--place=${count}"]).resolve().place == Path("3")
    assert compose(Texts, flags=["--parts=${count},${name}"]).resolve().parts == ("3", "run")


@pytest.mark.parametrize(
    "flag",
    [
        "title=a${inner}", "title=a${none}", "title=a${every}", "title=a${parts}", "title=a${name",
        "title=a${f(x)}", "title=${inner}", "title=${parts}", "name=${none}", "title=a${nam}",
        "title=a${title}", "count=1${count}", "short=a${name}",
    ],
)  # fmt: skip
def test_what_cannot_be_put_into_a_text(flag: str) -> None:
    with refused(ConfigError):
        compose(Texts, flags=[flag]).resolve()


# Texts that hold `${` as it is.


class Literals(Config):
    name: str = "x$${y}"
    folder: Path = Path("a")
    skip: re.Pattern[str] | None = None
    words: tuple[str, ...] = ()
    table: dict[str, str] = field(factory=dict)
    anything: Any = None
    user: Free = field(factory=Free)
    copy: str = ""


@given(st.text("${a}"))
def test_any_text_can_be_written(text: str) -> None:
    assert unescaped(escaped(text)) == text
    assert not refers(escaped(text))
    assert not refers(unescaped(escaped(text)))


def test_it_means_the_same_in_every_layer(tmp_path: Path) -> None:
    text = "$${HOME}/x"
    draft = Literals(
        name=text,
        folder=text,  # pyright: ignore[reportArgumentType]
        skip=re.compile("x${y"),
        words=(text, "$$${z}", "${name}"),
        table={"a": text},
        anything=text,
        copy="${name}",
    )
    draft.user.raw = "${taken as it is}"
    config = resolve(draft)
    assert config.name == config.copy == config.anything == config.table["a"] == "${HOME}/x"
    assert config.folder == Path("${HOME}/x")
    assert config.words == ("${HOME}/x", "$${z}", "${HOME}/x")
    assert Literals().name == "x${y}"
    assert config.user.raw == "${taken as it is}"
    assert resolve(config.evolve(copy=config.name)).copy == config.name
    assert pickle.loads(pickle.dumps(config)) == config
    write_record(config, tmp_path)
    for source in (str(tmp_path), str(tmp_path / "config.toml"), str(tmp_path / "config.json")):
        twin = compose(Literals, source).resolve()
        assert twin == config and fingerprint(twin) == fingerprint(config)
    flags = ["--name", text, "--words", "[$${a}, '$${b']", "--table", "{k: $${c}}"]
    typed = compose(Literals, flags=flags).resolve()
    assert typed.words == ("${a}", "${b") and typed.table == {"k": "${c}"}
    assert compose(Literals, environ={"SETPOINT__NAME": text}).resolve().name == config.name


@pytest.mark.parametrize("text", ["a ${b c}", "${", "a ${b"])
def test_the_error_names_the_escape(text: str) -> None:
    with refused(ConfigError):
        Literals(name=text)
