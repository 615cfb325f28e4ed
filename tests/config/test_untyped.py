"""Values of no declared type, and alternatives: the same wherever they are written, and kept."""

import enum
import pathlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch

from setpoint.config import (
    Config,
    ConfigError,
    Free,
    Secret,
    compose,
    field,
    fingerprint,
    read_record,
    record_files,
    resolve,
    to_plain,
)
from setpoint.config.draft.walk import to_minimal
from setpoint.config.files.write import write_json, write_toml, write_yaml
from setpoint.config.record.python_source import to_python
from setpoint.config.types.compiler import compile_annotation
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.errors import DeclarationError, Invalid
from setpoint.config.words.plain_data import PlainScalar

from ..support.snapshots import refused

WRITERS = {"toml": write_toml, "yaml": write_yaml, "json": write_json}


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()
    CHANGE = READ | WRITE


class Wide(enum.IntFlag):
    A = 1
    B = 4


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1


Odd = enum.Enum("Odd", {"not a name": 1, "class": 2})


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    ONE = "one"


class Share(float):
    def __repr__(self) -> str:
        return "a share"


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


class Part(Config):
    size: int = 1


class Root(Config, environment_prefix="APP"):
    """Every field that takes data of no declared type."""

    any: Any = None
    thing: object = None
    mapping: dict[str, Any] = field(factory=dict)
    items: list[Any] = field(factory=list)
    bare: dict = field(factory=dict)
    maybe: dict[str, Any] | None = None
    user: Free = field(factory=Free)
    access: Access = Access.READ
    wide: Wide = Wide.A
    color: Color = Color.RED
    odd: Odd = Odd["not a name"]
    real: float = 0.0
    count: int = 0
    on: bool = False
    text: str = ""


def stored(flag: str, value: str) -> Any:
    """The field `any`, or the one that a flag names first, with that flag."""
    config = compose(Root, flags=[flag, value]).resolve()
    return getattr(config, flag.removeprefix("--").partition(".")[0])


WORDS = {
    "[1, 2]": (1, 2), "{k: [1, null]}": {"k": (1, None)}, '"1"': "1", "'a, b'": "a, b", "1.5": 1.5,
    "true": True, "a, b": "a, b", "[]": (),
}  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_the_same_words_are_the_same_data_wherever_they_are_typed(words: str) -> None:
    wanted = WORDS[words]
    assert stored("--any", words) == wanted
    assert stored("--thing", words) == wanted
    assert stored("--mapping.k", words) == {"k": wanted}
    assert stored("--maybe.k", words) == {"k": wanted}
    assert stored("--bare.k", words) == {"k": wanted}
    assert stored("--items.append", words) == [wanted]
    assert compose(Root, environ={"APP__ANY": words}).resolve().any == wanted
    user = compose(Root, flags=["--user.k", words]).resolve().user
    assert user.dump().get("k", {}) == Free(k=wanted).dump().get("k", {})


@pytest.mark.parametrize("words", ["[1, 2", '"x', "1e400", "{a: 1, a: 2}"])
def test_broken_data_is_refused_and_never_taken_for_a_text(words: str) -> None:
    places = ("any", "mapping.k", "items.append", "user.k")
    with refused(ConfigError):
        compose(Root, flags=[f"--{place}={words}" for place in places]).resolve()


def test_a_text_of_python_or_in_quotes_stays_a_text() -> None:
    assert Root(any="[1, 2").any == "[1, 2"
    assert compose(Root, program={"any": "{a: 1}"}).resolve().any == "{a: 1}"


def test_a_path_leads_into_data() -> None:
    flags = ["--any.a.b", "3", "--any.a.c.append", "x", "--any.a.c.append", "y", "--any.a.c.0", "z"]
    assert compose(Root, flags=flags).resolve().any == {"a": {"b": 3, "c": ("z", "y")}}
    taken = compose(Root, flags=["--any", "[1, true, 2]", "--any.remove", "true"]).resolve()
    assert taken.any == (1, 2)
    inserted = compose(Root, flags=["--any", "[1, 2]", "--any.insert.1", "{x: 1}"]).resolve()
    assert inserted.any == (1, {"x": 1}, 2)
    with refused(ConfigError):
        compose(Root, flags=["--any", "5", "--any.a", "1"]).resolve()
    environ = {"APP__ANY__a__B": "3", "APP__ANY__a__c__APPEND": "[4]"}
    assert compose(Root, environ=environ).resolve().any == {"a": {"B": 3, "c": ((4,),)}}


def test_inside_data_a_text_like_a_reference_is_a_text() -> None:
    for config in (
        Root(any=[{"x": "${nowhere}"}]),
        compose(Root, flags=["--any", "[{x: '${nowhere}'}]"]).draft,
        compose(Root, flags=["--any.append", "{x: '${nowhere}'}"]).draft,
    ):
        assert resolve(config).any == ({"x": "${nowhere}"},)


# Alternatives of texts and lists.


@pytest.mark.parametrize(
    ("annotations", "text", "wanted"),
    [
        ((list[int] | str, str | list[int]), "[1, 2]", [1, 2]),
        ((list[int] | str, str | list[int]), "1,2", "1,2"),
        ((list[str] | str, str | list[str]), "a,b", "a,b"),
        ((list[str] | str, str | list[str]), "[a, b]", ["a", "b"]),
        ((list[str] | str, str | list[str]), "'[a, b]'", "[a, b]"),
        ((dict[str, int] | str, str | dict[str, int]), "{a: 1}", {"a": 1}),
        ((dict[str, int] | str, str | dict[str, int]), "[a]", "[a]"),
        ((list[int] | int, int | list[int]), "1,2", [1, 2]),
        ((list[int] | list[float], list[float] | list[int]), "[1]", [1]),
        ((list[float] | dict[str, int], dict[str, int] | list[float]), "{a: 1}", {"a": 1}),
        ((Any | str, str | Any), "1", 1),
        ((int | list[Any] | None, list[Any] | int | None), "[{a: 1}]", [{"a": 1}]),
    ],
)
def test_the_order_of_alternatives_does_not_matter(
    annotations: tuple[Any, Any], text: str, wanted: object
) -> None:
    for annotation in annotations:
        value = compile_annotation(annotation, "here").read(PlainScalar(text), Origin(PROGRAM))
        assert (type(value), value) == (type(value), wanted)
        assert isinstance(value, type(wanted))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (list[int] | str, "[1, 2"),
        (str | list[int], "[1, x]"),
        (str | list[int], '"a'),
        (str | list[Secret], "[hunter2"),
    ],
)
def test_a_broken_alternative_is_refused(annotation: Any, text: str) -> None:
    with refused(Invalid):
        compile_annotation(annotation, "here").read(PlainScalar(text), Origin(PROGRAM))


class Union(Config):
    number: int = 2
    sizes: list[int] | str = ""
    name: str | list[str] = "x"
    limits: dict[str, int] | str = ""


def test_alternatives_are_edited_like_lists_and_mappings() -> None:
    def union(*flags: str) -> Union:
        return compose(Union, flags=flags).resolve()

    assert union("--sizes.append", "3").sizes == [3]
    assert union("--sizes", "[1]", "--sizes.append", "3", "--sizes.insert.0", "0").sizes == [
        0,
        1,
        3,
    ]
    assert union("--name", "[a, b]", "--name.remove", "a").name == ["b"]
    assert union("--limits.a", "3").limits == {"a": 3}
    assert union("--limits", "{a: 1}", "--limits.b", "3").limits == {"a": 1, "b": 3}
    assert union("--sizes", "[${number}, 1]").sizes == [2, 1]
    edited = compose(Union, program={"sizes": {"append": 3}, "limits": {"a": 1}}).resolve()
    assert (edited.sizes, edited.limits) == ([3], {"a": 1})
    with refused(ConfigError):
        union("--name.append", "y")


def test_null_is_no_word_of_a_field_that_may_be_null() -> None:
    with refused(DeclarationError):
        compile_annotation(Literal["null", "other"] | None, "here")


# What Python gives.

KEPT = {
    "float64": (np.float64(0.25), 0.25),
    "int64": (np.int64(3), 3),
    "bool_": (np.bool_(True), True),
    "no dimensions": (np.array(2), 2),
    "tensor": (torch.tensor(1.5), 1.5),
    "nested": ([{"a": (np.float64(0.5), np.bool_(False))}], ({"a": (0.5, False)},)),
    "key": ({np.str_("k"): 1}, {"k": 1}),
    "int enum": (Level.HIGH, 3),
    "str enum": (Word.ONE, "one"),
    "float subclass": (Share(0.25), 0.25),
    "str subclass": (Loud("quiet"), "quiet"),
    "minus zero": (-0.0, 0.0),
    "reserved keys": ({"type": "x", "extends": "y", "remove": 1}, None),
}


def in_mapping(value: Any) -> Root:
    config = Root()
    config.mapping["k"] = value
    return config


def in_list(value: Any) -> Root:
    config = Root()
    config.items.append([value])
    return config


def in_user(value: Any) -> Root:
    config = Root()
    config.user.a.k = value
    return config


PLACES: list[Callable[[Any], Root]] = [lambda value: Root(any=value), in_mapping, in_list, in_user]


def everywhere(value: Any) -> Root:
    config = Root(any=value, mapping={"k": value}, items=[[value]])
    config.user.a.k = value
    return config


@pytest.mark.parametrize("name", KEPT)
def test_what_python_gives_is_kept_as_plain_data(name: str, tmp_path: Any) -> None:
    given, plain = KEPT[name]
    for put in PLACES:
        assert resolve(put(given)) == resolve(put(given if plain is None else plain)), put
    reads_back(resolve(everywhere(given)), tmp_path)


def reads_back(config: Root, folder: Any) -> None:
    """All forms of a configuration read as an equal one."""
    texts = {
        f"{kind}.{suffix}": write(data)
        for suffix, write in WRITERS.items()
        for kind, data in (("all", to_plain(config)), ("minimal", to_minimal(config)))
    }
    again: list[Any] = []
    for name, text in {**texts, **record_files(config)}.items():
        (folder / name).write_text(text)
    again += [compose(Root, files=[str(folder / name)]).resolve() for name in texts]
    again.append(resolve(read_record(Root, str(folder))[0]))
    names: dict[str, Any] = {}
    exec(to_python(config), names)
    again.append(resolve(names["my_preset"]()))
    for other in again:
        assert other == config
        assert fingerprint(other) == fingerprint(config)


REFUSED = {
    "key 1": {1: "cat", "1": "dog"}, "bytes": b"x", "key inside": {"a": [{1: 2}]},
    "numpy key": {np.int64(1): 2}, "array": np.array([1, 2]), "complex": 1j, "inf": float("inf"),
    "path": pathlib.Path("x"), "enum": Color.RED, "section": Part(), "digits": 10**5000,
    "surrogate": "\ud800", "function": print,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_could_hold_is_refused_where_it_is_assigned(name: str) -> None:
    with refused(ConfigError):
        Root(any=REFUSED[name])
    for put in PLACES:
        with pytest.raises((ConfigError, Invalid)):
            put(REFUSED[name])


def test_names_of_members_read_back(tmp_path: Any) -> None:
    assert compose(Root, flags=["--color", "CRIMSON"]).resolve().color is Color.RED
    assert compose(Root, flags=["--access", "RUN | CHANGE"]).resolve().access == Access(7)
    config = resolve(
        Root(odd=Odd["class"], wide=Wide.A | Wide.B, access=Access.CHANGE | Access.RUN)
    )
    assert to_plain(config)["access"] == "READ|WRITE|RUN"
    reads_back(config, tmp_path)
    assert compose(Root, flags=["--access=0"]).resolve().access == Access(0)
    with refused(ConfigError):
        Root(wide=Wide(8))
    with refused(ConfigError):
        compose(Root, flags=["--access", "READ|RUIN"]).resolve()


# Keys of mappings that are made from inside.


class Opened(Config, environment_prefix="APP"):
    parts: dict[str, Part] = field(factory=dict)
    lists: dict[str, list[int]] = field(factory=dict)
    nested: dict[str, dict[str, dict[str, str]]] = field(factory=dict)
    data: dict[str, Any] = field(factory=dict)
    maybe: dict[str, Part] | None = None
    inner: dict[str, Part | None] = field(factory=lambda: {"z": None})
    numbers: dict[str, int | None] = field(factory=lambda: {"z": None})


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("parts.a.size", "3", {"a": Part(size=3)}),
        ("nested.foo.a.b", "bar", {"foo": {"a": {"b": "bar"}}}),
        ("data.a.b.c", "[1]", {"a": {"b": {"c": (1,)}}}),
        ("maybe.a.size", "3", {"a": Part(size=3)}),
        ("inner.z.size", "3", {"z": Part(size=3)}),
    ],
)
def test_a_new_key_is_made_by_setting_something_inside_it(
    path: str, value: str, wanted: object
) -> None:
    name, *rest = path.split(".")
    variable = "__".join(("APP", name.upper(), *rest))
    for composition in (
        compose(Opened, flags=[f"--{path}", value]),
        compose(Opened, environ={variable: value}),
    ):
        assert getattr(composition.resolve(), name) == wanted


def test_a_path_leads_into_lists_of_the_user_area() -> None:
    def user(*flags: str) -> dict[str, Any]:
        return compose(Root, flags=flags).resolve().user.dump()

    assert user("--user.a.append", "1", "--user.a.append", "[2]") == {"a": [1, [2]]}
    assert user("--user.a", "[{x: 1}]", "--user.a.0.x", "3", "--user.a.insert.0", "b") == {
        "a": ["b", {"x": 3}]
    }
    assert user("--user.a.b", "1", "--user.a.append", "2") == {"a": {"b": 1, "append": 2}}
    assert user("--user.a", "null", "--user.a.b", "2") == {"a": {"b": 2}}
    with refused(ConfigError):
        user("--user.a", "1", "--user.a.b", "2")
