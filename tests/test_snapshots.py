"""Snapshots of texts: facts, and messages by test."""

import ast
from pathlib import Path

import pytest

from setpoint.config import SetpointError

from .support.snapshots import MESSAGES, TESTS, facts, lost, messages, refusals_of_test, refused

TEXT = """2 problems in the configuration

  optimizer.lr = -1
    from exp.toml:3:1
    is out of range: it must be > 0, such as --optimizer.lr 3e-4
    Valid: a_name, another.name

  optimizer.nois = 'x'
    unknown key: AdamW has no field 'nois'. Did you mean eps?
"""


def test_the_facts_of_a_message() -> None:
    assert facts(TEXT) == [
        ["2"],
        ["--optimizer.lr", "-1", "0", "3e-4", "exp.toml:3:1", "optimizer.lr"],
        ["'nois'", "'x'", "Did you mean eps", "optimizer.nois"],
    ]
    assert not lost(facts(TEXT), TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("is out of range: it must be > 0", "must be above 0"),
        ("a_name, another.name", "a_name, another.name, a.third_one"),
        ("unknown key: AdamW has no field 'nois'", "AdamW knows no 'nois'"),
    ],
)
def test_other_words_and_more_of_what_is_valid_are_no_failure(old: str, new: str) -> None:
    assert old in TEXT
    assert not lost(facts(TEXT), TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("exp.toml:3:1", "exp.toml"), ("> 0", "positive"), ("3e-4", "3e-5"),
        ("2 problems", "3 problems"), (" Did you mean eps?", ""), ("mean eps", "mean betas"),
        ("no field 'nois'", "no such field"), ("\n\n  optimizer.nois", "\n  optimizer.nois"),
    ],
)  # fmt: skip
def test_a_lost_fact_is_seen(old: str, new: str) -> None:
    assert old in TEXT
    assert lost(facts(TEXT), TEXT.replace(old, new))


def test_another_message_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with refused():
        raise SetpointError(f"{tmp_path}/a.toml:3: 7 is not valid\n\nValid: 8\n")
    monkeypatch.delenv("SETPOINT_UPDATE_SNAPSHOTS", raising=False)
    refusals_of_test.clear()
    for fault in ("differs from", "no message is stored"):
        with pytest.raises(AssertionError, match=fault), refused():
            raise SetpointError("HERE/a.toml:4: 7 is not valid\n\nValid: 8")


def test_each_stored_message_has_a_test() -> None:
    for path in MESSAGES.rglob("*.txt"):
        module = (TESTS / path.relative_to(MESSAGES)).with_suffix(".py")
        tree = ast.parse(module.read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        names = {test.partition("[")[0].split(" ")[0] for test in messages(path.read_text("utf-8"))}
        assert names <= functions, f"{path} has messages of tests that do not exist"
