"""A tree with a field of every type that a config can have, and random drafts of it."""

import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

from setpoint.config import Config, Free, Secret, derive, derived, field, ref
from setpoint.config.component_sections import Partial
from setpoint.config.values.scalar import ImportPath
from setpoint.units import Duration, Period
from setpoint.units.dtype import DType
from setpoint.units.size import ByteSize

from .strategies import durations, keys, names, periods, plain, words


class Colour(enum.Enum):
    """A closed vocabulary."""

    RED = 1
    DEEP_BLUE = "blue"


class Part(Config):
    """A section that may stand in several places."""

    size: int = field(default=2, ge=1)
    title: str = "part"
    table: dict[str, int] = field(factory=lambda: {"one": 1, "two": 2})


class Shape(Config):
    """A family."""

    scale: float = 1.0


class Circle(Shape, type="circle"):
    """A variant."""

    part: Part | None = None


class Square(Shape, type="square"):
    """Another one."""

    parts: tuple[Part, ...] = ()
    twice: float = derived()

    @derive("twice")
    def _derive_twice(self) -> float:
        return 2 * self.scale if abs(self.scale) < 1e300 else 0.0


class Everything(Config):
    """The root."""

    whole: int = 0
    number: float = 0.5
    switch: bool = False
    text: str = "a"
    path: Path = Path("a")
    colour: Colour = Colour.RED
    word: Literal["a", "null", 3, True] = "a"
    maybe: int | None = 3
    maybe_text: str | None = None
    either: int | Literal["auto"] = "auto"
    pair: tuple[int, str] = (1, "a")
    many: tuple[float, ...] = (1.0,)
    listed: list[str] = field(factory=lambda: ["a"])
    nested: list[list[int]] = field(factory=list)
    table: dict[str, float] = field(factory=lambda: {"a": 1.0, "b c": 2.0})
    lists: dict[str, tuple[int, ...]] = field(factory=dict)
    period: Period = Period("10 steps")
    duration: Duration = Duration("1 min")
    size: ByteSize = ByteSize("16 MiB")
    dtype: DType = DType("bfloat16")
    pattern: re.Pattern[str] = re.compile("a.*")
    maybe_pattern: re.Pattern[str] | None = None
    function: ImportPath = ImportPath("math.sqrt")
    maybe_function: Callable[..., Any] | None = None
    secret: Secret | None = None
    component: Partial | None = None
    part: Part = field(factory=Part)
    other: Part = field(factory=lambda: Part(size=5, table={"x": 1}))
    maybe_part: Part | None = None
    shape: Circle | Square = field(factory=Circle)
    maybe_shape: Shape | None = field(factory=lambda: Square(parts=(Part(size=9),)))
    parts: tuple[Part, ...] = field(factory=lambda: (Part(size=4),))
    shapes: list[Shape] = field(factory=list)
    by_name: dict[str, Part] = field(factory=lambda: {"first": Part(size=7)})
    mixed: tuple[int, Part, Shape | None] = field(factory=lambda: (1, Part(), None))
    deep: dict[str, list[Part | None]] = field(factory=dict)
    free: Free = field(factory=Free)


wholes = st.integers(-(2**80), 2**80)
floats = st.floats(allow_nan=False)
patterns = st.sampled_from(["", "a|b", "(?i)warm", r"\d+\.é", "[$]", '"'])
components = st.builds(
    lambda values: Partial(target="collections.OrderedDict", **values),
    st.dictionaries(
        st.sampled_from(["lr", "betas", "name_of"]),
        st.integers(-5, 5) | st.booleans() | st.lists(st.floats(0, 1), max_size=2),
        max_size=2,
    ),
)
references = st.sampled_from(
    ["part.size", "part.size * 2 + 1", "-other.size", "(part.size + 7) // 2 ** 2", "parts[0].size"]
)
_table = st.dictionaries(words.filter(lambda key: key != "remove"), st.integers(), max_size=3)


@st.composite
def everything(draw: st.DrawFn) -> Everything:
    """A draft in which any section may stand in several places, and any value be a reference."""
    part = st.builds(
        lambda values: Part(**values),
        st.fixed_dictionaries(
            {}, optional={"size": st.integers(1, 9), "title": words, "table": _table}
        ),
    )
    pool = [draw(part) for _ in range(draw(st.integers(1, 3)))]
    some = st.sampled_from(pool) | part
    shapes = st.builds(
        lambda values: Circle(**values),
        st.fixed_dictionaries({}, optional={"scale": floats, "part": st.none() | some}),
    ) | st.builds(
        lambda values: Square(**values),
        st.fixed_dictionaries(
            {}, optional={"scale": floats, "parts": st.lists(some, max_size=2), "twice": floats}
        ),
    )
    forms = [draw(shapes) for _ in range(draw(st.integers(1, 2)))]
    form = st.sampled_from(forms) | shapes
    # Names of keys go into dotted paths, so that sections in mappings have no dots in them.
    named = words.filter(lambda key: key not in ("", "remove") and "." not in key)
    numbers = wholes | references.map(ref)
    values = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "whole": numbers,
                "number": floats | references.map(ref),
                "switch": st.booleans(),
                "text": words,
                "path": st.sampled_from(["null", "a/b", "~/x", "..", "é"]).map(Path),
                "colour": st.sampled_from(Colour),
                "word": st.sampled_from(["a", 3, True]),
                "maybe": st.none() | numbers,
                "maybe_text": st.none() | words,
                "either": st.just("auto") | numbers,
                "pair": st.tuples(numbers, words),
                "many": st.lists(floats | references.map(ref), max_size=3),
                "listed": st.lists(words, max_size=3),
                "nested": st.lists(st.lists(numbers, max_size=2), max_size=2),
                "table": st.dictionaries(
                    words.filter(lambda key: key != "remove"),
                    floats | references.map(ref),
                    max_size=2,
                ),
                "lists": st.dictionaries(keys, st.lists(numbers, max_size=2), max_size=2),
                "period": periods,
                "duration": durations,
                "size": st.integers(0, 2**50).map(ByteSize),
                "dtype": st.sampled_from(["float32", "fp16", "float8_e4m3fn"]).map(DType),
                "pattern": patterns.map(re.compile),
                "maybe_pattern": st.none() | patterns.map(re.compile),
                "function": st.sampled_from(["math.exp", "collections:OrderedDict.fromkeys"]),
                "maybe_function": st.none() | st.just("math.exp"),
                "secret": st.none() | st.just(Secret("env:TOKEN")),
                "component": st.none() | components,
                "part": some,
                "other": some,
                "maybe_part": st.none() | some,
                "shape": form,
                "maybe_shape": st.none() | form,
                "parts": st.lists(some, min_size=1, max_size=3),
                "shapes": st.lists(form, max_size=3),
                "by_name": st.dictionaries(named, some, max_size=3),
                "mixed": st.tuples(numbers, some, st.none() | form),
                "deep": st.dictionaries(named, st.lists(st.none() | some, max_size=2), max_size=2),
                "free": st.dictionaries(names, plain, max_size=2),
            },
        )
    )
    return Everything(**values)
