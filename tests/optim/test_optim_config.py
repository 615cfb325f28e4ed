import pytest

from setpoint.config import ConfigError, resolve
from setpoint.optim.config import AdamWConfig
from setpoint.optim.schedule.config import Constant, Cosine
from setpoint.units import Length


def test_warmup_follows_the_horizon():
    assert resolve(Cosine(horizon=300)).warmup == Length(15)
    assert resolve(Cosine(horizon=10)).warmup == Length(0)
    assert resolve(Cosine(horizon=300, warmup=7)).warmup == Length(7)


def test_horizon_has_to_come_from_somewhere():
    with pytest.raises(ConfigError, match="horizon"):
        resolve(Cosine())


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (AdamWConfig, "lr", 0.0),
        (AdamWConfig, "lr", float("nan")),
        (AdamWConfig, "weight_decay", -0.1),
        (AdamWConfig, "clip_norm", 0.0),
        (AdamWConfig, "betas", (0.9, 1.0)),
        (AdamWConfig, "betas", (-0.1, 0.9)),
        (AdamWConfig, "eps", 0.0),
        (Constant, "warmup", -1),
        (Cosine, "warmup", -1),
        (Cosine, "horizon", 0),
        (Cosine, "floor", 1.5),
        (Cosine, "floor", -0.5),
    ],
)
def test_ranges(cls, name, value):
    with pytest.raises(Exception, match=name):
        resolve(cls(**{name: value}))


def test_clipping_can_be_switched_off():
    assert resolve(AdamWConfig(clip_norm=None)).clip_norm is None
