"""The order of overrides; how it comes out is tested with the flags."""

import time

from hypothesis import given
from hypothesis import strategies as st

from setpoint.config.layers.flags import Flag, in_order

NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(tuple)
FLAGS = st.lists(st.tuples(NAMES, st.sampled_from(["chooses", "spreads", ""])), max_size=8)


def plainly(flags: list[Flag]) -> list[Flag]:
    """The order by its definition, in a time that grows with the square of their number."""
    ordered: list[Flag] = []
    for flag in flags:
        at = len(ordered)
        if flag.label == "chooses":
            target = flag.section
            for position in range(len(ordered) - 1, -1, -1):
                other = ordered[position]
                if target[: len(other.section)] == other.section:
                    break
                if other.section[: len(target)] == target or other.label == "spreads":
                    at = position
        ordered.insert(at, flag)
    return ordered


@given(FLAGS)
def test_the_order_is_that_of_the_definition(given: list[tuple[tuple[str, ...], str]]) -> None:
    flags = [Flag(("tag", *path) if k == "spreads" else path, "", k) for path, k in given]
    found = in_order(flags, lambda f: f.label == "chooses", lambda f: f.label == "spreads")
    assert found == plainly(flags)


def test_many_flags_take_little_time() -> None:
    flags = [Flag((f"s{i}", "type"), "a", "chooses") for i in range(20_000)]
    flags += [Flag(("deep", *("x" * 100)), "1", "") for _ in range(1000)]
    start = time.process_time()
    assert len(in_order(flags, lambda flag: flag.label == "chooses")) == 21_000
    assert time.process_time() - start < 5
