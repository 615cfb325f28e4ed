"""The build of Mistral in small: a window slides in all layers."""

from __future__ import annotations

import torch

from setpoint.model.attention.selection import kind_of

from .published import resolved


def test_a_window_slides_in_all_layers() -> None:
    job, model = resolved("mistral-tiny")
    assert {kind_of(model, layer) for layer in range(model.layers)} == {"sliding"}
    assert model.sliding_window is not None
    assert model.sliding_window < job.batch.sequence_length
    module = model.build(vocab_size=257).eval()
    tokens = torch.randint(257, (1, 3), generator=torch.Generator().manual_seed(1))
    reach = model.layers * (model.sliding_window - 1) + 1
    assert reach < job.batch.sequence_length
    # Any first token and this many others behind it give the last one the same logits.
    rest = torch.randint(257, (1, reach), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        near, far = (module(torch.cat((tokens[:, at : at + 1], rest), 1))[0, -1] for at in (0, 1))
        inside = module(torch.cat((tokens[:, 2:], rest[:, 1:]), 1))[0, -1]
    torch.testing.assert_close(near, far, rtol=0, atol=0)
    assert not torch.equal(near, inside)
