"""Files of KempnerForge mean what they mean there, by its own formulas."""

import math
from pathlib import Path
from typing import Any

import pytest

from setpoint.cli.main import main
from setpoint.config import ConfigError, compose
from setpoint.config.files.write import write_toml
from setpoint.interop.dialect import read_foreign
from setpoint.model.build import build_model
from setpoint.model.config import TransformerConfig
from setpoint.train.config import Job

from ..support.snapshots import compare_problems, refused
from .conftest import Refuses
from .converting import assert_rates, job_of, kinds

BASE: dict[str, Any] = {
    "model": {"dim": 256, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 1000,
              "max_seq_len": 64},
    "train": {"batch_size": 4, "seq_len": 64, "max_steps": 60, "grad_accum_steps": 3,
              "compile_model": False},
    "scheduler": {"warmup_steps": 10},
    "distributed": {"dp_shard": 2, "dp_replicate": 3},
    "data": {"dataset_path": "tokens"},
}  # fmt: skip


def merged(**sections: dict[str, Any]) -> dict[str, Any]:
    """The file above with other values in some tables."""
    return {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in BASE | sections}


def write(folder: Path, data: dict[str, Any]) -> str:
    path = folder / "job.toml"
    path.write_text(write_toml(data))
    return str(path)


def converted(folder: Path, ranks: int = 6, **sections: dict[str, Any]) -> Job:
    """The job that a file means, at a number of ranks."""
    return job_of(read_foreign("kempnerforge", write(folder, merged(**sections))), ranks)


def factor(config: dict[str, Any], total: int, step: int) -> float:
    """KempnerForge's factor of the peak rate at a step, counted from 0."""
    name, warmup = config.get("name", "cosine"), config["warmup_steps"]
    least, stable = config.get("min_lr_ratio", 0.1), 0
    if step < warmup:
        return step / warmup
    if name == "wsd":
        stable = config.get("stable_steps") or 0
    decay = config.get("decay_steps") or total - warmup - stable
    t = min(1.0, max(0.0, (step - warmup - stable) / decay))
    kind = config.get("wsd_decay_type", "cosine") if name == "wsd" else name
    shapes = {
        "cosine": least + (1 - least) * (1 + math.cos(math.pi * t)) / 2,
        "linear": 1 - (1 - least) * t,
        "sqrt": least + (1 - least) * math.sqrt(1 - t),
        "rex": max(least, (1 - t) ** config.get("rex_alpha", 1.0)),
        "constant": 1.0,
    }
    return shapes[kind]


@pytest.mark.parametrize("scheduler", [
    {}, {"name": "linear", "decay_steps": 20}, {"name": "constant"},
    {"name": "rex", "rex_alpha": 2.0, "min_lr_ratio": 0.2}, {"name": "cosine", "warmup_steps": 0},
    {"name": "wsd", "stable_steps": 15}, {"name": "wsd", "stable_steps": 5, "decay_steps": 30,
     "wsd_decay_type": "linear"}, {"name": "wsd", "wsd_decay_type": "sqrt", "stable_steps": 40},
])  # fmt: skip
def test_rates_are_those_of_its_formula(tmp_path: Path, scheduler: dict[str, Any]) -> None:
    job = converted(tmp_path, scheduler=scheduler)
    config = {"warmup_steps": 10, **scheduler}
    assert_rates(job, lambda step: factor(config, 60, step))


def test_the_batch_is_that_of_its_data_ranks(tmp_path: Path) -> None:
    job = converted(tmp_path)
    assert (job.batch.global_size, job.batch.micro_size) == (4 * 3 * 2 * 3, 4)
    experts = {"num_experts": 4, "moe_aux_loss_weight": 0.02}
    mesh = {"dp_shard": 2, "dp_replicate": 1, "ep": 2, "tp": 2}
    job = converted(tmp_path, ranks=8, model=experts, distributed=mesh)
    # Two ranks of an expert group see the same data there, and divide it here.
    assert job.batch.global_size == 4 * 3 * 2
    assert (job.parallel.shard, job.parallel.expert, job.parallel.tensor) == (4, 2, 2)


def parameters(model: dict[str, Any], hidden: int) -> int:
    """KempnerForge's number of parameters, with one network of shared experts."""
    dim, layers, heads = model["dim"], model["n_layers"], model["n_heads"]
    head = dim // heads
    attention = 2 * dim * heads * head + 2 * dim * model["n_kv_heads"] * head
    network, total = 3 * dim * hidden, 2 * model["vocab_size"] * dim + dim
    for layer in range(layers):
        total += attention + 2 * dim
        experts = model.get("num_experts", 0)
        if experts and (layer + 1) % model.get("moe_frequency", 1) == 0:
            shared = network if model.get("moe_shared_experts") else 0
            total += experts * network + dim * experts + shared
        else:
            total += network
    return total


@pytest.mark.parametrize("model", [
    {}, {"ffn_dim_multiplier": 1.3}, {"ffn_hidden_dim": 300}, {"num_experts": 4},
    {"num_experts": 4, "moe_frequency": 2, "moe_shared_experts": 2},
])  # fmt: skip
def test_parameters_are_those_of_its_formula(tmp_path: Path, model: dict[str, Any]) -> None:
    job = converted(tmp_path, model=model)
    whole = {**BASE["model"], **model}
    raw = int(4 * 256 * (2 / 3) * model.get("ffn_dim_multiplier", 1.0))
    hidden = model.get("ffn_hidden_dim") or 256 * math.ceil(raw / 256)
    built = build_model(job.model, 1000)
    assert sum(p.numel() for p in built.parameters()) == parameters(whole, hidden)
    assert isinstance(job.model, TransformerConfig)
    assert job.model.init_std == 0.02


def test_a_file_is_a_source_and_converted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.chdir(tmp_path)
    train = {"grad_clip_norm": 0.5, "mixed_precision": "fp16"}
    write(tmp_path, merged(train=train))
    assert main(["why", "optimizer.clip_norm", "kempnerforge:job.toml", "--world-size=6"]) == 0
    assert "job.toml:" in capsys.readouterr().out
    assert main(["convert", "job.toml", "--output", "new.toml"]) == 0
    assert "differs" in capsys.readouterr().err
    ours = compose(Job, "new.toml", flags=["--parallel.world_size=6"]).resolve()
    assert ours == converted(tmp_path, train=train)
    text = (tmp_path / "new.toml").read_text()
    assert "clip_norm = 0.5  # job.toml:" in text
    refuses("convert", "kempnerforge:job.toml", "--strict")
    # Without a prefix it is recognized, and that is said.
    assert main(["show", "job.toml", "--world-size", "6"]) == 0
    assert "file of KempnerForge" in capsys.readouterr().err


def test_what_it_does_not_take_is_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path, merged(train={"max_step": 3}, optimizer={"name": "adam"}))
    compare_problems(read_foreign("kempnerforge", path).problems)
    images = read_foreign("kempnerforge", write(tmp_path, merged(model={"vlm": {"arch": "mot"}})))
    compare_problems(images.problems)
    with refused():
        read_foreign("kempnerforge", str(tmp_path / "none.toml"))
    with refused(ConfigError):
        converted(tmp_path, ranks=5)


def test_heads_are_not_shared_unless_given(tmp_path: Path) -> None:
    path = write(tmp_path, {"model": {"n_heads": 8, "dim": 64, "vocab_size": 300}})
    assert getattr(job_of(read_foreign("kempnerforge", path)).model, "kv_heads", None) == 8


def test_a_batch_of_none_is_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path, {"distributed": {"ep": 2, "dp_shard": 2}, "train": {"batch_size": 0}})
    compare_problems(read_foreign("kempnerforge", path).problems)


def test_evaluation_reads_its_own_data(tmp_path: Path) -> None:
    job = converted(tmp_path, eval={"enabled": True, "steps": 5, "dataset_path": "held"})
    # 5 batches of 4 on each of 2 * 3 data ranks.
    assert job.evaluation is not None and job.evaluation.sequences == 5 * 4 * 6
    assert [getattr(source, "paths", None) for source in job.data.validation] == [("./held/*.npy",)]


@pytest.mark.parametrize(("count", "kept"), [(5, 5), (0, None), (-1, None)])
def test_no_number_of_checkpoints_keeps_all(tmp_path: Path, count: int, kept: int | None) -> None:
    assert converted(tmp_path, checkpoint={"keep_last_n": count}).checkpoint.keep == kept


def test_a_load_without_the_optimizer(tmp_path: Path) -> None:
    given = {"load_path": "run", "exclude_from_loading": ["optimizer"]}
    assert converted(tmp_path, checkpoint=given).checkpoint.exclude == ("optimizer",)
    path = write(tmp_path, {"plugins": ["mine"]})
    assert kinds(read_foreign("kempnerforge", path))["plugins"] == "refused"
