import math

import pytest
import torch

from setpoint.config import resolve
from setpoint.config.draft.walk import to_plain
from setpoint.model.attention.attention import frequencies, rotate, rotation
from setpoint.model.attention.config import LinearScaling, Llama3Scaling, YarnScaling


def test_angles_are_exact_far_out():
    far = 2**24 - 3
    table = rotation(torch.tensor([far]), 64, 10_000.0)
    for plane in range(32):
        angle = far / 10_000.0 ** (2 * plane / 64)
        assert table.cos[0, 0, plane].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert table.sin[0, 0, plane + 32].item() == pytest.approx(math.sin(angle), abs=1e-7)


def test_each_row_may_have_its_own_positions():
    positions = torch.tensor([[0, 1, 2], [7, 0, 1]])
    x = torch.randn(2, 3, 4, 8)
    together = rotate(x, rotation(positions, 8, 100.0))
    for row in range(2):
        alone = rotate(x[row : row + 1], rotation(positions[row], 8, 100.0))
        assert torch.equal(together[row : row + 1], alone)


def test_keeps_dtype_and_rotates_in_fp32():
    x = torch.randn(1, 5, 2, 8, dtype=torch.bfloat16)
    by = rotation(torch.arange(100, 105), 8, 100.0)
    turned = rotate(x, by)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x.float(), by).bfloat16())


RULES = {
    "linear": LinearScaling(factor=4.0),
    "llama 3.1": Llama3Scaling(factor=8.0, original_length=8192),
    "llama 3.2": Llama3Scaling(
        factor=32.0, low_frequency_factor=2.0, high_frequency_factor=6.0, original_length=4096
    ),
    "yarn": YarnScaling(factor=4.0, original_length=32768),
    "yarn, all given": YarnScaling(
        factor=40.0, original_length=4096, beta_fast=20.0, beta_slow=2.0, attention_factor=0.9,
        truncate=False,
    ),
}  # fmt: skip
THEIRS = {
    "type": "rope_type",
    "original_length": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", RULES)
def test_against_transformers(name, head_dim, base):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    ours = resolve(RULES[name])
    given = {n: value for n, value in to_plain(ours).items() if value is not None}
    theirs = {THEIRS.get(n, n): value for n, value in given.items()}
    config = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters={**theirs, "rope_theta": base},
    )
    expected, scale = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config)
    found = frequencies(head_dim, base, ours)
    torch.testing.assert_close(found.radians.float(), expected, rtol=2e-5, atol=0)
    assert found.scale == pytest.approx(scale, rel=1e-7)


def test_a_short_original_length_stretches_all_but_the_first_plane():
    # Each plane but the first turns less than once over five positions.
    rule = resolve(YarnScaling(factor=4.0, original_length=5))
    slowed = frequencies(8, 100.0).radians / frequencies(8, 100.0, rule).radians
    assert slowed.tolist() == pytest.approx([1.0, 4.0, 4.0, 4.0])
