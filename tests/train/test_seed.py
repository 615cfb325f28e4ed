from __future__ import annotations

from setpoint.train.config import Job
from setpoint.train.run_name import draw_seed


def test_only_a_null_seed_is_drawn() -> None:
    given, null, other = Job(seed=3), Job(seed=None), Job(seed=None)
    for draft in (given, null, other):
        draw_seed(draft)
    assert given.seed == 3
    assert isinstance(null.seed, int)
    assert null.seed != other.seed
