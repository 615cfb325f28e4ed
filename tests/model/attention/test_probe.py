import pytest
import torch

from setpoint.config import resolve
from setpoint.config.resolving.checks import verify
from setpoint.config.values.user_code import allow_imports
from setpoint.model.attention.probe import device_problems
from setpoint.model.config import ImportedModel
from setpoint.presets.tiny import tiny

from ...snapshots import compare
from ..small import small_config
from .small import SLIDING, latent_config

allow_imports("torch.nn")


def reasons(device="cpu", compute="fp32", training=True, **changes):
    config = small_config(**changes)
    return [p.message for p in device_problems(config, device, compute, training=training)]


@pytest.mark.parametrize("name", ["auto", "eager", "sdpa", "sdpa_math", "sdpa_flash"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_what_runs_on_a_cpu(name, compute):
    assert not reasons(attention_backend=name, compute=compute)
    assert not reasons(attention_backend=name, compute=compute, **SLIDING)


def test_what_does_not_is_said_why():
    cases = {
        "training on a CPU": {"attention_backend": "flex"},
        "a kernel for GPUs": {"attention_backend": "varlen", "head_dim": 8},
        "another": {"attention_backend": "sdpa_cudnn"},
        "dropout": {"attention_backend": "sdpa_flash", "attention_dropout": 0.1},
    }
    lines = []
    for name, changes in cases.items():
        config = small_config(**changes)
        (problem,) = device_problems(config, "cpu", "fp32", training=True)
        lines += [f"# {name}", str(problem)]
    compare("model/attention_device", "\n\n".join(lines))


def test_what_training_alone_needs_is_no_matter_without_it():
    assert not reasons(attention_backend="flex", training=False)
    assert not reasons(attention_backend="sdpa_flash", attention_dropout=0.1, training=False)


def test_sizes_are_tried(monkeypatch):
    config = latent_config(attention_backend="sdpa_math")
    assert not list(device_problems(config, "cpu", "fp32", training=True))
    shapes = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def look(query, key, value, **options):
        shapes.append((query.shape, key.shape, value.shape))
        return attend(query, key, value, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", look)
    assert not list(device_problems(config, "cpu", "fp32", training=True))
    assert shapes == [((1, 6, 16, 10), (1, 6, 16, 10), (1, 6, 16, 5))]


@pytest.mark.parametrize("name", ["varlen", "flash_attention"])
def test_flash_kernels_need_half_precision(name, monkeypatch):
    from setpoint.model.attention import probe

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(probe, "missing", lambda *_: None)
    tried = []
    monkeypatch.setattr(probe, "_attempt", lambda *given: tried.append(given[1:]))
    changes = {"attention_backend": name, "head_dim": 8}
    expected = ["it computes in bf16 or fp16; set precision.compute"]
    assert reasons("auto", **changes) == expected
    assert reasons("cuda", "bf16", **changes) == []
    assert tried == [(torch.device("cuda"), torch.bfloat16, True)]


def test_a_missing_device_is_reported_elsewhere():
    assert not torch.cuda.is_available()
    assert reasons("cuda", attention_backend="varlen", head_dim=8) == []


def test_a_model_of_the_users_own_is_not_looked_at():
    model = resolve(ImportedModel(target="torch.nn.Identity", max_sequence_length=8))
    assert not list(device_problems(model, "cpu", "fp32", training=True))


def test_a_job_verifies_it():
    job = tiny()
    job.model.attention_backend = "varlen"
    job.model.head_dim = 32
    (problem,) = verify(resolve(job), {"torch"}).problems
    assert problem.path == "model.attention_backend"
    assert "attention backend" in " ".join(map(str, verify(resolve(job), ()).skipped))
