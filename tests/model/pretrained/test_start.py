"""Runs that start from weights of other runs, and of directories in the format of Hugging Face."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.cli.main import main
from setpoint.config import ConfigError, SetpointError
from setpoint.config.record.record import fingerprint
from setpoint.model import load_pretrained, save_pretrained
from setpoint.plan.preflight import preflight
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ...support.snapshots import compare, refused
from ...support.tensors import same_tensors
from ...train.small import assert_same_run, events, small_job

SHORT = ("duration=4 steps", "evaluation=null", "checkpoint.keep_best=true")


def trained(folder: Path, *flags: str) -> Path:
    """A run of four steps."""
    return train(small_job(folder, *SHORT, *flags)).directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, which tests only read."""
    return trained(tmp_path_factory.mktemp("trained"))


def job_from(folder: Path, weights: Path | str, *flags: str) -> Job:
    return small_job(folder, *SHORT, f"model.pretrained={weights}", *flags)


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_a_run_starts_from_a_run_a_checkpoint_and_a_directory(tmp_path: Path, run: Path) -> None:
    save_pretrained(load_pretrained(run), tmp_path / "exported")
    ours = parameters(load_pretrained(run))
    places = [run, run / "checkpoints/latest", run / "checkpoints/step-00000004"]
    for place in [*places, tmp_path / "exported"]:
        components = build_components(job_from(tmp_path, place))
        assert same_tensors(parameters(components.model), ours), place
        assert all(p.dtype == torch.float32 for p in components.model.parameters())
    assert not same_tensors(parameters(build_components(small_job(tmp_path, *SHORT)).model), ours)


def test_it_is_part_of_what_is_learned_and_recorded(tmp_path: Path, run: Path) -> None:
    job = job_from(tmp_path, run)
    assert fingerprint(job) != fingerprint(small_job(tmp_path, *SHORT))
    started = events(train(job).directory, "start")[0]["pretrained"]
    assert started == {
        "name": str(run),
        "kind": "checkpoint",
        "directory": str(run.resolve() / "checkpoints/step-00000004"),
    }


def test_weights_in_half_precision_train_in_fp32(tmp_path: Path, run: Path) -> None:
    save_pretrained(load_pretrained(run), tmp_path / "half", dtype="bf16")
    components = build_components(job_from(tmp_path, tmp_path / "half"))
    half = parameters(load_pretrained(tmp_path / "half"))
    for name, parameter in components.model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, half[name].float())


def test_a_resumed_run_takes_its_own_weights_even_if_those_have_gone(
    tmp_path: Path, run: Path
) -> None:
    weights = save_pretrained(load_pretrained(run), tmp_path / "weights")
    flags = ("duration=8 steps", "schedule=constant", "evaluation.every=2 steps")
    once = small_job(tmp_path, *flags, f"model.pretrained={weights}", f"workspace={tmp_path}/once")
    whole = train(once).directory
    half = small_job(tmp_path, *flags, f"model.pretrained={weights}", "duration=4 steps")
    resumed = train(half).directory
    shutil.rmtree(weights)
    # The command line, too, does not ask for weights that nobody needs any more.
    again = ["train", str(resumed), "--duration", "8 steps", "--tracking.progress", "none"]
    assert main(again) == 0
    assert_same_run(resumed, whole)
    assert "pretrained" not in events(resumed, "resume")[0]
    assert main(["check", str(resumed)]) == 2


def test_other_models_of_the_users_start_from_checkpoints_only(tmp_path: Path, run: Path) -> None:
    flags = ("model=import", "model.target=torch.nn.Embedding", "model.num_embeddings=257")
    flags = (*flags, "model.embedding_dim=257")
    own = trained(tmp_path, *flags)
    components = build_components(job_from(tmp_path, own, *flags))
    saved = load_pretrained(own)
    assert same_tensors(parameters(components.model), parameters(saved))
    folder = save_pretrained(load_pretrained(run), tmp_path / "exported")
    unlike = job_from(tmp_path, folder, *flags)
    with refused():
        build_components(unlike)
    (problem,) = preflight(unlike).problems
    assert problem.path == "model.pretrained"
    assert "a model of type = import can start from a run" in problem.message


def test_what_is_on_the_hub_is_not_looked_at_before_the_start(tmp_path: Path) -> None:
    report = preflight(job_from(tmp_path, "org/name@v1"))
    assert not report.problems
    assert "model.pretrained: org/name@v1 on the hub, fetched at the start" in report.skipped
    quantized = ("adapter=qlora", "adapter.quantize.group_size=4")
    (line,) = preflight(job_from(tmp_path, "org/name@v1", *quantized)).skipped[-1:]
    assert "experts in it are quantized, too, unless adapter.quantize.exclude names them" in line
    theirs = ("model=huggingface", "model.config=org/theirs")
    without = ("dim", "layers", "heads", "dropout")
    report = preflight(small_job(tmp_path, *theirs, without=without))
    assert "model.config: org/theirs on the hub, fetched at the start" in report.skipped


def test_what_does_not_fit_is_told_field_by_field(tmp_path: Path, capsys: Any) -> None:
    moe = ("model.moe.experts=4", "model.qk_norm=true")
    run = trained(tmp_path, *moe, "model.vocab_size=300")
    folder = save_pretrained(load_pretrained(run), tmp_path / "exported")
    (tmp_path / "empty").mkdir()
    cases: dict[str, Job] = {
        "another model": job_from(tmp_path, folder, "model.layers=2", "model.rope_base=500"),
        "other experts": job_from(
            tmp_path,
            run,
            *moe,
            "model.vocab_size=300",
            "model.moe.top_k=1",
            "model.moe.balance_loss=0.5",
        ),
        "a smaller vocabulary": job_from(tmp_path, folder, *moe),
        "fewer rows": job_from(tmp_path, run, *moe, "model.vocab_size=299"),
        "no directory": job_from(tmp_path, tmp_path / "exportde"),
        "no model": job_from(tmp_path, tmp_path / "empty"),
        "a run that has not begun": job_from(tmp_path, tmp_path / "begun"),
    }
    (tmp_path / "begun/checkpoints").mkdir(parents=True)
    told: list[str] = []
    for case, job in cases.items():
        problems = preflight(job).problems
        assert problems, case
        with pytest.raises(SetpointError) as caught:
            build_components(job)
        text = f"{case}, at check:\n{ConfigError(problems)}\n\n{case}, at start:\n{caught.value}\n"
        told.append(text.replace(str(run), "RUN").replace(str(tmp_path), "HERE"))
    compare("model/pretrained_not_fitting", "\n".join(told))


def test_training_only_settings_may_differ(tmp_path: Path) -> None:
    run = trained(tmp_path, "model.moe.experts=4")
    job = job_from(
        tmp_path,
        run,
        "model.moe.experts=4",
        "model.moe.balance_loss=0.5",
        "model.dropout=0.3",
        "model.init_std=1",
        "model.max_sequence_length=32",
    )
    assert same_tensors(parameters(build_components(job).model), parameters(load_pretrained(run)))


def test_a_run_without_its_checkpoints_is_not_trained_from_nothing(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from setpoint.train import run as module

    job = job_from(tmp_path, run, "duration=2 steps")
    started = train(job).directory

    def remove_and_build(job: Job, *more: Any) -> Components:
        shutil.rmtree(started / "checkpoints")
        return build_components(job, *more)

    monkeypatch.setattr(module, "build_components", remove_and_build)
    with refused():
        train(job)
