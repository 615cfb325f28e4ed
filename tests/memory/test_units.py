import pytest

from setpoint.units.size import in_units


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (2048, "2 KiB"),
        (1023 * 1024, "0.999 MiB"),
        (1288490189, "1.2 GiB"),
        (5 * 2**50, "5.12e+03 TiB"),
    ],
)
def test_three_digits(size: int, text: str) -> None:
    assert in_units(size) == text
