"""Conflicts of number formats with the rest of a job, found before anything is built."""

from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import cautions_of, verify
from setpoint.data.config import Data, Prepare
from setpoint.data.prepare import prepare_all
from setpoint.data.sources.config import Random
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.model.attention.selection import BACKENDS
from setpoint.parallel.config import CUBLAS_VARIABLE
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.rules.model_rules import (
    float8_device_problems,
    idle_rounding,
    linear_layers,
    pattern_problems,
    workspace_problems,
)

from ...model.families import FAMILIES
from ...model.small import VOCAB, small_config
from ...support.snapshots import compare, refused
from ..small import small_job
from .refusals import refusal, refusals

SHORT = ("precision.params=bf16", "precision.compute=bf16")
FLOAT8 = ("precision.compute=bf16", "precision.float8={}")
GPU = "parallel.device=cuda"
EXPERTS = ("precision.float8.recipe=rowwise", "precision.float8.experts=true")


def paths(folder: Path, *flags: str) -> list[str]:
    try:
        small_job(folder, *flags)
    except ConfigError as error:
        return [problem.path for problem in error.problems]
    return []


def test_formats_that_are_refused(tmp_path: Path) -> None:
    cases = {
        "fp16 where the device is open": ("precision.compute=fp16",),
        "short weights in a long format": ("precision.params=bf16",),
        "a scale of nothing": ("precision.loss_scale.initial=2",),
        "a state that the optimizer cannot have": ("precision.optimizer_state=bf16",),
        "a state of nothing": (
            "optimizer=sgd", "optimizer.momentum=0", "precision.optimizer_state=fp32"),
        "a transfer that is not a slip": ("parallel.pipelining.transfer=fp16",),
        "a state of somebody's": (
            "optimizer={type=import, target=torch.optim.SGD}", "precision.optimizer_state=fp32"),
        "rounding of nothing": ("optimizer=anyprecision_adamw", "optimizer.rounding=nearest"),
        "float8 without a GPU": FLOAT8,
        "float8 of fp32": (GPU, "precision.float8={}"),
        "float8 of odd sizes": (
            *FLOAT8, GPU, "model.ffn_dim=40", "batch.sequence_length=11",
            r'precision.float8.skip=["nothing", "^output$", "["]'),
        "float8 of the output": (*FLOAT8, GPU, "precision.float8.skip=[]"),
        "float8 gathered by nobody": (*FLOAT8, GPU, "precision.float8.gather=true"),
        "float8 gathered of fewer ranks": (*FLOAT8, GPU, "parallel.world_size=4",
            "parallel.shard=4", "parallel.reshard=2", "precision.float8.gather=true"),
        "float8 of other scales gathered": (*FLOAT8, GPU, "parallel.world_size=2",
            "parallel.shard=2", "precision.float8.recipe=rowwise", "precision.float8.gather=true"),
        "nvfp4 emulated": (*FLOAT8, "precision.float8={recipe: nvfp4, emulate: true}"),
        "experts without grouped products": (
            *FLOAT8, GPU, "precision.float8.experts=true", "model.moe={experts: 4}"),
        "experts that are none": (*FLOAT8, GPU, *EXPERTS),
        "experts in a loop": (
            *FLOAT8, GPU, *EXPERTS, "model.moe={experts: 4, implementation: loop, expert_dim: 40}"),
        "experts that skip leaves out": (
            *FLOAT8, GPU, *EXPERTS, "model.moe={experts: 4}",
            r'precision.float8.skip=["^output$", "experts"]'),
        "experts of transformers": (
            *FLOAT8, GPU, *EXPERTS, "model={type: huggingface, config: gpt2}"),
        "only small layers": (*FLOAT8, GPU, "precision.float8.skip_small=true"),
    }  # fmt: skip
    compare("train/precision", refusals(tmp_path, cases))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_fp16_needs_a_gpu_that_is_asked_for(tmp_path: Path) -> None:
    for device in ("auto", "cpu"):
        flags = ("precision.compute=fp16", f"parallel.device={device}")
        assert paths(tmp_path, *flags) == ["precision.compute"]
    job = small_job(tmp_path, "precision.compute=fp16", GPU)
    with refused():
        build_components(job)


def test_what_has_no_effect(tmp_path: Path) -> None:
    any_precision = "optimizer=anyprecision_adamw"
    assert idle_rounding(small_job(tmp_path, any_precision)) is not None
    for flags in (SHORT, ("precision.optimizer_state=bf16",)):
        assert idle_rounding(small_job(tmp_path, any_precision, *flags)) is None
    ranks = ("parallel.world_size=2", "parallel.shard=2")
    whole = "parallel.sharding.accumulation=unsharded"
    assert paths(tmp_path, whole) == ["parallel.sharding.accumulation"]
    assert paths(tmp_path, *ranks, whole, "batch.accumulation=1") == [whole.partition("=")[0]]
    assert paths(tmp_path, *SHORT, *ranks, "precision.gather=fp32") == ["precision.gather"]
    # A dtype that null stands for may be named.
    for named in (
        ("precision.reduce=fp32",),
        (*SHORT, "precision.reduce=bf16"),
        ("precision.optimizer_state=fp32", "optimizer=lion"),
        (*ranks, "precision.gather=fp32"),
        (*ranks, *SHORT, "precision.gather=bf16"),
    ):
        assert paths(tmp_path, *named) == []
    # Gradients of fp32 weights are rounded even where there is nothing to add.
    assert paths(tmp_path, "precision.reduce=bf16", "batch.accumulation=1") == []


def test_float8_where_all_fits(tmp_path: Path) -> None:
    assert paths(tmp_path, *FLOAT8, GPU) == []
    assert paths(tmp_path, *FLOAT8, GPU, "model.moe={experts=4, packed=false}") == []
    assert paths(tmp_path, *FLOAT8, "precision.float8.emulate=true") == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_linear_layers_are_those_of_the_model(family: str) -> None:
    changes = FAMILIES[family]
    for packed in (True, False) if changes.get("moe") else (True,):
        config = small_config(**changes)
        if not packed:
            config = small_config(**{**changes, "moe": changes["moe"].evolve(packed=False)})
        model = config.build(vocab_size=VOCAB)
        found = {
            name: (part.out_features, part.in_features)
            for name, part in model.named_modules()
            if isinstance(part, torch.nn.Linear)
        }
        known = linear_layers(config)
        assert {n: size for n, size in known.items() if n != "output"} == {
            n: size for n, size in found.items() if n != "output"
        }
        assert ("output" in known) == ("output" in found)


def test_float8_asks_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job(tmp_path, *FLOAT8, GPU)
    assert list(float8_device_problems(job)) == []  # without a GPU that is what is told
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    pytest.importorskip("torchao")
    (problem,) = float8_device_problems(job)
    assert "compute capability 8.9 (Ada or Hopper) or higher, but this NVIDIA A100 has 8.0" in str(
        problem.message
    )
    assert any(p.path == "precision.float8" for p in verify(job, {"torch"}).problems)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert list(float8_device_problems(job)) == []


GPU_CASES = ("deterministic=true", "parallel.device=cuda")


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUBLAS_VARIABLE, ":0:0")
    kernel = refusal(tmp_path, *GPU_CASES, "model.attention_backend=sdpa_cudnn")
    monkeypatch.setenv(CUBLAS_VARIABLE, ":16:8")
    compiled = refusal(tmp_path, *GPU_CASES, "compile={mode: max-autotune}")
    compare("train/determinism", f"{kernel}\n\n{compiled}")


def test_backends_with_a_deterministic_backward_pass(tmp_path: Path) -> None:
    for name in set(BACKENDS) - {"sdpa_cudnn"}:
        model = f"model.attention_backend={name}", "model.head_dim=16"
        assert small_job(tmp_path, *GPU_CASES, *model, "precision.compute=bf16")


def test_a_workspace_matters_on_a_gpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUBLAS_VARIABLE, ":0:0")
    job = small_job(tmp_path, "deterministic=true")
    assert small_job(tmp_path, "parallel.device=cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert verify(job, {"torch"}).problems == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = [problem.message for problem in verify(job, {"torch"}).problems]
    assert any(f"{CUBLAS_VARIABLE} = :0:0" in text for text in found)
    assert len(list(workspace_problems(job))) == 1
    for value, count in ((":4096:8", 0), (":16:8", 0), (":4096:2:16:8", 1), ("", 1)):
        monkeypatch.setenv(CUBLAS_VARIABLE, value)
        assert len(list(workspace_problems(job))) == count
    monkeypatch.delenv(CUBLAS_VARIABLE)
    assert list(workspace_problems(job)) == []


ATTENTION = "{pattern=attention, lr_multiplier=2}"
OPTIONS = "{beta1=0.9, lr=1, betas=[1, 2], epz=1, implementation=loop}"
CASES = {
    "group_matches_nothing": ("optimizer.groups=[{pattern=embeding, lr_multiplier=0.1}]",),
    "groups_take_all": (f"optimizer.groups=[{ATTENTION}, {{pattern=query, lr_multiplier=3}}]",),
    "group_sets_nothing": ("optimizer.groups=[{pattern=attention}]",),
    "group_options": (f"optimizer.groups=[{{pattern=embedding, options={OPTIONS}}}]",),
    "no_decay_pattern_matches_nothing": ('optimizer.no_decay_patterns=["bias$"]',),
    "adamw_pattern_matches_no_matrix": ("optimizer=muon", "optimizer.adamw_patterns=[embedding]"),
    "two_ways_to_clip": ("optimizer.clip_norm=1", "optimizer.clip_value=0.5"),
    "pattern_is_none": ('optimizer.groups=[{pattern="a(", lr_multiplier=2}]',),
}


def test_patterns_that_are_refused(tmp_path: Path) -> None:
    compare("train/patterns", refusals(tmp_path, CASES))


def test_patterns_that_match(tmp_path: Path) -> None:
    flags = (
        "optimizer=muon",
        'optimizer.no_decay_patterns=["^embedding"]',
        'optimizer.adamw_patterns=["query"]',
        "optimizer.groups=[{pattern=norm, lr_multiplier=2}]",
        "model.moe.experts=2",
    )
    assert list(pattern_problems(small_job(tmp_path, *flags))) == []


TOKENIZER = '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<end>": 7}, "merges": []}}'


def job(*flags: str) -> Job:
    return compose(Job, flags=flags).resolve()


def test_too_few_rows() -> None:
    with refused(ConfigError):
        job("model.vocab_size=256")
    assert job("model.vocab_size=257").model


def test_too_few_rows_for_a_tokenizer_in_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    tokenizer = (f"tokenizer={{type=huggingface, path={tmp_path}}}", "tokenizer.separator=<end>")
    resolved = job(*tokenizer, "model.vocab_size=7")
    assert not [p for p in verify(resolved, ()).problems if p.path == "model.vocab_size"]
    (problem,) = verify(resolved, ("files",)).problems
    assert problem.path == "model.vocab_size"
    assert "7 rows are too few for the 8 tokens" in problem.message
    assert problem.valid == ("8", "null")


def test_a_vocabulary_that_is_hardly_used() -> None:
    unused = ["vocabulary-mostly-unused"]
    for flag, codes in (
        ("vocab_size=1028", []), ("vocab_size=1029", unused), ("vocab_multiple_of=1500", unused),
    ):  # fmt: skip
        assert [caution.code for caution in cautions_of(job(f"model.{flag}"))] == codes


def tokens_problems(folder: Path, *flags: str) -> list[str]:
    source = f"data.sources=[{{type=tokens, paths=[{folder}]}}]"
    found = verify(job(source, "model.vocab_size=null", *flags), ("files",)).problems
    return [f"{each.path}: {each.message}" for each in found]


def test_prepared_data_has_to_be_of_the_tokenizer_and_whole(tmp_path: Path) -> None:
    data = Data(sources=(Random(documents=90),), prepare=Prepare(folder=f"{tmp_path}/cache"))
    folder = Path(prepare_all(data, ByteTokenizer())[0].folder)
    assert not tokens_problems(folder)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    other = (f"tokenizer={{type=huggingface, path={tmp_path}}}", "tokenizer.separator=<end>")
    (said,) = tokens_problems(folder, *other)
    assert said.startswith("data.sources.0.paths: ") and "with the tokenizer bytes, but the" in said
    (said,) = tokens_problems(folder, "data.sources.0.separator=257")
    assert said == "data.sources.0.separator: is not a token of the tokenizer, which has 257"
    (said,) = tokens_problems(folder, "data.sources.0.token_dtype=uint16")
    assert "token_dtype: has no effect: the prepared data in" in said
    shard = folder / "train-00000.tokens.npy"
    shard.write_bytes(shard.read_bytes()[:-10])
    (said,) = tokens_problems(folder)
    assert "train-00000.tokens.npy is truncated" in said
    (folder / "manifest.json").write_text('{"kind": "setpoint prepared data"')
    assert "manifest.json is damaged" in tokens_problems(folder)[0]
