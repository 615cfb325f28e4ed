from hypothesis import given
from hypothesis import strategies as st

from setpoint.model.divisors import nearest_divisors


@given(st.integers(1, 500), st.integers(1, 600))
def test_against_trying_all(number, to):
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    expected = sorted(divisors, key=lambda d: (abs(d - to), d))[:3]
    assert list(nearest_divisors(number, to)) == expected


def test_nothing_divides_below_one():
    assert nearest_divisors(0, 3) == ()
