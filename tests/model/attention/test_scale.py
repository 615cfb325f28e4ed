import pytest

from setpoint.model.attention.selection import attention_scale, query_size
from setpoint.model.config import MuP

from ..small import small_config
from .small import latent_config


def test_nothing_is_said_of_the_usual_scale():
    assert attention_scale(small_config()) is None
    assert attention_scale(latent_config()) is None
    assert attention_scale(small_config(mup=MuP(base_dim=12))) is None


def test_a_given_scale():
    assert attention_scale(small_config(attention_scale=0.3)) == 0.3


def test_mup_scales_by_the_size_of_a_head():
    # At the base it is the usual one, at four times that a quarter, not a half.
    at_base = small_config(head_dim=16, mup=MuP(base_dim=24, base_head_dim=16))
    assert attention_scale(at_base) == pytest.approx(1 / 4)
    wider = small_config(head_dim=64, mup=MuP(base_dim=24, base_head_dim=16))
    assert attention_scale(wider) == pytest.approx(1 / 16)


def test_sizes_of_queries():
    assert query_size(small_config(head_dim=8)) == 8
    assert query_size(latent_config()) == 10
