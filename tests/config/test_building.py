import pytest

from setpoint.config import Config, SetpointError, field, resolve
from setpoint.config.draft.config import building

from .sample import Batch, BuiltModel, Job


class Part(Config, owner=f"{__name__}:BuiltPart"):
    size: int = 1


class Whole(Config, owner=f"{__name__}:BuiltWhole"):
    first: Part = field(factory=Part)
    second: Part = field(factory=Part)


class BuiltPart:
    def __init__(self, config: Part, scale: object = None) -> None:
        self.size = config.size
        self.scale = scale


class BuiltWhole:
    """The whole, built; its parts get what only run time knows."""

    def __init__(self, config: Whole, scale: object = None, other: object = None) -> None:
        self.first = config.first.build(scale=scale)
        self.second = config.second.build(scale=other or scale)


def test_the_owner_gets_the_config_and_the_run_time_arguments() -> None:
    config = resolve(Job())
    model = config.model.build(vocabulary=257)
    assert isinstance(model, BuiltModel)
    assert model.config is config.model
    assert model.runtime == {"vocabulary": 257}
    assert config.optimizer.build(parameters=[1.0]) == (3e-4, [1.0])


def test_what_stands_in_two_places_is_built_once() -> None:
    part = Part(size=3)
    whole = resolve(Whole(first=part, second=part)).build(scale=(scale := object()))
    assert whole.first is whole.second
    assert whole.first.scale is scale


def test_a_config_without_owner() -> None:
    with pytest.raises(SetpointError, match=r"sample\.Batch cannot be built: it has no owner"):
        Batch().build()


def test_a_package_that_is_not_installed() -> None:
    class Lost(Config, owner="tests.config.needs_package:Thing"):
        pass

    with pytest.raises(SetpointError, match="'surely_not_installed'.*; install the package$"):
        Lost().build()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("os:getcwdd", "os has no 'getcwdd'. Did you mean getcwd"),
        ("os:path.jion", "has no 'jion'. Did you mean join"),
        ("os:sep", "which is '/'; it must be a class or a function"),
    ],
)
def test_a_wrong_owner_is_named_with_the_class(path: str, reason: str) -> None:
    class Wrong(Config, owner=path):
        pass

    with pytest.raises(SetpointError) as caught:
        Wrong().build()
    assert reason in str(caught.value)
    assert f"Wrong: its owner is {path!r}" in str(caught.value)


def test_one_object_within_a_block() -> None:
    part = Part()
    pair = resolve(Whole(first=part, second=part))
    assert pair.first is pair.second
    assert pair.first.build() is not pair.second.build()
    with building():
        with building():
            one = pair.first.build()
        assert one is pair.second.build()
        with pytest.raises(SetpointError, match="different run-time arguments"):
            pair.second.build(scale=1)
    assert pair.first.build() is not one
