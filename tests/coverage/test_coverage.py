"""The coverage table says of every key what Setpoint answers, and says nothing that is not so."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from . import fields, found, mapping, pages
from .inventory import capabilities, inventory
from .mapping import WEAKNESSES, Answer, answers, file_of, problems_of

DONE = (
    "model",
    "MoE",
    "loss",
    "inference",
    "optimizer",
    "scheduler",
    "train loop",
    "eval",
    "profiling",
    "gc",
    "compile",
    "determinism",
    "packing",
    "data",
    "resume",
)
COUNTS = {
    "model": 32,
    "MoE": 17,
    "loss": 3,
    "inference": 8,
    "optimizer": 35,
    "scheduler": 14,
    "train loop": 12,
    "eval": 12,
    "profiling": 27,
    "gc": 5,
    "compile": 11,
    "determinism": 7,
    "packing": 8,
    "data": 67,
    "resume": 5,
}


def all_answers() -> list[Answer]:
    names = [*capabilities(), WEAKNESSES]
    return [answer for name in names for answer in answers(name).values()]


def test_the_inventory_is_whole() -> None:
    keys = inventory().values()
    counts = Counter((key.kind, key.in_source) for key in keys)
    assert counts["key", True] == 410
    assert counts["section", True] == 8
    assert counts["computed", True] == 6
    assert {key.system for key in keys} == {"DanLing", "d9d", "KempnerForge", "xorl"}
    wanted = {name: sum(key.in_source for key in keys) for name, keys in capabilities().items()}
    assert {name: wanted[name] for name in DONE} == COUNTS


@pytest.mark.parametrize("capability", DONE)
def test_every_key_is_answered(capability: str) -> None:
    wanted = [key.name for key in capabilities()[capability] if key.in_source]
    said = answers(capability)
    assert not [name for name in wanted if name not in said]
    # What is open says what it waits for.
    assert all(a.later for a in said.values() if a.state == "open")


def test_answers_belong_to_keys_and_each_key_has_one() -> None:
    known = inventory()
    seen: set[str] = set()
    for capability in capabilities():
        for name in answers(capability):
            assert name in known, f"{file_of(capability).name}: there is no key {name!r}"
            assert known[name].capability == capability, name
            assert name not in seen, name
            seen.add(name)
    files = {path.stem for path in mapping.FOLDER.glob("*.toml")} - {WEAKNESSES}
    assert files == {mapping.slug(name) for name in capabilities() if file_of(name).exists()}


def test_answers_are_whole() -> None:
    problems = [problem for answer in all_answers() for problem in problems_of(answer)]
    assert not problems, "\n".join(problems)


def test_named_fields_exist() -> None:
    problems: list[str] = []
    for answer in all_answers():
        for field in answer.fields:
            try:
                fields.declared(field)
            except LookupError as error:
                problems.append(f"{answer.name}: {error}")
    assert not problems, "\n".join(problems)


def test_named_tests_exist() -> None:
    tests = dict.fromkeys(test for answer in all_answers() for test in answer.tests)
    problems = [problem for test in tests if (problem := found.problem_of(test))]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_named_tests_are_collected() -> None:
    """The long form of the one above: pytest itself finds them."""
    tests = dict.fromkeys(test for answer in all_answers() for test in answer.tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *tests],
        cwd=found.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_pages_are_up_to_date() -> None:
    assert not list(pages.outdated()), "run `make coverage`, and read the diff"


def test_what_has_not_begun_is_open() -> None:
    text = pages.index()
    for name, keys in capabilities().items():
        if not file_of(name).exists():
            count = sum(key.in_source for key in keys)
            assert f"| {name} | {count} | 0 | 0 | {count} |" in text


def test_gaps_are_found(tmp_path: Path) -> None:
    both = Answer("a", fields=("model.dim",), refused="no", tests=("t",))
    assert "says refused and fields or how" in problems_of(both)[0]
    assert "says nothing" in problems_of(Answer("a", tests=("t",)))[0]
    assert problems_of(Answer("a", how="so")) == ["a: no test shows it"]
    assert not problems_of(Answer("a", later="when there are ranks"))
    for field in ("model.dimm", "model.norm=batch_norm", "nowhere:model.dim"):
        with pytest.raises(LookupError, match=field):
            fields.declared(field)
    assert fields.declared("model.norm=layer_norm").rows
    here = f"tests/coverage/{Path(__file__).name}"
    assert found.problem_of(f"{here}::test_gaps_are_found") is None
    assert found.problem_of(f"{here}::test_every_key_is_answered[MoE]") is None
    for test in (
        "tests/coverage/nowhere.py::test_x",
        f"{here}::test_nothing",
        f"{here}::all_answers",
        f"{here}::test_gaps_are_found[a]",
        f"{here}::test_every_key_is_answered[LoRA]",
    ):
        assert found.problem_of(test), test
    assert set(pages.outdated(tmp_path)) == set(pages.pages())
