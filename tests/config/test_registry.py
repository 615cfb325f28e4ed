"""Presets and modifiers by name, and their parameters."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from setpoint.config import Config, Secret, modifier, preset
from setpoint.config.composition import compose
from setpoint.config.layers import presets as registry
from setpoint.config.layers.presets import Catalogue, call_modifier, call_preset, preset_summary
from setpoint.units import Duration

from ..support.snapshots import refused
from .sample import Job


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "presets", {})
    monkeypatch.setattr(registry, "modifiers", {})

    @preset
    def my_job() -> Job:
        """A job.

        With more to say.
        """
        return Job(seed=1)

    @modifier
    def tuned(job: Job, lr: float, names: tuple[str, ...] = (), token: Secret | None = None) -> Job:
        job.optimizer.lr = lr
        job.tags = list(names)
        return job

    @modifier
    def lost(job: Job) -> None:
        del job

    yield


def test_names_have_hyphens_and_take_underscores() -> None:
    assert list(registry.presets) == ["my-job"]
    assert call_preset("my_job") == call_preset("my-job") == Job(seed=1)
    assert call_preset("my-job") is not call_preset("my-job")
    assert preset_summary(registry.presets["my-job"]) == "A job."
    assert preset_summary(registry.modifiers["lost"]) == ""


def test_parameters_are_read_by_their_types() -> None:
    job = call_modifier("tuned(lr = 1e-2, names: [a, '1'])", Job())
    assert (job.optimizer.lr, job.tags) == (0.01, ["a", "1"])


@pytest.mark.parametrize(
    "text",
    [
        "tuned",
        "tuned()",
        "tuned(",
        "tuned(lr=1",
        "tuned(0.1)",
        "tuned(lr=x, name=3)",
        "tuned(lr=1, names=[a)",
        "tned",
        "",
        "lost",
        "tuned(token=hunter2, lr=1)",  # a secret is not repeated
        "tuned,tuned",
    ],
)
def test_what_cannot_be_applied(text: str) -> None:
    with refused():
        call_modifier(text, Job())


def test_a_value_that_a_modifier_refuses_is_reported_with_the_modifier_and_the_line() -> None:
    @modifier
    def short(job: Job, steps: int = 1) -> Job:
        job.duration = Duration(f"{steps} steps")
        return job

    assert short
    with refused():
        call_modifier("short(steps=-1)", Job())


# Names are known before what they stand for is imported.


MODULE = """
from setpoint.config import preset
from tests.config.sample import Job

@preset
def late_one() -> Job:
    return Job(seed=1)

@preset
def late_two() -> Job:
    return Job(seed=2)
"""


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue[object]:
    """A registry that expects two presets of a module that is not imported."""
    catalogue: Catalogue[object] = Catalogue()
    monkeypatch.setattr(registry, "presets", catalogue)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    (tmp_path / "late_module.py").write_text(MODULE)
    catalogue.expect("late_module", "late-one", "late-two")
    return catalogue


def test_names_are_known_and_nothing_is_imported(known: Catalogue[object]) -> None:
    assert list(known) == ["late-one", "late-two"]
    assert len(known) == 2
    assert "late-one" in known
    assert "late-three" not in known
    assert registry.preset_named("late_one") == "late-one"
    with refused():
        registry.call_preset("late-on")
    assert "late_module" not in sys.modules


def test_one_that_is_asked_for_brings_its_module(known: Catalogue[object]) -> None:
    from .sample import Job

    assert compose(Job, "late-two").resolve().seed == 2
    assert "late_module" in sys.modules
    assert sorted(known) == ["late-one", "late-two"]
    assert {function.__name__ for function in known.values()} == {"late_one", "late_two"}  # pyright: ignore[reportAttributeAccessIssue]
    # Known again, they are those that are there.
    known.expect("nowhere", "late-one")
    assert compose(Job, "late-one").resolve().seed == 1


def test_a_name_that_is_taken_is_refused(known: Catalogue[object]) -> None:
    def late_one() -> Config:
        return Config()

    late_one.__module__ = "mine"
    with refused(TypeError):
        preset(late_one)


def test_a_module_that_fails_is_tried_again(tmp_path: Path, known: Catalogue[object]) -> None:
    (tmp_path / "late_module.py").write_text("raise ImportError('not today')")
    for _ in range(2):
        with pytest.raises(ImportError, match="not today"):
            known["late-one"]
    assert "late-one" in known


def test_threads_wait_for_a_module_that_another_imports(
    tmp_path: Path, known: Catalogue[object]
) -> None:
    (tmp_path / "late_module.py").write_text(f"import time\ntime.sleep(0.05)\n{MODULE}")
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda name: known[name].__name__, ["late-one", "late-two"] * 2))  # pyright: ignore[reportAttributeAccessIssue]
    assert names == ["late_one", "late_two"] * 2
