from setpoint.config.compose import compose
from setpoint.config.layers.environment import variables

from ..helpers import problems_of
from ..sample import Job, Recurrent, Sgd, Text


def test_variables_set_fields_by_type() -> None:
    environ = {
        "SETPOINT__OPTIMIZER__LR": "1e-2",
        "SETPOINT__DETERMINISTIC": "true",
        "SETPOINT__TAGS": "a,b",
        "SETPOINT__USER__MY_KEY": "[1, x]",
        "SETPOINT__BATCH__SEQUENCE_LENGTH": "8",
        "HOME": "/root",
        "SETPOINT_OTHER": "3",
    }
    job = compose(Job, environ=environ).resolve()
    assert job.optimizer.lr == 0.01
    assert job.deterministic
    assert job.tags == ["a", "b"]
    assert job.user.dump() == {"my_key": [1, "x"]}
    assert job.batch.sequence_length == 8


def test_a_variant_is_chosen_before_its_fields_are_set() -> None:
    environ = {"SETPOINT__OPTIMIZER__MOMENTUM": "0.5", "SETPOINT__OPTIMIZER__TYPE": "sgd",
               "SETPOINT__MODEL__CELL": "lstm", "SETPOINT__MODEL": "recurrent",
               "SETPOINT__SOURCES__0__PATHS": "a",
               "SETPOINT__SOURCES__0__TYPE": "text"}  # fmt: skip
    job = compose(Job, environ=environ).resolve()
    assert job.optimizer == Sgd(momentum=0.5)
    assert job.model == Recurrent(cell="lstm")
    assert job.sources == (Text(paths=("a",)),)


def test_the_order_does_not_depend_on_the_environment() -> None:
    names = ["SETPOINT__B__C", "SETPOINT__A", "setpoint__b", "SETPOINT__B__TYPE"]
    orders = [list(variables(dict.fromkeys(n, ""))) for n in (names, names[::-1])]
    assert orders[0] == orders[1]
    assert [name for name, _ in orders[0]] == [
        "SETPOINT__A", "SETPOINT__B__TYPE", "setpoint__b", "SETPOINT__B__C",
    ]  # fmt: skip


def test_flags_beat_variables() -> None:
    environ = {"SETPOINT__SEED": "1"}
    assert compose(Job, environ=environ).resolve().seed == 1
    assert compose(Job, environ=environ, flags=["--seed=2"]).resolve().seed == 2


def test_no_environment_is_read_unless_it_is_given(monkeypatch) -> None:
    monkeypatch.setenv("SETPOINT__SEED", "7")
    assert compose(Job).resolve().seed == 1234


def test_unknown_variables_are_problems() -> None:
    environ = {"SETPOINT__": "1", "SETPOINT__LR": "1",
               "SETPOINT__OPTIMIZER": "{",
               "SETPOINT____": ""}  # fmt: skip
    problems = problems_of(lambda: compose(Job, environ=environ).resolve())
    assert [problem.path for problem in problems] == ["", ".", "lr", "optimizer"]
    assert all(str(problem.origin).startswith("environment variable") for problem in problems)
