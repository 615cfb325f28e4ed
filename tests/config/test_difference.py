from hypothesis import given, settings

from setpoint.config import BUDGET, RUNTIME, Config, resolve
from setpoint.config.record.compare import ABSENT, differences, explain
from setpoint.config.record.fingerprint import fingerprint

from .helpers import resolved
from .sample import Job, Sgd
from .strategies import jobs as drafts


def test_only_what_differs_with_both_origins() -> None:
    left = resolve(Job())
    right = resolved("--optimizer=sgd", "--optimizer.lr=1", "--duration=5 epochs", "--seed=1234")
    found = {d.path: d for d in differences(left, right)}
    assert list(found) == [
        "duration", "optimizer.type", "optimizer.lr", "optimizer.betas", "optimizer.momentum",
        "optimizer.nesterov",
    ]  # fmt: skip
    assert found["optimizer.lr"].to_json() == {
        "path": "optimizer.lr", "role": "identity", "left": 3e-4, "left_origin": "default",
        "right": 1.0, "right_origin": "command line --optimizer.lr",
    }  # fmt: skip
    assert found["optimizer.momentum"].left is ABSENT
    assert found["optimizer.betas"].right is ABSENT
    assert "right" not in found["optimizer.betas"].to_json()
    assert repr(ABSENT) == "(absent)"


def test_equal_configs_do_not_differ() -> None:
    assert differences(resolve(Job()), resolve(Job(seed=1234))) == []


def test_roles_can_be_chosen() -> None:
    left, right = resolve(Job()), resolve(Job(seed=1, name="x", duration="1 h"))
    assert [d.path for d in differences(left, right, (RUNTIME,))] == ["name"]
    assert [d.path for d in differences(left, right, (BUDGET,))] == ["duration"]


def test_kinds_count_in_free_areas() -> None:
    left, right = resolve(Job(user={"a": 1})), resolve(Job(user={"a": True}))
    assert [d.path for d in differences(left, right)] == ["user.a"]
    assert issubclass(Sgd, Config)


def test_what_makes_two_fingerprints_differ() -> None:
    base = resolve(Job())
    assert explain(base, resolve(Job(name="other", duration="5 epochs"))) == []
    found = explain(base, resolve(Job(name="other", seed=1, optimizer=Sgd())))
    assert {item.path for item in found} == {
        "seed", "optimizer.type", "optimizer.betas", "optimizer.momentum", "optimizer.nesterov"
    }  # fmt: skip
    (seed,) = [item for item in found if item.path == "seed"]
    assert (seed.left, seed.right, seed.left_origin) == (1234, 1, "default")
    assert seed.right_origin.startswith("program (tests/config/test_difference.py:")


@given(drafts, drafts)
@settings(max_examples=40, deadline=None)
def test_nothing_to_explain_means_the_same_fingerprint(one: Job, other: Job) -> None:
    left, right = resolve(one), resolve(other)
    assert (explain(left, right) == []) == (fingerprint(left) == fingerprint(right))
