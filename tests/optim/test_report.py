from typing import NamedTuple

from setpoint.optim.grouping import Gathered
from setpoint.optim.report import GroupRow, group_rows


class One(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: str = "matrix"
    rate: float = 1.0


def test_rows():
    held = [One("a", (2, 3)), One("b", (4,)), One("c", ()), One("d", (5,))]
    groups = [
        Gathered("decay", held, 0.1, 1.0, {}),
        Gathered("/x/", held[:1], 0.0, 0.5, {"betas": (0.8, 0.9)}),
    ]
    rows = group_rows(groups, 0.2)
    assert rows == [
        GroupRow("decay", 0.2, 0.1, {}, 4, 16, ("a", "b", "c")),
        GroupRow("/x/", 0.1, 0.0, {"betas": (0.8, 0.9)}, 1, 6, ("a",)),
    ]
    assert rows[1].to_json() == {
        "name": "/x/",
        "lr": 0.1,
        "weight_decay": 0.0,
        "options": {"betas": [0.8, 0.9]},
        "tensors": 1,
        "parameters": 6,
        "names": ["a"],
    }
