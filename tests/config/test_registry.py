from collections.abc import Iterator
from typing import Literal

import pytest

from setpoint.config import Secret, SetpointError, modifier, preset
from setpoint.config.layers import presets as registry
from setpoint.config.layers.presets import call_modifier, call_preset, preset_summary
from setpoint.units import Duration

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


def test_two_functions_of_one_name_in_other_modules_are_refused() -> None:
    def my_job() -> Job:
        return Job()

    my_job.__module__ = "elsewhere"
    with pytest.raises(TypeError, match="there is already a preset 'my-job'"):
        preset(my_job)


def test_parameters_are_read_by_their_types() -> None:
    job = call_modifier("tuned(lr = 1e-2, names: [a, '1'])", Job())
    assert (job.optimizer.lr, job.tags) == (0.01, ["a", "1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tuned", "the modifier 'tuned': needs a value for lr"),
        ("tuned()", "needs a value for lr"),
        ("tuned(", "the parameters are not closed by )"),
        ("tuned(lr=1", "the parameters are not closed by )"),
        ("tuned(0.1)", "expected = or : after the key"),
        ("tuned(lr=x, name=3)", "parameter 'lr' is not a float: got x; unknown parameter 'name'"),
        ("tuned(lr=1, names=[a)", "cannot be read at position"),
        ("tned", "there is no modifier 'tned'. Did you mean tuned? Known: lost, tuned"),
        ("", "there is no modifier ''"),
        ("lost", "the modifier 'lost' must return the config, got None"),
    ],
)
def test_what_cannot_be_applied(text: str, message: str) -> None:
    with pytest.raises(SetpointError) as caught:
        call_modifier(text, Job())
    assert message in str(caught.value)


def test_a_secret_given_to_a_modifier_is_not_repeated() -> None:
    with pytest.raises(SetpointError) as caught:
        call_modifier("tuned(lr=1, token=hunter2)", Job())
    assert "hunter2" not in str(caught.value)
    assert "tuned" in str(caught.value)


def test_what_a_value_of_a_parameter_may_be() -> None:
    @preset
    def chosen(mode: Literal["quick", "slow"] = "quick") -> Job:
        return Job()

    assert chosen
    with pytest.raises(SetpointError) as caught:
        call_preset("chosen(mode=quik)")
    assert str(caught.value) == (
        "the preset 'chosen(mode=quik)': parameter 'mode' is not one of the valid values: got "
        "quik; valid: quick, slow. Did you mean quick?"
    )


def test_several_modifiers_in_one_text() -> None:
    with pytest.raises(SetpointError) as caught:
        call_modifier("tuned,tuned", Job())
    assert "Repeat the option: --with tuned --with tuned." in str(caught.value)


def test_a_value_that_a_modifier_refuses_is_told_with_the_modifier_and_the_line() -> None:
    @modifier
    def short(job: Job, steps: int = 1) -> Job:
        job.duration = Duration(f"{steps} steps")
        return job

    assert short
    with pytest.raises(SetpointError) as caught:
        call_modifier("short(steps=-1)", Job())
    assert str(caught.value).startswith("the modifier 'short(steps=-1)': is not a count")
    assert "test_registry.py:" in str(caught.value)
