"""Environment variables as a layer."""

from setpoint.config import Config, ConfigError, Free, field
from setpoint.config.composition import compose

from ...support.snapshots import refused
from ..sample import AdamW, Job, Recurrent, Sgd, Text


def test_a_variant_is_chosen_before_its_fields_are_set() -> None:
    environ = {"SETPOINT__OPTIMIZER__MOMENTUM": "0.5", "SETPOINT__OPTIMIZER__TYPE": "sgd",
               "SETPOINT__MODEL__CELL": "lstm", "SETPOINT__MODEL": "recurrent",
               "SETPOINT__SOURCES__0__PATHS": "a",
               "SETPOINT__SOURCES__0__TYPE": "text"}  # fmt: skip
    job = compose(Job, environ=environ).resolve()
    assert job.optimizer == Sgd(momentum=0.5)
    assert job.model == Recurrent(cell="lstm")
    assert job.sources == (Text(paths=("a",)),)


def test_unknown_variables_are_problems() -> None:
    environ = {"SETPOINT__": "1", "SETPOINT__LR": "1",
               "SETPOINT__OPTIMIZER": "{",
               "SETPOINT____": "", "SETPOINT__OPTIMIZER_LR": "7"}  # fmt: skip
    with refused(ConfigError):
        compose(Job, environ=environ).resolve()


def test_a_variable_with_one_underscore_that_means_a_field_is_a_problem() -> None:
    environ = {"SETPOINT_OPTIMIZER_LR": "1", "setpoint_batch__sequence_length": "8",
               "SETPOINT_SEED": "1", "SETPOINT_SOURCES": "", "SETPOINT_TRACKER_TOKEN": "hush",
               "SETPOINT_HOME": "/", "SETPOINT_": "", "SETPOINT": "", "SETPOINT_LR": "1",
               "SETPOINT_SEED_X": "1"}  # fmt: skip
    with refused(ConfigError):
        compose(Job, environ=environ).resolve()


def test_one_field_by_two_variables_is_a_problem() -> None:
    environ = {"SETPOINT__SEED": "1", "setpoint__seed": "1", "Setpoint__Batch__Size": "3"}
    with refused(ConfigError):
        compose(Job, environ=environ).resolve()


def test_an_empty_value_is_a_value() -> None:
    assert compose(Job, environ={"SETPOINT__TAGS": ""}).resolve().tags == []
    assert compose(Job, environ={"SETPOINT__USER__A": ""}).resolve().user.dump() == {"A": ""}
    names = ("SETPOINT__SEED", "SETPOINT__OPTIMIZER", "SETPOINT__FOLDER", "SETPOINT__NAME")
    with refused(ConfigError):
        compose(Job, environ=dict.fromkeys(names, "")).resolve()


class Rule(Config):
    pass


class Small(Rule, type="small"):
    beta: int = 1


class Large(Rule, type="large"):
    Beta: int = 1


class Cased(Config):
    """Names in which the case counts, and names in which it does not."""

    T_max: int = 1
    rule: Rule | None = None
    """A family whose variants differ in the case of a name."""

    names: dict[str, int] = field(factory=dict)
    parts: tuple[AdamW | Sgd, ...] = field(factory=lambda: (AdamW(), Sgd()))
    user: Free = field(factory=Free)


def test_fields_are_found_in_any_case_and_keys_keep_theirs() -> None:
    environ = {"SETPOINT__t_MAX": "5", "SETPOINT__NAMES__Ab": "3", "SETPOINT__names__AB": "4",
               "SETPOINT__USER__runName": "x", "SETPOINT__PARTS__SGD__MOMENTUM": "0.5",
               "SETPOINT__PARTS__1__LR": "0.25", "SETPOINT__RULE__TYPE": "large",
               "SETPOINT__RULE__BETA": "7"}  # fmt: skip
    job = compose(Cased, environ=environ).resolve()
    assert (job.T_max, job.names, job.user.dump()) == (5, {"AB": 4, "Ab": 3}, {"runName": "x"})
    assert job.parts[1] == Sgd(momentum=0.5, lr=0.25) and job.rule == Large(Beta=7)
    with refused(ConfigError):
        compose(Cased, environ={"SETPOINT__RULE__BETA": "1"}).resolve()
