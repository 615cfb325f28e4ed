"""What other systems call our fields: who types one of these names is told ours."""

from __future__ import annotations

import pytest

from setpoint.config import Config, ConfigError
from setpoint.config.compose import compose
from setpoint.config.field import FieldInfo
from setpoint.config.suggest import schema
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job

from ..snapshots import compare

# Names that two fields answer to, since the systems that use them mean one or the other.
AMBIGUOUS = {"batch_size"}


def called() -> dict[str, list[str]]:
    """The paths that each foreign name leads to."""
    found: dict[str, list[str]] = {}
    first: dict[FieldInfo, str] = {}
    for path, info in schema(Job):
        # A section may stand in several places; the first is meant.
        path = first.setdefault(info, path)
        for name in info.also_called:
            paths = found.setdefault(name, [])
            if path not in paths:
                paths.append(path)
    return found


def message(*flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(Job, tiny(), flags=flags).resolve()
    return str(caught.value)


@pytest.mark.parametrize(("name", "paths"), called().items(), ids=lambda value: str(value))
def test_a_foreign_name_is_answered_with_ours(name: str, paths: list[str]) -> None:
    assert f"    Here it is called {' or '.join(paths)}." in message(f"--{name}=1")
    # With the section of the other system before it, too.
    assert f"    Here it is called {' or '.join(paths)}." in message(f"--training.{name}=1")


def test_a_name_leads_to_one_field() -> None:
    assert {name for name, paths in called().items() if len(paths) > 1} == AMBIGUOUS


def test_no_foreign_name_is_one_of_ours() -> None:
    ours = {path.rpartition(".")[2] for path, _ in schema(Job)}
    assert not ours & called().keys()


def test_foreign_names_in_words() -> None:
    flags = [
        "--per_device_train_batch_size=4",
        "--gradient-accumulation-steps=2",
        "--learning_rate=1e-3",
        "--batch_size=8",
        "--training.seq_len=64",
        "--model.n_embd=64",
        "--num_train_epochs=3",
    ]
    compare("train/foreign_names", message(*flags))


def test_the_test_sees_the_fields_of_variants() -> None:
    assert issubclass(Job, Config)
    assert called()["adam_beta1"] == ["optimizer.betas"]
    assert called()["train_file"] == ["data.sources.paths"]
