from setpoint.config.words.plain_data import count_values


def test_values_are_counted_each_time_they_are_met() -> None:
    assert count_values(3, 10) == 1
    assert count_values([1, (2, {"a": [3]})], 10) == 7
    shared = [1, 2]
    assert count_values([shared, shared], 10) == 7


def test_counting_stops() -> None:
    laughs: list[object] = ["x"]
    for _ in range(60):
        laughs = [laughs, laughs]
    assert 1000 < count_values(laughs, 1000) < 1100
