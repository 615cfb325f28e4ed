"""What a check yields is held to its word."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from setpoint.config import (
    Caution,
    Config,
    ConfigError,
    Free,
    Problem,
    derive,
    derived,
    field,
    resolve,
    rule,
)
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import cautions_of, known_cautions, verify

from ..support.snapshots import refused
from .helpers import problems_of


def _config(method: Callable[[Any], Any]) -> Config:
    class Checked(Config):
        x: int = 1
        items: list[int] = field(factory=list)
        _it = rule(method)

    return Checked()


def _raises(self: Any) -> Any:
    raise ValueError("nope")


def _writes(self: Any) -> Any:
    self.x = 33
    yield from ()


def _appends(self: Any) -> Any:
    self.items.append(33)
    yield from ()


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "none": lambda self: None,
    "one problem": lambda self: Problem("x", "bad"),
    "text": lambda self: "bad",
    "config": lambda self: self,
    "list of texts": lambda self: ["bad"],
    "error": _raises,
    "assignment": _writes,
    "change in place": _appends,
    "unknown path": lambda self: [Problem("xx", "bad")],
    "unknown other path": lambda self: [Problem("x", "bad", also=("xx",))],
    "undeclared caution": lambda self: [Caution("c", "x", "bad")],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_name_the_method(mistake: str) -> None:
    with refused(ConfigError):
        resolve(_config(MISTAKES[mistake]))


def test_a_deriving_method_only_reads() -> None:
    class Derived(Config):
        x: int = 1
        y: int = derived()

        @derive("y")
        def _y(self) -> int:
            self.x = 3
            return 3

    with refused(ConfigError):
        resolve(Derived())


class Disk(Config):
    folder: str = "/data"
    size: int = 5

    @rule(needs="files")
    def _there(self) -> Iterator[Problem]:
        """Whether the folder is there."""
        if self.folder == "/missing":
            yield Problem("folder", "is not there", also=("size",))

    @rule(needs=("torch", "files"))
    def _fits(self) -> Iterator[Problem]:
        """Whether it fits."""
        yield Problem("size", "does not fit")

    @rule(cautions={"small": "it is little"})
    def _small(self) -> Iterator[Problem]:
        if self.size < 3:
            yield Caution("small", "size", f"{self.size} is little", valid=("5",))


class Root(Config):
    disks: tuple[Disk, ...] = field(factory=lambda: (Disk(),))
    silence: tuple[str, ...] = ()


def test_what_needs_something_waits_for_it() -> None:
    root = compose(Root, flags=["disks.0.folder=/missing"]).resolve()
    nothing = verify(root, ())
    assert nothing.problems == [] and [str(each) for each in nothing.skipped] == [
        "disks.0: whether the folder is there (needs files)",
        "disks.0: whether it fits (needs torch and files)",
    ]
    files = verify(root, {"files"})
    (problem,) = files.problems
    assert (problem.path, problem.value) == ("disks.0.folder", "'/missing'")
    assert problem.origin == "command line disks.0.folder"
    assert problem.also == ("disks.0.size = 5 (default)",)
    assert [each.needs for each in files.skipped] == [("torch",)]
    assert len(verify(root).problems) == 2 and verify(root).skipped == []


class Shelf(Config):
    width: int = field(ge=1)
    name: str = ""

    @rule
    def _named(self) -> Iterator[Problem]:
        yield Problem("name", "is wrong", also=("width",))


@pytest.mark.parametrize("flags", [(), ("width=0",), ("width=3",)])
def test_a_field_without_a_value_is_not_shown_beside_a_problem(flags: tuple[str, ...]) -> None:
    problems = problems_of(lambda: compose(Shelf, flags=flags).resolve())
    (problem,) = (each for each in problems if each.path == "name")
    assert problem.also == ("width = 3 (command line width)",) * (flags == ("width=3",))


class Cache(Config):
    folder: str | None = None

    @rule(needs="files", when=lambda self: self.folder is not None)
    def _there(self) -> Iterator[Problem]:
        """Whether the cache is there."""
        yield Problem("folder", "is not there")


def test_what_has_nothing_to_look_at_is_neither_run_nor_named() -> None:
    empty, full = resolve(Cache()), resolve(Cache(folder="x"))
    assert (verify(empty).problems, verify(empty, ()).skipped) == ([], [])
    assert [each.path for each in verify(full).problems] == ["folder"]
    assert [str(each) for each in verify(full, ()).skipped] == [
        "whether the cache is there (needs files)"
    ]


def test_cautions_stop_nothing_and_can_be_silenced() -> None:
    root = compose(Root, flags=["disks.0.size=2"]).resolve()
    (caution,) = cautions_of(root)
    assert caution.line() == "disks.0.size = 2: 2 is little (small)"
    assert caution.render() == (
        "  disks.0.size = 2\n"
        "    from command line disks.0.size\n"
        "    2 is little\n"
        "    Valid: 5\n"
        "    silence it with --silence.append small"
    )
    assert caution.to_json()["code"] == "small"
    assert verify(root, ()).cautions == [caution]
    assert cautions_of(compose(Root, flags=["disks.0.size=2", "silence=small"]).resolve()) == ()
    assert cautions_of(resolve(root.evolve(silence=("small",)))) == ()


def test_a_code_that_silences_nothing_is_a_mistake() -> None:
    assert known_cautions(Root) == {"small": "it is little"}
    with refused(ConfigError):
        compose(Root, flags=["silence=smal"]).resolve()


def test_declarations_that_cannot_work() -> None:
    with refused(TypeError):

        @rule(needs="files")
        def _silent(self: Config) -> Iterator[Problem]:
            yield from ()


def test_a_check_may_ask_for_a_key_of_the_user_area() -> None:
    class Wants(Config):
        user: Free = field(factory=Free)

        @rule
        def _check(self):
            yield Problem("user.probe.width", "must be set for this job")

    for draft in (Wants(), Wants(user=Free(probe={"depth": 1}))):
        with refused(ConfigError):
            resolve(draft)
