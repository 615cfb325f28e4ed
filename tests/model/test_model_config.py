import math
import subprocess
import sys

import pytest

from setpoint.config import ConfigError, resolve
from setpoint.model.config import TransformerConfig


def resolved(**fields):
    return resolve(TransformerConfig(**{"max_sequence_length": 8, **fields}))


def problems(**fields):
    with pytest.raises(ConfigError) as error:
        resolved(**fields)
    return error.value.problems


def test_derived_values():
    config = resolved(dim=512, heads=8)
    assert (config.kv_heads, config.head_dim) == (8, 64)
    assert config.ffn_dim == 1408  # 8/3 * 512 = 1365.3, and 22 * 64 = 1408
    assert config.init_std == pytest.approx(0.02795, rel=1e-3)
    assert resolved(dim=4096, heads=8).init_std == pytest.approx(0.00988, rel=1e-3)


@pytest.mark.parametrize("dim", [64, 96, 100, 192, 768, 4096, 3 * 2**20])
@pytest.mark.parametrize("multiple", [1, 7, 64, 256])
def test_ffn_dim_is_the_smallest_multiple_that_holds_eight_thirds(dim, multiple):
    width = resolved(dim=dim, heads=2, ffn_multiple_of=multiple).ffn_dim
    assert width % multiple == 0
    assert 3 * width >= 8 * dim > 3 * (width - multiple)


def test_derivation_sees_what_is_overridden_later():
    draft = TransformerConfig(dim=64, heads=4, max_sequence_length=8)
    draft.dim = 128
    assert resolve(draft).head_dim == 32


def test_head_dim_may_be_chosen_freely():
    config = resolved(dim=100, heads=6, head_dim=32)
    assert config.head_dim == 32


def test_dim_that_heads_do_not_divide():
    (problem,) = problems(dim=100, heads=6)
    assert problem.path == "heads"
    assert problem.message == "dim = 100 cannot be divided among 6 heads"
    assert problem.valid == ("5", "2", "10")
    assert "set dim to 96 or 108" in problem.hint
    for heads in problem.valid:
        assert resolved(dim=100, heads=int(heads)).head_dim % 2 == 0
    for dim in (96, 108):
        assert resolved(dim=dim, heads=6).head_dim % 2 == 0


def test_more_heads_than_dim_allows():
    (problem,) = problems(dim=8, heads=16)
    assert problem.path == "heads"
    assert problem.valid == ("4", "2", "1")


def test_odd_dim_offers_even_ones():
    (problem,) = problems(dim=99, heads=4)
    assert problem.valid == ()
    assert "set dim to 96 or 104" in problem.hint


def test_odd_derived_head_dim():
    (problem,) = problems(dim=100, heads=4)
    assert (problem.path, problem.message) == ("head_dim", "25 is odd, and must be even")
    assert problem.valid == ("24", "26")
    assert "heads to 5" in problem.hint
    assert resolved(dim=100, heads=5).head_dim == 20


def test_odd_given_head_dim_names_no_other_field():
    (problem,) = problems(dim=64, heads=4, head_dim=33)
    assert problem.valid == ("32", "34")
    assert problem.also == ()


def test_kv_heads_must_divide_heads():
    (problem,) = problems(dim=96, heads=6, kv_heads=4)
    assert problem.path == "kv_heads"
    assert problem.message == "6 heads cannot be shared evenly by 4 key-value heads"
    assert problem.valid == ("3", "2", "6")


def test_more_kv_heads_than_heads():
    (problem,) = problems(dim=96, heads=6, kv_heads=12)
    assert problem.valid[0] == "6"


def test_problems_come_together():
    assert len(problems(dim=100, heads=4, kv_heads=3)) == 2


def test_multiple_has_no_effect_beside_a_given_width():
    (problem,) = problems(ffn_dim=100, ffn_multiple_of=32)
    assert problem.path == "ffn_multiple_of"
    assert "no effect" in problem.message
    assert resolved(ffn_dim=100).ffn_dim == 100


def test_sequence_length_has_to_come_from_somewhere():
    with pytest.raises(ConfigError, match="max_sequence_length"):
        resolve(TransformerConfig())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dim", 0),
        ("layers", 0),
        ("heads", 0),
        ("kv_heads", 0),
        ("head_dim", 1),
        ("ffn_dim", 0),
        ("ffn_multiple_of", 0),
        ("rope_base", 1.0),
        ("norm_eps", 0.0),
        ("norm_eps", float("nan")),
        ("init_std", 0.0),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("max_sequence_length", 0),
        ("ffn_multiplier", 0.0),
        ("ffn_multiplier", math.inf),
        ("rope_base_sliding", 1.0),
        ("sliding_window", 0),
        ("attention_scale", 0.0),
        ("attention_soft_cap", 0.0),
        ("logit_soft_cap", -1.0),
        ("vocab_size", 0),
        ("vocab_multiple_of", 0),
        ("embedding_scale", 0.0),
        ("residual_scale", math.inf),
        ("logit_scale", 0.0),
        ("attention_dropout", 1.0),
        ("embedding_dropout", -0.1),
        ("activation", "silu"),
        ("positions", "alibi"),
        ("norm_placement", "sandwich"),
        ("residual_init", "zero"),
        ("attention_pattern", ("global",)),
    ],
)
def test_ranges(name, value):
    with pytest.raises(Exception, match=name):
        resolve(TransformerConfig(**{name: value}))


def test_no_torch():
    code = (
        "import sys, setpoint.model.config, setpoint.model.parameters, setpoint.loss.config, "
        "setpoint.optim.config, setpoint.optim.schedule\n"
        "print([m for m in ('torch', 'numpy', 'yaml', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
