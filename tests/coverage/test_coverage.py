"""The coverage pages say of every key what Setpoint has, and say nothing that is not so."""

import subprocess
import sys
from collections import Counter

import pytest

from .coverage import ROOT, Row, dialect_key, outdated, problems_of, rows, split


def test_every_key_has_one_true_row() -> None:
    answers = rows()
    wrong = [f"{row.name}: {problem}" for row in answers for problem in problems_of(row)]
    assert not wrong, "\n".join(wrong)
    counts = Counter((row.kind, row.documented) for row in answers)
    assert len({row.name for row in answers}) == len(answers) == 534
    known = (counts["key", True], counts["section", True], counts["computed", True])
    assert known == (410, 8, 6)
    assert {row.name.partition(" ")[0] for row in answers} == {
        "DanLing", "d9d", "KempnerForge", "xorl",
    }  # fmt: skip


def test_dialects_and_answers_agree() -> None:
    """A key that a dialect converts to a field by itself is answered with that field, too."""
    for row in rows():
        key = dialect_key(row.name)
        if key is not None and key.path:
            assert key.path in {split(setting)[1] for setting in row.settings}, row.name
        if row.state in ("fixed", "refused"):
            assert key is None or not key.path, row.name


def test_weaknesses_have_tests() -> None:
    for row in rows("weaknesses.toml"):
        assert row.tests and not [p for p in problems_of(row) if "no such test" in p], row.name


def test_pages_are_up_to_date() -> None:
    assert not outdated(), "run `make coverage`, and read the diff"


@pytest.mark.slow
def test_named_tests_are_collected() -> None:
    """By pytest itself, which knows all cases."""
    names = {f"tests/{test}" for row in (*rows(), *rows("weaknesses.toml")) for test in row.tests}
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *sorted(names)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Row("", "a", tests=("t",)), "says nothing"),
        (Row("", "a", fields=("model.dim=64",), refused="no"), "says refused and fields"),
        (Row("", "a", fields=("model.dim=64",)), "no test shows it"),
        (Row("", "a", fixed="true"), "does not say why"),
        (Row("", "a", fields=("model.dimm",)), "there is no field model.dimm"),
        (Row("", "a", fields=("nowhere:model.dim",)), "there is no field nowhere:model.dim"),
        (Row("", "a", takes="bool = true", fields=("model.dim",)), "model.dim takes no 'true'"),
        (Row("", "a", fields=("model.norm=batch_norm",)), "model.norm takes no 'batch_norm'"),
        (Row("", "a", choices=("x", "y"), values=(("x", "model.dim=4"),)), "not the choices"),
        (Row("", "a", choices=("x",), fields=("model.dim=64",)), "has choices, and no values"),
        (Row("", "a", commands=("setpoint exprt",)), "there is no command setpoint exprt"),
        (Row("", "a", commands=("setpoint export --dtyp",)), "there is no option --dtyp"),
        (Row("", "a", fields=("model.dim=64",), tests=("nowhere.py::test_a",)), "no such test"),
        (Row("", "a", fields=("model.dim=64",), tests=("units/test_dtype.py::test_a",)), "no such"),
        (
            Row("", "a", fields=("checkpoint.keep=3",),
                tests=("coverage/test_coverage.py::test_weaknesses_have_tests",)),
            "no test of it names checkpoint.keep=3",
        ),
    ],
)  # fmt: skip
def test_what_is_not_so_is_named(row: Row, problem: str) -> None:
    assert any(problem in each for each in problems_of(row))
