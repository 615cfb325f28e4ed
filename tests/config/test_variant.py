from pathlib import Path

import pytest

from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values

from .helpers import problems_of
from .sample import Job, Sgd


def test_what_both_have_goes_along_and_the_rest_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("[optimizer]\nlr = 0.5\nbetas = [0.1, 0.2]\n")
    second.write_text('extends = "first.toml"\noptimizer = "sgd"\n')
    job = compose(Job, str(second)).resolve()
    assert job.optimizer == Sgd(lr=0.5)
    (line,) = dropped_values(job)
    assert line.startswith("optimizer.betas = [0.1, 0.2], from ") and "first.toml:3:1" in line


@pytest.mark.parametrize(
    "flags",
    [
        ["optimizer={betas=[0.1, 0.2]}", "optimizer=sgd"],
        ["optimizer.betas=0.1,0.2", "sources.0={length=5}", "sources.0=text", "sources.0.paths=a"],
    ],
)
def test_what_the_same_layer_set_is_an_error(flags: list[str]) -> None:
    (problem,) = problems_of(lambda: compose(Job, flags=flags).resolve())
    assert "has no effect: type = " in problem.message and problem.hint == "Remove it."
    assert problem.path in ("optimizer.betas", "sources.0.length")


def test_an_earlier_layer_may_be_left_behind() -> None:
    environ = {"SETPOINT__OPTIMIZER__BETAS": "0.1,0.2"}
    job = compose(Job, environ=environ, flags=["optimizer=sgd"]).resolve()
    assert len(list(dropped_values(job))) == 1
