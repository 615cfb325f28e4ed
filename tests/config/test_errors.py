"""Errors are the same, whichever layer has the wrong value."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from setpoint.config import ConfigError, Invalid, Problem, SetpointError
from setpoint.config.composition import compose
from setpoint.config.words.errors import printable

from ..support.snapshots import compare, refused
from .helpers import LAYERS, problems_of, resolve_through
from .sample import Job


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\udcff", "\\udcff"),
        ("a\u202eb", "a\\u202eb"),
        ("a\tb\r", "a\\tb\\r"),
    ],
)
def test_messages_of_errors_are_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert str(SetpointError(text)) == shown
    assert str(Invalid(text)) == shown


def test_errors_can_be_sent_to_other_processes() -> None:
    error = pickle.loads(pickle.dumps(Invalid("is wrong", ("1",), (2,), "Do it.", True)))
    assert (str(error), error.valid, error.at, error.hint, error.secret) == (
        "is wrong", ("1",), (2,), "Do it.", True,
    )  # fmt: skip
    report = ConfigError([Problem("a", "is wrong", valid=["1"])])
    assert str(pickle.loads(pickle.dumps(report))) == str(report)


BAD: dict[str, Mapping[str, object]] = {
    "misspelt": {"optimizer.learning_rate": 1e-3, "optimizer.l_r": 1e-3, "sed": 3},
    "elsewhere": {"lr": 1e-3, "model.sequence_length": 8, "optimizer.size": 4},
    "other_variant": {"optimizer.momentum": 0.5},
    "wrong_type": {
        "seed": 7.9, "deterministic": "ture", "optimizer.lr": "fast", "model": 3,
        "duration": "3 parsecs", "log_every": -3, "mode": "fastest", "batch.size": "many",
    },
    "out_of_range": {"optimizer.lr": -1, "model.dropout": 1.5, "name": "My Run", "warmup": -1},
    "unknown_variant": {"optimizer.type": "adma", "model.type": "transfomer"},
    "contradiction": {"model.dim": 64, "model.heads": 5},
    "cycle": {"model.dim": "${model.heads}", "model.heads": "${batch.size}",
              "batch.size": "${model.dim * 2}"},
    "bad_reference": {
        "model.dim": "${model.width}", "seed": "${batch.sequence_length / 0}",
        "optimizer.lr": "${exit()}", "batch.size": "${model}", "name": "x${model}",
        "model.heads": "${compute * 2}", "model.dropout": "${batch.sequence_length}",
        "optimizer.clip_norm": "${dropout}", "warmup": "${2 ** 99999}",
    },
    "dead": {"optimizer.type": "sgd", "optimizer.momentum": 0, "optimizer.nesterov": True},
    "required": {"sources": [{"type": "text"}], "tracker": {}},
    "list_items": {
        "sources": [{"type": "text", "paths": ["a"]}, {"type": "txt"},
                    {"type": "synthetic", "documents": 0, "lenght": 4}],
        "optimizer.betas": [0.9, 1.5],
        "thresholds": {"loss": -1.0, "error": 0.0, "rate": 1.0},
    },
    "wrong_length": {"optimizer.betas": [0.9]},
    "no_variants": {"batch.type": "large"},
    "secret": {"tracker.url": "http://x", "tracker.token": "hunter2"},
    "misspelt_secret": {"tracker.url": "http://x", "tracker.tokn": "hunter2", "token": "hunter2"},
}  # fmt: skip


def without_places(problems: tuple[Problem, ...]) -> list[object]:
    """What does not depend on the layer: file formats quote texts, flags do not."""
    return [
        (p.path, p.message.replace("'", ""), p.valid, as_path(p.hint), (p.value or "").strip("'"))
        for p in problems
    ]


def as_path(hint: str) -> str:
    """A hint with the name of a variable as the path of its field."""
    return re.sub(r"SETPOINT__(\w+)", lambda found: found[1].lower().replace("__", "."), hint)


@pytest.mark.parametrize("name", BAD)
def test_every_layer_gives_the_same_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reports: list[str] = []
    first: list[object] = []
    for layer in LAYERS:
        problems = problems_of(lambda: resolve_through(layer, BAD[name], Path()))  # noqa: B023
        assert all(problem.origin or not problem.value for problem in problems)
        same = without_places(problems)
        # JSON has no text without quotes, and texts of the program have quotes as well.
        if layer in ("toml", "flag"):
            reports.append(f"--- {layer}\n{ConfigError(problems)}")
        first = first or same
        assert [entry[0] for entry in same] == [entry[0] for entry in first], layer
        if name == "other_variant":  # flags and variables are written out whole
            assert [entry[:3] for entry in same] == [entry[:3] for entry in first], layer
        elif name not in ("list_items", "wrong_type"):
            assert same == first, layer
        assert "hunter2" not in str(ConfigError(problems))
    compare(f"config/bad_{name}", "\n\n".join(reports))


def test_a_missing_value_has_the_origin_of_its_item(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text("[[sources]]\ntype = 'synthetic'\n[[sources]]\ntype = 'text'\n")
    flags = ["--sources.append=text", "--sources.insert.0=text"]
    with refused(ConfigError):
        compose(Job, str(file), flags=flags).resolve()


@pytest.mark.parametrize(
    "flags",
    [
        ["--model.heads=0", "--model.dim=65"], ["--model.type=transfomer"],
        ["--sources=[{type: txt}]"], ["--batch.sequence_length=x"], ["--tracker.url=ftp://x"],
        ["--model=${seed}"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_values_cause_no_further_problems(flags: list[str]) -> None:
    with refused(ConfigError):
        compose(Job, flags=flags).resolve()


def test_items_of_a_refused_list_are_not_missed(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text("sources = [{type = 'synthetic'}, {type = 'synthetic', documents = 0}]\n")
    flags = ["--sources.1.documents=4", "--sources.append=txt"]
    environ = {"SETPOINT__SOURCES__1__LENGTH": "3"}
    with refused(ConfigError):
        compose(Job, str(file), flags=flags, environ=environ).resolve()


def test_problems_are_sorted_by_path_and_items_by_number() -> None:
    error = ConfigError([Problem(path, "x") for path in ("b", "a.10", "a.9", "a", "B")])
    assert [problem.path for problem in error.problems] == ["B", "a", "a.9", "a.10", "b"]
    assert str(error).startswith("5 problems in the configuration\n\n  B\n")
