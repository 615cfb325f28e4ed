from setpoint.model.attention.selection import kind_of, kinds_of

from ..small import small_config


def test_the_pattern_is_repeated_and_cut_at_the_last_layer():
    pattern = ("sliding", "sliding", "full")
    config = small_config(layers=7, attention_pattern=pattern, sliding_window=4)
    kinds = [kind_of(config, layer) for layer in range(7)]
    assert kinds == ["sliding", "sliding", "full"] * 2 + ["sliding"]
    assert kinds_of(config) == ["sliding", "full"]
    assert kinds_of(small_config()) == ["full"]
