"""No input ends in a traceback, a hang, or anything done that was not asked for."""

import ast
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .guard import Breach, Hang, guarded
from .oracles import agree, may_refuse
from .targets import CORPUS, TARGETS, run

# Signs and words that mean something somewhere.
PIECES = [
    *"ab1.=,:;-_#@!%&*?|><~`^\"'\\/()[]{} \n\t",
    *("--", "==", "[[", "]]", "${", "}", "**", "//", "\r\n", "\0", "\x85", "\u2028", "\ufeff", "é"),
    *("optimizer", "lr", "model", "type", "user", "sources", "tags", "seed", "extends", "setpoint"),
    *("schema", "null", "true", "nan", "inf", "1e999", "0x1F", "1_0", "-0.0", "9" * 40, "sgd"),
    *("append", "remove", "insert", "__class__", "env:HOME", "300 steps", "16 MiB", "target"),
    *('{"a": 1}', "[1, 2]", "&a ", "*a", "<<: ", "---", "'''", '"""', "\\u00e9", "\\ud800"),
]
SEEDS = {
    name: [path.read_bytes() for path in sorted((CORPUS / name).iterdir())] for name in TARGETS
}


@st.composite
def inputs(draw: st.DrawFn, name: str) -> bytes:
    """A seed with a few of its bytes replaced by pieces, by bytes, or by a part of itself."""
    data = draw(st.sampled_from([*SEEDS[name], b""]))
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 8))
        piece = draw(
            st.one_of(
                st.sampled_from(PIECES).map(str.encode),
                st.binary(max_size=4),
                st.integers(0, len(data)).map(lambda start, text=data: text[start : start + 20]),
            )
        )
        data = data[:at] + piece + data[at + length :]
    return data


def attempt(name: str, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(inputs(name))
    def each(data: bytes) -> None:
        run(name, data)

    each()


@pytest.mark.parametrize("name", TARGETS)
def test_what_broke_something_once_does_so_no_more(name: str) -> None:
    assert SEEDS[name]
    for data in SEEDS[name]:
        run(name, data)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_break_no_reader(name: str) -> None:
    attempt(name, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_damaged_inputs_break_no_reader(name: str) -> None:
    attempt(name, 10_000)


def test_the_guard_sees_what_it_is_there_for(tmp_path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("x")

    def endless() -> None:
        while True:
            pass

    breaches = [
        lambda: __import__("antigravity"),
        lambda: eval("1 + 1"),
        secret.read_text,
        secret.unlink,
        lambda: subprocess.run(["true"]),
    ]
    for breach in breaches:
        with pytest.raises(Breach), guarded():
            breach()
    with pytest.raises(Breach), guarded():
        try:
            secret.read_text()
        except BaseException:
            assert True  # caught, and reported all the same
    with guarded(str(tmp_path)):
        assert secret.read_text() == "x"
        ast.parse("1 + 1")  # reading Python runs nothing
    with pytest.raises(Hang), guarded(seconds=0.05):
        endless()


def test_the_oracles_see_a_difference() -> None:
    from setpoint.config.files.file_document import FileError
    from setpoint.config.files.read import parse

    for format, text in (("toml", "a = 1"), ("json", '{"a": 1}'), ("yaml", "a: 1")):
        document = parse(text, format, "f")
        agree(document)
        document.data["a"] = 2
        with pytest.raises(AssertionError):
            agree(document)
    with pytest.raises(AssertionError, match="only ours"):
        may_refuse("a = 1", "toml", FileError("f", 1, 1, "no such thing"))
    may_refuse("a = 2024-01-01", "toml", FileError("f", 1, 1, "a date is not a type of any field"))
