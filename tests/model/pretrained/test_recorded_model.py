from pathlib import Path

import torch

from setpoint.checkpoint.places import checkpoint_to_load
from setpoint.model import config_from_pretrained, load_pretrained
from setpoint.model.pretrained.locate import locate
from setpoint.sweep.sweep_record import write_point
from setpoint.train.run import train

from ...support.snapshots import refused
from ...train.small import small_job

MOE = ("duration=4 steps", "model.moe.experts=4", "model.moe.router=sigmoid_top_k")


def test_a_run_comes_back_with_all_that_it_has_learned(tmp_path: Path) -> None:
    outcome = train(small_job(tmp_path, *MOE))
    model = load_pretrained(outcome.directory)
    best = (outcome.directory / "checkpoints/best").read_text().strip()
    again = load_pretrained(outcome.directory / "checkpoints" / best)
    assert not model.training
    for name, tensor in again.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    last = load_pretrained(str(outcome.directory / "checkpoints/latest"), dtype="bf16")
    trained = outcome.components.model.state_dict()
    for name, tensor in last.state_dict().items():
        kind = torch.float32 if name.endswith("router.bias") else torch.bfloat16
        assert tensor.dtype == kind
        assert torch.equal(tensor, trained[name].to(kind))
    assert any(name.endswith("router.bias") for name in trained)
    assert config_from_pretrained(outcome.directory) == outcome.job.model


def test_the_point_of_a_sweep_stands_for_its_run(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=2 steps")
    run, point = train(job).directory, tmp_path / "runs" / "points" / "lr=0.01"
    write_point(point, point.name, job, str(run))
    assert locate(str(point)).directory == locate(str(run)).directory
    assert checkpoint_to_load(str(point)) == checkpoint_to_load(str(run))
    run.rename(tmp_path / "moved")
    for find in (locate, checkpoint_to_load):
        with refused():
            find(str(point))


def test_a_damaged_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=4 steps")).directory
    path = run / "checkpoints/step-00000004/model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with refused():
        load_pretrained(run)
    path.unlink()
    with refused():
        load_pretrained(run)


def test_a_configuration_of_another_kind_is_not_ours(tmp_path: Path) -> None:
    flags = ("duration=2 steps", "model=import", "model.target=torch.nn.Embedding")
    sizes = ("model.num_embeddings=257", "model.embedding_dim=257")
    run = train(small_job(tmp_path, *flags, *sizes)).directory
    assert load_pretrained(run)(torch.zeros(1, 3, dtype=torch.int64)).shape == (1, 3, 257)
    with refused():
        config_from_pretrained(run)
