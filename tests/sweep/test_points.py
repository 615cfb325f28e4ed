"""Points: composed as their own command lines would be, all checked, named, without duplicates."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from setpoint.config import Config, ConfigError, dead
from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint
from setpoint.config.values.node import chain_of
from setpoint.config.words.plain_data import PlainScalar
from setpoint.sweep.points import Composer, SweepError, read_command_line, resolve_points
from setpoint.sweep.setting import (
    MAX_NAME_LENGTH,
    Setting,
    axis_origin,
    labels,
    name_of,
    number_text,
    path_of,
    value_text,
)
from setpoint.sweep.space import RandomPoints

from ..support.snapshots import refused
from .space_sample import Root, open_root, sweep

INTS = st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True)


@given(INTS, INTS, st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=3, unique=True))
def test_a_grid_is_what_single_command_lines_give(
    seeds: list[int], halves: list[int], rates: list[float]
) -> None:
    assume(len(seeds) * len(halves) * len(rates) > 1)

    def words(values: list[object]) -> str:
        return ",".join(map(repr, values))

    tokens = [
        f"seed={words([*seeds])}",
        f"--size={words([2 * half for half in halves])}",
        f"--rule.lr={words([*rates])}",
    ]
    found = sweep(*tokens).kept
    expected = [
        fingerprint(compose(Root, flags=[f"seed={a}", f"size={2 * b}", f"rule.lr={c!r}"]).resolve())
        for a, b, c in itertools.product(seeds, halves, rates)
    ]
    assert [point.fingerprint for point in found] == expected
    names = [point.name for point in found]
    assert len(set(names)) == len(names)
    backwards = sweep(*tokens[:1], f"size={words([2 * h for h in reversed(halves)])}", tokens[2])
    assert {p.name: p.fingerprint for p in found} == {p.name: p.fingerprint for p in backwards.kept}


def test_points_have_names_and_origins() -> None:
    first, second = sweep("--rule.lr", "1e-4,0.0003").kept
    assert (first.name, second.name) == ("lr=1e-4", "lr=3e-4")
    origin = chain_of(second.config.rule, "lr")[-1][0]
    assert origin.describe(("rule", "lr")) == "sweep axis --rule.lr"


def test_duplicates_are_dropped_and_named() -> None:
    found = sweep("--seed", "1,01,2", "--shown", "yes,no")
    assert [point.name for point in found.kept] == ["seed=1,shown=yes", "seed=2,shown=yes"]
    lines = [duplicate.describe() for duplicate in found.duplicates]
    assert lines[0] == (
        "seed=1,shown=no: the same as seed=1,shown=yes; they differ in no identity "
        "field, only in shown"
    )
    assert lines[1] == "seed=01,shown=yes: the same as seed=1,shown=yes"
    assert len(lines) == 4
    lines = [each.describe() for each in sweep("--rule.lr", "1e-4,0.0001,1e-4").duplicates]
    assert lines == ["lr=0.0001: the same as lr=1e-4", "lr=1e-4: it appears twice"]


def test_a_mistake_of_many_values_is_reported_once() -> None:
    for words in (
        ["--rule.lrr", ",".join(map(str, range(10)))],
        ["--rule.lr", "-1"],
        ["--rule.lr", "-1", "--seed", "1,2"],
    ):
        with refused(SweepError):
            sweep(*words)


def test_modifiers_are_drawn_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(root: Root) -> Root:
        root.size = 128
        return root

    monkeypatch.setattr("setpoint.config.layers.presets.modifiers", {"large": large})
    line = read_command_line(Root, "defaults", ["choice(null, large)"], ["--seed", "3"])
    drawn, label = line.drawn["with",]
    axis = axis_origin(label)
    space = RandomPoints({("with",): (drawn.distribution, axis)}, 8, 0)
    found = resolve_points(space, Composer(open_root, line)).kept
    assert {point.name: point.config.size for point in found} == {"with=null": 8, "with=large": 128}
    with refused():
        read_command_line(Root, "defaults", ["choice(null, large)", "null,large"], [])


def test_too_many_points_are_refused_at_once() -> None:
    many = ",".join(map(str, range(500)))
    with refused():
        sweep(*(f"{name}={many}" for name in ("seed", "size", "parts", "rule.lr")))
    with refused():
        sweep("--seed", "1,2,3", limit=2)


class Mode(Config):
    kind: str = "a"
    extra: int = 0

    @dead("extra")
    def _dead(self) -> str | None:
        return "kind is b" if self.kind == "b" else None


def dead_in_b() -> Mode:
    """Sets what a later layer may make useless; given by its path."""
    return Mode(extra=5)


DEAD_IN_B = f"{__name__}:dead_in_b"


def test_a_dead_value_is_dropped_as_on_the_command_line() -> None:
    for tokens, single in (
        (["--kind=b,a"], ["--kind=b"]),
        (["--extra=1,2", "--kind=b"], ["--extra=1", "--kind=b"]),
    ):
        line = read_command_line(Mode, DEAD_IN_B, (), tokens)
        composer = Composer(lambda source, _, __: compose(Mode, source), line)
        point = next(iter(line.axes[0].points())) if line.axes else ()

        def outcome(make: Callable[[], Mode]) -> object:
            try:
                return make().extra
            except ConfigError as error:
                return [(problem.path, problem.message) for problem in error.problems]

        alone = outcome(lambda one=single: compose(Mode, DEAD_IN_B, flags=one).resolve())
        assert outcome(lambda c=composer, p=point: c.resolve(p)) == alone, tokens


# Names of points: readable, safe, and as different as the points.


SAFE = re.compile(r"[A-Za-z0-9._+~-]*")

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False)
    | st.text(max_size=60).filter(lambda text: text != "null"),  # which is None, quoted or not
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def setting(path: str, value: object) -> Setting:
    return Setting(path_of(path), value, axis_origin(path))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-4, "3e-4"), (PlainScalar("0.0003"), "3e-4"), (0.001, "1e-3"), (1e6, "1e6"),
        (1.0, "1.0"), (float("inf"), "inf"), (PlainScalar("true"), "true"), (None, "null"),
        (PlainScalar("null"), "null"), (PlainScalar("10 steps"), "10_steps"),
        ([0.9, 0.95], "0.9+0.95"), (PlainScalar("[0.9, 0.95]"), "0.9+0.95"), ([1], "+1"),
    ],
)  # fmt: skip
def test_values_read_as_people_write_them(value: object, text: str) -> None:
    assert value_text(value) == text


@given(VALUES)
def test_every_value_is_safe_in_a_file_name(value: object) -> None:
    text = value_text(value)
    assert SAFE.fullmatch(text) and len(text) <= 60


@pytest.mark.parametrize("value", ["../x", "", "1", "x" * 80, {"lr": 0.1}, "ü", "a+b", [""]])
def test_what_has_no_safe_text_gets_a_hash(value: object) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._+-]*~[0-9a-f]{8}", value_text(value))


@given(VALUES, VALUES)
def test_different_values_have_different_texts(first: object, second: object) -> None:
    # `repr` tells 1 from True and from 1.0, and -0.0 from 0.0.
    if repr(first) != repr(second):
        assert value_text(first) != value_text(second)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_texts_of_numbers_are_exact(number: float) -> None:
    assert float(number_text(number)) == number


def test_labels_are_the_shortest_that_tell_apart() -> None:
    paths = [path_of(text) for text in ("optimizer.lr", "schedule.lr", "seed", "a.betas.0")]
    assert list(labels(paths).values()) == ["optimizer.lr", "schedule.lr", "seed", "betas.0"]
    assert list(labels(paths[1:]).values()) == ["lr", "seed", "betas.0"]
    assert labels([path_of("optimizer.type")]) == {("optimizer",): "optimizer"}


def test_a_long_name_ends_in_a_hash() -> None:
    paths = [f"section.field_{index}" for index in range(30)]
    short = labels(map(path_of, paths))
    one = name_of(tuple(setting(path, 1.5) for path in paths), short)
    other = name_of(tuple(setting(path, 1.5 + (path == paths[-1])) for path in paths), short)
    assert len(one) <= MAX_NAME_LENGTH and len(other) <= MAX_NAME_LENGTH and one != other
    assert re.search(r"~[0-9a-f]{8}$", one)
