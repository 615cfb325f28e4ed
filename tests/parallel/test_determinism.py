import torch

from setpoint.parallel.determinism import set_determinism


def test_what_one_job_asks_for_does_not_bind_the_next():
    set_determinism(True)
    assert torch.are_deterministic_algorithms_enabled()
    set_determinism(False)
    assert not torch.are_deterministic_algorithms_enabled()
