from __future__ import annotations

import itertools
from typing import Any

import pytest

import setpoint.presets  # noqa: F401 - registers the presets by name
from setpoint.config import Config, field, resolve
from setpoint.config.composition import compose
from setpoint.config.layers import presets as registry
from setpoint.config.record.python_source import to_python
from setpoint.config.record.record import fingerprint
from setpoint.train.config import Job

from .sample import Batch

CASES: list[list[str]] = [
    [],
    ["--optimizer.betas", "0.8,0.9", "--optimizer.clip_norm", "null"],
    ["--evaluation", "null", "--workspace", "/some where/else"],
    ["--duration", "[7 steps, 10 min]", "--schedule", "constant"],
    ["--data.sources", '[{type = text, paths = ["it\'s", "a\\"b"]}, {type: stdlib}]'],
    ["--user.probe.width", "3", "--user.names", "[a, b]", "--user.on", "true"],
    ["--model.ffn_dim", "${model.dim * 3}", "--model.rope_base", "inf"],
]


@pytest.mark.parametrize("flags", CASES, ids=lambda flags: " ".join(flags[:1]) or "as it is")
def test_the_function_gives_an_equal_config(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "presets", dict(registry.presets))
    job = compose(Job, "tiny", flags=flags).resolve()
    names: dict[str, Any] = {"__name__": "a_module"}
    exec(to_python(job, "again"), names)
    again = resolve(names["again"]())
    assert again == job
    assert fingerprint(again) == fingerprint(job)


def test_only_what_differs_is_written() -> None:
    text = to_python(compose(Job, "tiny", flags=["--seed", "7"]).resolve())
    assert "seed=7" in text
    for word in ("precision_", "tracking", "Checkpoint", "CrossEntropy", "ffn_dim"):
        assert word not in text, word


def test_imports_are_used_and_sorted() -> None:
    text = to_python(compose(Job, "tiny").resolve())
    imports = list(itertools.takewhile(str.strip, text.splitlines()))
    assert imports == sorted(imports)
    for line in imports:
        for name in line.partition(" import ")[2].split(", "):
            assert text.count(name) > 1, name


def test_a_default_of_its_place_is_compared_not_that_of_its_class() -> None:
    config = resolve(Placed(batch=Batch()))
    space: dict[str, Any] = {}
    exec(to_python(config).replace("@preset\n", ""), space)
    assert resolve(space["my_preset"]()) == config
    assert "batch" not in to_python(resolve(Placed()))


class Placed(Config):
    batch: Batch = field(factory=lambda: Batch(size=5))
