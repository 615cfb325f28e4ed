import pytest

from setpoint.config import ConfigError, resolve
from setpoint.optim.config import AdamW, Constant, Cosine


def test_warmup_follows_the_horizon():
    assert resolve(Cosine(horizon_steps=300)).warmup_steps == 15
    assert resolve(Cosine(horizon_steps=10)).warmup_steps == 0
    assert resolve(Cosine(horizon_steps=300, warmup_steps=7)).warmup_steps == 7


def test_horizon_has_to_come_from_somewhere():
    with pytest.raises(ConfigError, match="horizon_steps"):
        resolve(Cosine())


def test_warmup_must_fit():
    with pytest.raises(ConfigError) as error:
        resolve(Cosine(horizon_steps=100, warmup_steps=101))
    (problem,) = error.value.problems
    assert problem.path == "warmup_steps"
    assert problem.message == "a warm-up of 101 updates does not fit into 100 updates"
    assert problem.valid == ("100", "5")
    assert resolve(Cosine(horizon_steps=100, warmup_steps=100)).warmup_steps == 100


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (AdamW, "lr", 0.0),
        (AdamW, "lr", float("nan")),
        (AdamW, "weight_decay", -0.1),
        (AdamW, "clip_norm", 0.0),
        (AdamW, "betas", (0.9, 1.0)),
        (AdamW, "betas", (-0.1, 0.9)),
        (AdamW, "eps", 0.0),
        (Constant, "warmup_steps", -1),
        (Cosine, "warmup_steps", -1),
        (Cosine, "horizon_steps", 0),
        (Cosine, "floor", 1.5),
        (Cosine, "floor", -0.5),
    ],
)
def test_ranges(cls, name, value):
    with pytest.raises(Exception, match=name):
        resolve(cls(**{name: value}))


def test_clipping_can_be_switched_off():
    assert resolve(AdamW(clip_norm=None)).clip_norm is None
