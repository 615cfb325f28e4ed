import copy
import pickle

from setpoint.config import BUDGET, IDENTITY, RUNTIME


def test_roles_are_compared_by_identity_also_after_a_copy() -> None:
    for role in (IDENTITY, BUDGET, RUNTIME):
        assert copy.deepcopy(role) is role
        assert pickle.loads(pickle.dumps(role)) is role
        assert repr(role) == role.name.upper()
        assert role.meaning
