"""A checkpoint holds all that the rest of a run depends on."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.repartition import convert
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config.composition import compose
from setpoint.infer.adopt import complete
from setpoint.infer.config import Inference
from setpoint.infer.loaded_model import add_adapter
from setpoint.infer.loaded_model import load as load_model
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.pretrained import load as loading
from setpoint.model.pretrained.load import frozen_of
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import as_placed, in_memory
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import rehearse, train
from setpoint.train.run_state import restore, snapshot

from ..checkpoint.stored import load
from ..support.forks import forked
from ..support.snapshots import refused
from ..support.tensors import read
from .effects.model_fields import theirs
from .small import small_job, states, train_rows


def advance(
    job: Job, components: Components, position: Position, steps: int
) -> tuple[Position, list[float]]:
    loop = Loop(job, components, [], StopRequest(), position)
    losses: list[float] = []
    components.model.train()
    for _ in range(steps):
        loop.pending = loop.take_step()
        loop.advance(0.5)
        result = loop.complete_pending()
        losses.append(result.loss)
    return loop.position, losses


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_the_same_run_goes_on(tmp_path: Path, compute: str) -> None:
    """The oracle is the continuation of the very objects that were saved."""
    job = small_job(tmp_path, f"precision.compute={compute}")
    components = build_components(job)
    position, _ = advance(job, components, Position(), 5)
    store = CheckpointStore(tmp_path / "checkpoints")
    with snapshot(states(job, components), position) as taken:
        store.save(position.step, taken.tensors, taken.state)
    state = taken.state
    expected = advance(job, components, position, 4)
    noise = (random.random(), numpy.random.rand(), torch.rand(1).item())

    torch.manual_seed(99)
    fresh = build_components(job)
    checkpoint = load(store.root, "latest")
    restored = restore(job, states(job, fresh), checkpoint)
    assert restored == position
    # Nothing was added to or lost from what was saved.
    with snapshot(states(job, fresh), restored) as found:
        again = found.tensors
    assert found.state == state
    for stem in taken.tensors:
        assert again[stem].keys() == checkpoint.tensors[stem].keys()
        for name, tensor in checkpoint.tensors[stem].items():
            assert torch.equal(again[stem][name], in_memory(tensor))
            assert again[stem][name].dtype == tensor.dtype
    assert advance(job, fresh, restored, 4) == expected
    assert (random.random(), numpy.random.rand(), torch.rand(1).item()) == noise
    for ours, saved in zip(fresh.model.parameters(), components.model.parameters(), strict=True):
        assert torch.equal(ours, saved)


@pytest.mark.parametrize("flag", ["model.dim=32", "seed=5", "batch.sequence_length=8"])
def test_what_does_not_fit_is_refused(tmp_path: Path, flag: str) -> None:
    job = small_job(tmp_path)
    components = build_components(job)
    store = CheckpointStore(tmp_path / "checkpoints")
    with snapshot(states(job, components), Position()) as taken:
        store.save(0, taken.tensors, taken.state)
    with refused():
        components = build_components(small_job(tmp_path, flag))
        restore(job, states(job, components), load(store.root, "latest"))


# Checkpoints without frozen parameters, which the weights have that a run began with.

BASE = ("model.layers=2", "model.dropout=0", "schedule.horizon=8 steps", "checkpoint.keep=null")
FROZEN = r"optimizer.frozen=['^(?!output|layers\.1\.feed_forward)']"
OUT = "checkpoint.save_frozen=false"
TO_8 = ("duration=8 steps", FROZEN)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights to start from, as a run has them and in the format of Hugging Face, in bf16."""
    folder = tmp_path_factory.mktemp("weights")
    run = train(
        small_job(folder, *BASE, "duration=1 steps", "seed=5"), directory=folder / "run"
    ).directory
    save_pretrained(load_pretrained(run), folder / "hf", dtype="bf16")
    return folder


def model_of(run: Path) -> dict[str, Tensor]:
    return load_pretrained(run / "checkpoints" / "latest").state_dict()


def held(run: Path, step: int) -> dict[str, Any]:
    """The content of the file of weights alone."""
    return {**read(load_directory(run / "checkpoints" / f"step-{step:08}").tensors["model"])}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name


def test_a_run_without_frozen_parameters_goes_on_bit_for_bit(weights: Path, tmp_path: Path) -> None:
    start = f"model.pretrained={weights / 'hf'}"
    whole = train(small_job(tmp_path, *BASE, *TO_8, start), directory=tmp_path / "whole").directory
    run = tmp_path / "run"
    for duration in ("duration=4 steps", "duration=8 steps"):
        train(small_job(tmp_path, *BASE, *TO_8, start, OUT, duration), directory=run)
    losses = [[row["loss"] for row in train_rows(each)] for each in (whole, run)]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    assert_equal(model_of(whole), model_of(run))
    names = set(held(run, 8))
    assert {name for name in model_of(run) if name.startswith(("output", "layers.1.feed"))} == names
    # A new run takes them from there, and saves all of them if it is to.
    flags = (*BASE, FROZEN, "duration=9 steps")
    new = train(small_job(tmp_path, *flags, f"checkpoint.load={run}"), directory=tmp_path / "new")
    old = train(small_job(tmp_path, *flags, f"checkpoint.load={whole}"), directory=tmp_path / "old")
    assert new.started.step == old.started.step == 8
    assert_equal(held(tmp_path / "new", 9), held(tmp_path / "old", 9))
    # One that starts from its weights, and leaves out some of them again.
    again = (f"model.pretrained={run}", "optimizer.frozen=['^layers']", OUT, "duration=1 steps")
    third = train(small_job(tmp_path, *BASE, *again), directory=tmp_path / "third").directory
    frozen = {name: tensor for name, tensor in model_of(run).items() if name.startswith("layers")}
    assert not frozen.keys() & held(third, 1).keys()
    assert_equal(frozen, {name: model_of(third)[name] for name in frozen})


def test_what_was_trained_before_is_saved(weights: Path, tmp_path: Path) -> None:
    start, run = f"model.pretrained={weights / 'run'}", tmp_path / "run"
    flags = (*BASE, start, "precision.params=bf16", "precision.compute=bf16")
    train(
        small_job(tmp_path, *flags, "optimizer.frozen=['^emb']", "duration=4 steps"), directory=run
    )
    more = (*flags, "optimizer.frozen=['^emb', '^layers']", OUT, "duration=6 steps",
            "checkpoint.last=weights", "checkpoint.last_dtype=fp16")  # fmt: skip
    job = small_job(tmp_path, *more)
    notes = dict(rehearse(job, run, accept=["optimizer.frozen"]))
    assert notes["state"] == "would resume at step 4"
    before = model_of(run)
    train(job, directory=run, accept=["optimizer.frozen"])
    assert held(run, 6).keys() == before.keys() - {"embedding.weight"}
    after = model_of(run)
    for name, tensor in before.items():
        if name.startswith(("layers", "emb")):  # rounded twice: fp32 to bf16 to fp16
            assert torch.equal(after[name], tensor.half()), name


def test_weights_that_are_gone_or_changed_are_named(weights: Path, tmp_path: Path) -> None:
    base = shutil.copytree(weights / "hf", tmp_path / "base")
    run, flags = tmp_path / "run", (*BASE, f"model.pretrained={base}", FROZEN, OUT)
    train(small_job(tmp_path, *flags, "duration=2 steps"), directory=run)
    longer = small_job(tmp_path, *flags, "duration=4 steps")
    file = base / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with refused():
        train(longer, directory=run)
    base.rename(tmp_path / "away")
    for use in (lambda: rehearse(longer, run), lambda: load_pretrained(run)):
        with refused():
            use()
    content[-1] ^= 1
    (tmp_path / "away" / "model.safetensors").write_bytes(content)
    base.symlink_to(tmp_path / "away")
    assert train(longer, directory=run).started.step == 2


QLORA = "adapter={type: qlora, rank: 2, b_std: 0.5, quantize: {type: nf4, group_size: 8}}"


@pytest.mark.parametrize(
    ("base", "adapter"),
    [("run", "adapter={type: dora, rank: 2, b_std: 0.5, train: [norm]}"), ("hf", QLORA)],
    ids=["dora", "qlora"],
)
def test_what_an_adapter_freezes_is_left_out(
    weights: Path, tmp_path: Path, base: str, adapter: str
) -> None:
    flags = (*BASE, adapter, f"model.pretrained={weights / base}")
    whole = train(
        small_job(tmp_path, *flags, "duration=4 steps"), directory=tmp_path / "whole"
    ).directory
    run = tmp_path / "run"
    for duration in ("duration=2 steps", "duration=4 steps"):
        train(small_job(tmp_path, *flags, OUT, duration), directory=run)
    expected = held(whole, 4)
    names = {
        name for name in expected if ".adapter." in name or ("dora" in adapter and "norm" in name)
    }
    assert set(held(run, 4)) == names
    found = {**held(run, 4), **frozen_of(run / "checkpoints/step-00000004", add_adapter)}
    for name, each in expected.items():
        assert torch.equal(as_placed(found[name], torch.empty(0)), each), name
    assert torch.equal(logits_of(run), logits_of(whole))


def logits_of(run: Path) -> Tensor:
    flags = [f"weights.path={run}", "generation.prompts=[a]"]
    job = complete(compose(Inference, flags=flags).resolve())
    with torch.no_grad():
        return load_model(job).model(torch.arange(9)[None])


def test_other_divisions_go_on() -> None:
    assert forked("tests.parallel.frozen_ranks", "shard").splitlines() == ["shard: equal"]


@pytest.mark.slow
def test_a_model_of_transformers(tmp_path: Path) -> None:
    theirs(tmp_path / "theirs", {})
    place = tmp_path / "theirs"
    flags = ("model=huggingface", f"model.config={place}", f"model.pretrained={place}",
             "optimizer.frozen=['wte', 'attn']", "schedule.horizon=4 steps")  # fmt: skip
    plain = ("type", "dim", "layers", "heads", "dropout")
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(small_job(tmp_path, *flags, "duration=4 steps", without=plain), directory=whole)
    for duration in ("duration=2 steps", "duration=4 steps"):
        train(small_job(tmp_path, *flags, OUT, duration, without=plain), directory=run)
    assert_equal(model_of(whole), model_of(run))
    assert "model.lm_head.weight" in model_of(run).keys() - held(run, 4).keys()
    newest = run / "checkpoints" / "step-00000004"
    convert(newest, tmp_path / "copy", None, frozen_of(newest, add_adapter))
    copied = load_directory(tmp_path / "copy").tensors["model"]
    assert copied.keys() >= model_of(whole).keys() - {"model.lm_head.weight"}


def test_an_adapter_of_a_model_of_transformers_is_used_without_its_base(tmp_path: Path) -> None:
    """From weights of transformers, and from a run that started there."""
    place = tmp_path / "theirs"
    theirs(place, {})
    plain = ("type", "dim", "layers", "heads", "dropout")
    flags = ("model=huggingface", f"model.config={place}", "duration=1 steps")
    run = tmp_path / "run"
    train(small_job(tmp_path, *flags, f"model.pretrained={place}", without=plain), directory=run)
    adapter = (*flags, "adapter={type: lora, rank: 2, b_std: 0.5}")
    for base in (place, run):
        folders = tmp_path / f"whole-{base.name}", tmp_path / f"out-{base.name}"
        for folder, out in zip(folders, ((), (OUT,)), strict=True):
            job = small_job(tmp_path, *adapter, f"model.pretrained={base}", *out, without=plain)
            train(job, directory=folder)
        assert torch.equal(*map(logits_of, folders))
        assert all(".adapter." in name for name in held(folders[1], 1))


def test_a_model_of_transformers_without_an_adapter_is_filled_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, folders = tmp_path / "theirs", (tmp_path / "whole", tmp_path / "out")
    theirs(place, {})
    plain = ("type", "dim", "layers", "heads", "dropout")
    flags = ("model=huggingface", f"model.config={place}", f"model.pretrained={place}",
             "optimizer.frozen=['wte']", "duration=1 steps")  # fmt: skip
    for folder, out in zip(folders, ((), (OUT,)), strict=True):
        train(small_job(tmp_path, *flags, *out, without=plain), directory=folder)
    assert held(folders[1], 1).keys() < held(folders[0], 1).keys()
    built: list[object] = []
    build = loading.build_model
    monkeypatch.setattr(loading, "build_model", lambda *args: built.append(args) or build(*args))
    assert torch.equal(*map(logits_of, folders))
    assert len(built) == 2, "one model of each folder"


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("quantized",)])
def test_every_division_goes_on(words: tuple[str, ...]) -> None:
    lines = forked("tests.parallel.frozen_ranks", *words).splitlines()
    assert lines == [f"{axis}: equal" for axis in ("shard", "tensor", "pipeline", "replicate")]
