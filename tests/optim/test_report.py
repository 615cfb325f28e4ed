from setpoint.optim.grouping import Gathered, GroupRow, group_rows
from setpoint.shapes.protocols import Parameter


def test_rows():
    held = [
        Parameter(n, s, "matrix") for n, s in (("a", (2, 3)), ("b", (4,)), ("c", ()), ("d", (5,)))
    ]
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
