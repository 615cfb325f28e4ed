"""What is kept of messages: another wording is none of its business, a lost fact is."""

import pytest

from .support.snapshots import facts, lost

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
        ("exp.toml:3:1", "exp.toml"),
        ("> 0", "positive"),
        ("3e-4", "3e-5"),
        ("2 problems", "3 problems"),
        (" Did you mean eps?", ""),
        ("mean eps", "mean betas"),
        ("no field 'nois'", "no such field"),
        ("\n\n  optimizer.nois", "\n  optimizer.nois"),
    ],
)
def test_a_lost_fact_is_seen(old: str, new: str) -> None:
    assert old in TEXT
    assert lost(facts(TEXT), TEXT.replace(old, new))
