"""Resolving: derivation, references among items, checks and cycles."""

from collections.abc import Iterator
from typing import Any, Literal

from setpoint.config import (
    Config,
    ConfigError,
    Invalid,
    Problem,
    dead,
    derive,
    derived,
    field,
    ref,
    resolve,
    rule,
)
from setpoint.config.composition import Composition, compose
from setpoint.config.values.node import chain_of

from ..support.snapshots import refused
from .helpers import problems_of, resolved
from .sample import Job, Recurrent, Transformer


def test_two_layers_that_contradict_are_both_named() -> None:
    draft = Job(model=Transformer(dim=64))
    with refused(ConfigError):
        compose(Job, draft, environ={"SETPOINT__MODEL__HEADS": "5"}).resolve()


def test_items_that_were_changed_in_place_are_checked() -> None:
    draft = Job(thresholds={"loss": 1.0})
    draft.thresholds["loss"] = -1.0
    with refused(ConfigError):
        resolve(draft)


def test_a_check_that_reads_a_wrong_value_says_nothing_more() -> None:
    class Root(Config):
        a: int = field(default=1, ge=1)
        b: tuple[int, ...] = (1, 2)

        @rule
        def _check_first(self) -> list[Problem]:
            return [Problem("a", "is odd")] if self.a % 2 else []

        @rule
        def _check_second(self) -> list[Problem]:
            return [Problem("b.1", "is two", also=("a",), valid=["3"])] if self.b[1] == 2 else []

        @dead("a")
        def _dead_a(self) -> str | None:
            return "b is empty" if not self.b else None

    for draft in (Root(), Root(b=[1, 2]), compose(Root, flags=["--a=0", "--b=[x]"])):
        with refused(ConfigError):
            draft.resolve() if isinstance(draft, Composition) else resolve(draft)


class Item(Config):
    """An item with derived values that read one another."""

    size: int = field(default=2, ge=1)
    double: int = derived()
    total: int = derived()

    @derive("double")
    def _derive_double(self) -> int:
        return 2 * self.size


class Derived(Config):
    """Derives from what is derived in a list and in a mapping."""

    items: tuple[Item, ...] = field(factory=lambda: (Item(), Item(size=3)))
    named: dict[str, Item] = field(factory=lambda: {"a": Item(size=5)})
    single: Item = field(factory=Item)
    total: int = derived(le=1000)

    @property
    def everything(self) -> list[Item]:
        """All items."""
        return [*self.items, *self.named.values(), self.single]

    def summed(self) -> int:
        """A method that a derivation calls."""
        return sum(item.double for item in self.everything)

    @derive("total")
    def _derive_total(self) -> int:
        assert all(isinstance(item, Item) for item in self.everything)
        return self.summed()

    @derive("single.total")
    def _derive_single_total(self) -> int:
        return self.total

    @rule
    def _check_nothing(self) -> list[Any]:
        return []


def test_derivations_through_lists_properties_and_methods() -> None:
    draft = Derived(
        items=[Item(total=0), Item(size=3, total=0)], named={"a": Item(size=5, total=0)}
    )
    root = resolve(draft)
    assert root.total == root.single.total == 2 * (2 + 3 + 5 + 2)
    origin = chain_of(root, "total")[-1][0].describe(())
    assert "items.1.double" in origin
    assert "named.a.double" in origin


def test_a_derived_value_that_nothing_derives_is_reported() -> None:
    with refused(ConfigError):
        resolve(Derived())


def test_a_derived_value_out_of_range_or_of_the_wrong_type() -> None:
    with refused(ConfigError):
        resolve(Derived(items=[Item(size=900, total=0)], named={}))

    class Wrong(Config):
        a: int = derived()
        b: int = derived()
        c: int = derived()
        d: int = derived()

        @derive("a")
        def _a(self) -> Any:
            return 1.5

        @derive("b")
        def _b(self) -> Any:
            return None

        @derive("c")
        def _c(self) -> int:
            return 1 // 0

        @derive("d")
        def _d(self) -> int:
            raise Invalid("must be set", ("3",), hint="Because.")

    with refused(ConfigError) as caught:
        resolve(Wrong())
    (fault,) = [problem for problem in caught.value.problems if problem.traceback]
    assert caught.value.status == 1  # a fault in the code, whatever else is wrong
    assert fault.path == "c" and "return 1 // 0" in fault.traceback


def test_cycles_are_named_and_end() -> None:
    class Cyclic(Config):
        a: int = derived()
        b: int = derived()
        c: int = derived()
        d: int = 3

        @derive("a")
        def _a(self) -> int:
            return self.b

        @derive("b")
        def _b(self) -> int:
            return self.a + self.d

        @derive("c")
        def _c(self) -> int:
            return self.a

    with refused(ConfigError):
        resolve(Cyclic())
    with refused(ConfigError):
        compose(Cyclic, flags=["--d=${d + 1}", "--a=1"]).resolve()
    assert resolve(Cyclic(a=1)).b == 4


def test_a_derivation_of_a_section_that_is_of_another_variant_is_skipped() -> None:
    assert resolved("--model=recurrent").model == Recurrent()


class Many(Config):
    width: int = 8
    sizes: list[int] = field(factory=list, item_ge=0)
    pair: tuple[int, float] = (1, 0.5)
    named: dict[str, float] = field(factory=dict)
    nested: tuple[tuple[int, ...], ...] = ()
    either: tuple[int, ...] | Literal["auto"] = "auto"
    total: int = derived()

    @derive("total")
    def _derive_total(self) -> int:
        return sum(self.sizes) + self.pair[0]


def many(*flags: str) -> Many:
    """With flags."""
    return compose(Many, flags=flags).resolve()


def test_items_of_lists_tuples_and_mappings() -> None:
    config = many(
        "--sizes", "[${width * 2}, 3, ${sizes.0 + sizes.1}]", "--pair", "${width},${1 / 4}",
        "--named", "{a: ${named.b * 2}, b: ${pair.1}}", "--nested", "[[1, ${width}], ${sizes}]",
        "--either", "[${width}]",
    )  # fmt: skip
    assert config.sizes == [16, 3, 19]
    assert config.pair == (8, 0.25)
    assert config.named == {"a": 0.5, "b": 0.25}
    assert config.nested == ((1, 8), (16, 3, 19))
    assert config.either == (8,)
    assert config.total == 38 + 8
    chain = chain_of(config, "sizes")
    assert [origin.describe(("sizes",)) for origin, _ in chain] == [
        "command line --sizes",
        "reference ${width * 2}, ${sizes.0 + sizes.1} over width, sizes.0, sizes.1",
    ]
    assert (many("--width=1", "--sizes=${nested.0}", "--nested=[[${width}]]")).sizes == [1]


def test_items_follow_later_layers_and_evolve() -> None:
    config = many("--sizes=[${width}]", "--width=3")
    draft = config.evolve(width=5)
    assert resolve(draft).sizes == [5]
    draft.sizes.append("${width + 1}")
    draft.sizes.append(ref("width + 2"))
    assert resolve(draft).sizes == [5, 6, 7]
    assert compose(Many, config, flags=["--sizes.append=${width * 2}"]).resolve().sizes == [3, 6]


def test_what_is_wrong_with_items() -> None:
    flags = ["--sizes=[${sizes.1}, ${sizes.0}, ${nix}, ${width / 3}, ${-width}, ${width // 0}]",
             "--pair=[${widht}, ${named}]", "--named={a: ${named}}", "--either=[${width / 3}]",
             "--nested=[[${nested.0.0}], [${named.a}]]"]  # fmt: skip
    with refused(ConfigError):
        many(*flags)


def test_long_chains_of_references_end() -> None:
    """References that read one another a thousand deep are an error, not a traceback."""
    texts = [f"${{sizes.{index + 1} + 1}}" for index in range(2000)]
    problems = problems_of(lambda: resolve(Many(sizes=[*texts, 1])))
    assert any("values that depend on one another" in p.message for p in problems)
    assert resolve(Many(sizes=[*texts[:40], *([1] * 10)])).sizes[0] == 41


def test_a_reference_that_comes_to_a_reference() -> None:
    """Text of the user area may look like a reference, which no field can hold."""
    draft = Job(name="${user.text}", user={"text": "${a}"})
    with refused(ConfigError):
        resolve(draft)


class Head(Config, type="head"):
    """A section whose own value follows from another one of it."""

    width: int = 1
    double: int = derived()

    @derive("double")
    def _double(self) -> int:
        return 2 * self.width

    @rule
    def _small(self) -> Iterator[Problem]:
        if self.double > 100:
            yield Problem("double", f"is {self.double} > 100")


class Heads(Config):
    """Sections that are made while values are computed."""

    sizes: dict[str, int] = field(factory=lambda: {"width": 5})
    width: int = 2
    made: Head = derived()
    named: Head | None = None
    listed: list[Head] = field(factory=list)
    seen: int = 0

    @derive("made")
    def _made(self) -> Any:
        return {"width": self.width}


def test_sections_that_are_made_are_computed_checked_and_frozen() -> None:
    """Whoever makes them: a method, a reference to a mapping, or one as an item."""
    job = resolve(Heads(named=ref("sizes"), listed=[ref("sizes")], seen=ref("listed[0].double")))
    assert (job.made.double, job.seen) == (4, 10)
    assert job.named is not None and job.named.double == 10
    for section in (job.made, job.named, job.listed[0]):
        with refused():
            section.width = 3
    with refused(ConfigError):
        resolve(Heads(width=99))
    assert resolve(job.evolve(width=3)).made.double == 6
