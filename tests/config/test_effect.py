"""Settings without effect: an error where they were meant, a note where they were overtaken."""

from pathlib import Path

from setpoint.config import Config, ConfigError, dead, derive, derived, field, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.config import is_set
from setpoint.config.draft.walk import dropped_values, overridden, to_plain
from setpoint.config.record.record import fingerprint
from setpoint.presets.modifiers import smoke
from setpoint.train.config import Job

from ..support.snapshots import refused


class Inner(Config):
    a: int = 1
    b: int = 2


class Root(Config):
    mode: str = "b"
    big: bool = derived()
    extra: int = 5
    double: int = derived()
    inner: Inner = field(factory=Inner)
    maybe: Inner | None = None
    other: Inner = field(factory=Inner)

    @derive("big")
    def _derive_big(self) -> bool:
        return self.mode == "a"

    @derive("double")
    def _derive_double(self) -> int:
        return self.extra * 2

    @dead("extra", "inner", "maybe", "other.b")
    def _dead(self) -> str | None:
        return "mode is a" if self.big else None


def source() -> Root:
    """A preset's work, given by its path."""
    draft = Root(mode="b", extra=9, maybe=Inner(a=3))
    draft.inner.a = 7
    return draft


SOURCE = f"{__name__}:source"


def test_what_stands_in_a_section_counts_wherever_it_was_set(tmp_path: Path) -> None:
    flags = ["mode=a", "inner.a=3", "maybe={a: 2}", "other.a=3", "other.b=4"]
    with refused(ConfigError):
        compose(Root, flags=flags).resolve()
    file = tmp_path / "x.toml"
    file.write_text('mode = "a"\n[inner]\na = 3\nb = 2\n')  # b stands at its default
    with refused(ConfigError):
        compose(Root, str(file)).resolve()


def test_what_an_earlier_layer_gave_is_dropped_with_a_note() -> None:
    config = compose(Root, SOURCE, flags=["mode=a"]).resolve()
    assert (config.extra, config.double, config.inner, config.maybe) == (5, 10, Inner(), None)
    assert not is_set(config, "extra")
    lines = list(dropped_values(config))
    assert [line.partition(" = ")[0] for line in lines] == ["extra", "maybe.a", "inner.a"]
    assert lines[0].startswith("extra = 9, from preset ")
    assert lines[0].endswith("no effect: mode is a")
    assert fingerprint(config) == fingerprint(compose(Root, flags=["mode=a"]).resolve())
    again = resolve(compose(Root, SOURCE).resolve().evolve(mode="a"))
    assert again == config


def test_an_equal_or_later_layer_is_an_error() -> None:
    with refused(ConfigError):
        compose(Root, SOURCE, flags=["mode=a", "extra=3"]).resolve()
    draft = Root(mode="a")
    draft.extra = 9
    with refused(ConfigError):
        resolve(draft)
    draft.extra = 5  # its default is not a mistake
    assert resolve(draft).extra == 5


def test_a_method_that_is_wrong_is_named() -> None:
    class Wrong(Config):
        x: int = 1
        y: int = 1

        @dead("x")
        def _writes(self) -> str | None:
            self.y = 3
            return None

        @dead("y")
        def _fails(self) -> str | None:
            return str(1 // (self.x - 2))

        @dead("y")
        def _says_true(self) -> str | None:
            return True  # pyright: ignore[reportReturnType]

    with refused(ConfigError):
        resolve(Wrong(x=2, y=2))
    assert resolve(Wrong()).x == 1  # a method is asked about what is set


class Schedule(Config):
    kind: str = "linear"
    warmup: int = 0
    label: str = ""

    @dead("warmup")
    def _dead(self) -> str | None:
        return f"kind is constant ({self.label})" if self.kind == "constant" else None


def test_a_later_value_that_is_no_cause_excuses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('kind = "constant"\nwarmup = 5\n')
    with refused(ConfigError):
        compose(Schedule, str(file), flags=["--label=x"]).resolve()
    file.write_text("warmup = 5\n")
    flags = ["--kind=constant", "--label=x"]
    config = compose(Schedule, str(file), flags=flags).resolve()
    assert (config.warmup, config.label) == (0, "x") and len(list(dropped_values(config))) == 1


class Curve(Config):
    """A family, of which one variant has no use for a field that all have."""

    warmup: int = 0


class Cosine(Curve, type="cosine"):
    pass


class Flat(Curve, type="flat"):
    @dead("warmup")
    def _dead(self) -> str:
        return "the curve is flat"


class Curved(Config):
    curve: Cosine | Flat = field(factory=Cosine)


def test_a_later_variant_is_a_cause(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("curve = {warmup = 5}\n")
    config = compose(Curved, str(file), flags=["--curve=flat"]).resolve()
    assert config.curve == Flat() and len(list(dropped_values(config))) == 1
    file.write_text('curve = {type = "flat", warmup = 5}\n')
    with refused(ConfigError):
        compose(Curved, str(file), flags=["--curve=flat"]).resolve()


class Shop(Config):
    """What is derived, and items, of which one mode makes nothing."""

    open: bool = True
    total: int = derived()
    items: tuple[Inner, ...] = field(factory=lambda: (Inner(), Inner(a=5)))
    named: dict[str, Inner] = field(factory=lambda: {"x": Inner()})

    @derive("total")
    def _derive_total(self) -> int:
        return sum(item.a for item in self.items)

    @dead("total", "items", "named")
    def _dead(self) -> str | None:
        return None if self.open else "closed"


def test_a_field_of_an_item_is_as_dead_as_the_list() -> None:
    flags = ["open=false", "items.1.b=7", "named.x.b=8"]
    with refused(ConfigError):
        compose(Shop, flags=flags).resolve()
    shop = compose(Shop, flags=["items.1.a=7"], program={"open": False}).resolve()
    assert shop.items[1].a == 5 and shop.total == 6
    assert ["items.1.a = 7" in line for line in dropped_values(shop)] == [True]
    assert fingerprint(shop) == fingerprint(compose(Shop, program={"open": False}).resolve())


def test_a_complete_file_repeats_what_is_derived() -> None:
    shop = compose(Shop, flags=["open=false"]).resolve()
    again = compose(Shop, program=to_plain(shop)).resolve()
    assert again == shop == resolve(again) and fingerprint(again) == fingerprint(shop)
    with refused(ConfigError):
        compose(Shop, flags=["open=false", "total=7"]).resolve()


# What a modifier set and a later layer set to something else.


def lines(source: str | None, *flags: str, modifiers: tuple[str, ...] = ("smoke",)) -> list[str]:
    assert smoke  # registered by name
    return list(overridden(compose(Job, source, modifiers=modifiers, flags=flags).resolve()))


def test_each_value_that_a_later_layer_replaced(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('name = "exp"\nduration = "7 steps"\n')
    assert lines(str(file)) == []  # what is typed beats what is written
    assert lines(str(file), "duration=5 steps") == [
        "duration = '10 steps' of --with smoke, by command line duration"
    ]
    assert lines(None, "evaluation.sequences=4") == [
        "evaluation.sequences = 16 of --with smoke, by command line evaluation.sequences"
    ]
    (line,) = lines(None, modifiers=("smoke", "smoke(steps=3)"))
    assert line.startswith("duration = '10 steps' of --with smoke, by modifier smoke(steps=3) (")


def test_nothing_is_said_where_nothing_is_lost() -> None:
    assert lines(None) == []
    assert lines(None, "duration=10 steps") == []
    assert lines(None, "duration=7 steps", modifiers=()) == []


def test_a_null_that_a_later_value_takes_back_is_dropped() -> None:
    def dropped(*flags: str) -> list[str]:
        return list(dropped_values(compose(Job, flags=flags).resolve(), "evaluation"))

    off, on = "evaluation=null", "evaluation.every=3 steps"
    assert dropped(off, on) == [
        "evaluation = null, from command line evaluation: command line evaluation.every sets a "
        "field of the section after it"
    ]
    assert not any("= null," in line for line in dropped(off, on, off)) and dropped(off) == []
