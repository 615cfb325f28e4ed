"""Sections with `type = "import"`: the arguments of any callable as fields."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, ConfigError, field, resolve
from setpoint.config.component_sections import Partial, partial
from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values, leaves, to_minimal, to_plain
from setpoint.config.record.record import differences, fingerprint, record_files
from setpoint.config.resolving.checks import verify

from ...support.snapshots import compare_problems, refused
from ..helpers import LAYERS, resolve_through
from . import targets
from .sample import Imported, Net, Relu
from .targets import Part, Whole

PART = f"{targets.__name__}.Part"


def values(config: Config) -> dict[str, Any]:
    return {leaf.key: leaf.value for leaf in leaves(config)}


@pytest.mark.parametrize("layer", LAYERS)
def test_arguments_lie_beside_the_target_in_every_layer(layer: str, tmp_path: Path) -> None:
    given = {"optimizer": {"type": "import", "target": PART, "lr": 0.5, "rate": 1e-5}}
    config: Any = resolve_through(layer, given, tmp_path, Net)
    assert type(config.optimizer).__name__ == "Imported"
    assert values(config)["optimizer.rate"] == 1e-5
    assert values(config)["optimizer.target"] == PART
    assert config.optimizer.rate == 1e-5


def everything() -> Net:
    """A net with components inside components."""
    shared = partial(Part, size=2)
    net = Net(acts=[Relu(), partial(Part, size=9)])
    net.act = partial(
        Whole,
        size=3,
        betas=[0.5, 0.6],
        part=shared,
        parts=[shared, partial(Part, size=5)],
        by_name={"a": partial(Part, size=6)},
        act=targets.double,
        free={"a": [1, {"b": None}]},
    )
    net.optimizer = partial(Part, rate=0.25)
    return net


def test_a_record_gives_it_back(tmp_path: Path) -> None:
    config = resolve(everything())
    plain = to_plain(config)
    for name, text in record_files(config).items():
        if name != "origins.json":
            (tmp_path / name).write_text(text)
    from_minimal = compose(Net, str(tmp_path / "config.toml")).resolve()
    assert to_plain(from_minimal) == plain
    assert fingerprint(from_minimal) == fingerprint(config)
    assert to_plain(compose(Net, program=plain).resolve()) == plain
    assert not differences(from_minimal, config)


def test_copies_pickles_and_equality() -> None:
    config = resolve(everything())
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    assert hash(config) == hash(resolve(everything()))
    changed = config.evolve()
    changed.act.size = 4
    assert resolve(changed).act.size == 4
    assert config.act.size == 3
    assert resolve(changed) != config
    # The order in which arguments are given does not matter.
    assert resolve(Net(act=partial(Whole, size=1, mode="b"))) == resolve(
        Net(act=partial(Whole, mode="b", size=1))
    )


def test_a_new_target_starts_afresh(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        f'[optimizer]\ntype = "import"\nlr = 0.5\nrate = 0.2\ntarget = "{PART}"\n'
    )
    flags = [f"--optimizer.target={targets.__name__}.by_position"]
    config = compose(Net, str(tmp_path / "a.toml"), flags=flags).resolve()
    assert "optimizer.rate" not in values(config)
    assert config.optimizer.lr == 0.5
    assert [line.split(",")[0] for line in dropped_values(config)] == ["optimizer.rate = 0.2"]


class Rooted(Config):
    act: Partial = field(factory=lambda: partial(Whole, size=1, mode="b"))


@pytest.mark.parametrize(
    "act",
    [
        partial(Whole, size=1, mode="b"),
        partial(Whole, size=2, mode="b"),
        partial(Whole, size=1),
        partial(Whole, size=1, mode="b", rate=0.5),
        partial(Part, size=1),
        partial(targets.anything, size=1, mode="b"),
    ],
)
def test_the_minimal_form_over_a_foreign_default(act: Any) -> None:
    config = resolve(Rooted(act=act))
    assert compose(Rooted, program=to_minimal(config)).resolve() == config


def test_mistakes_are_found_together_once_imported() -> None:
    flags = [
        f"--optimizer={{type=import, target={PART}, rat=3, rate=fast}}",
        f"--act={{type=import, target={targets.__name__}.Whole, mode=c, betas=[1], part=3, foo=1}}",
    ]
    with refused(ConfigError):
        compose(Net, flags=flags).resolve()


def test_what_is_not_imported_is_left_to_verify() -> None:
    flags = ["--optimizer={type=import, target=torch.optim.nowhere.Thing, rate=3}"]
    config = compose(Net, flags=flags).resolve()
    skipped = [str(check) for check in verify(config, {"files"}).skipped]
    assert "optimizer: the target exists and takes its arguments (needs import)" in skipped
    compare_problems(verify(config).problems)


@pytest.mark.parametrize(
    "flag",
    [
        "--optimizer.build=1", "--optimizer._x=1", "--optimizer.class=1",
        "--only={type=import, target=a.b}", "--optimizer.lr=-1",
        "--optimizer.rate=https://a:hunter2@b", "--act={type=import, target=nothing}",
        "--act={type=import, target=os.system}", "--act={type=import}",
        "--optimizer=torch.optim.Adagrad", "--optimizer.x.y=1",
    ],
)  # fmt: skip
def test_wrong_targets_and_arguments_are_refused(flag: str) -> None:
    flags = ["--optimizer=import", f"--optimizer.target={PART}", flag]
    with refused(ConfigError):
        compose(Net, flags=flags).resolve()


def test_a_family_without_a_variant_for_them() -> None:
    with refused(ConfigError):
        Net(only=partial(Part, size=1))
    with refused(ConfigError):
        Net(optimizer=partial(targets.anything, lr=-3))
    assert isinstance(Net(optimizer=partial(Part)).optimizer, Imported)
