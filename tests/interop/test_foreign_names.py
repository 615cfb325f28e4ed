"""Names of fields in other systems: the error has the name in Setpoint."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.config.schema.class_info import all_fields
from setpoint.infer.config import Inference
from setpoint.interop.foreign_names import OTHER_NAMES
from setpoint.plan.preflight import preflight
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job

from ..support.cases import few
from ..support.snapshots import refused

# Names that two fields answer to, since the systems that use them mean one or the other.
AMBIGUOUS = {"batch_size"}


def called() -> dict[str, tuple[str, ...]]:
    """The fields that each foreign name of one word leads to."""
    paths = {path for path, _ in all_fields(Job)}
    entries = {name: entry.fields for name, entry in OTHER_NAMES.items() if "." not in name}
    return {name: fields for name, fields in entries.items() if paths.issuperset(fields) and fields}


def hint(*flags: str, path: str | None = None) -> str:
    """The hint for the first flag."""
    path = path or flags[0].partition("=")[0].lstrip("-")
    return hints(*flags)[path]


def hints(*flags: str) -> dict[str, str]:
    """The hint for each flag that is refused, by its path; of several problems the first."""
    with pytest.raises(ConfigError) as caught:
        compose(Job, tiny(), flags=flags).resolve()
    return {each.path: each.hint for each in reversed(caught.value.problems)}


def answered(*flags: str) -> None:
    with refused(ConfigError):
        compose(Job, tiny(), flags=flags).resolve()


def test_what_is_to_be_written_in_a_json_file_is_json(tmp_path: Path) -> None:
    text, file = tmp_path / "a.txt", tmp_path / "a.json"
    text.write_text("a")
    file.write_text(json.dumps({"data": {"sources": {"paths": str(text)}}}))
    with pytest.raises(ConfigError) as caught:
        compose(Job, tiny(), files=[file]).resolve()
    written = caught.value.problems[0].hint.partition(", a list of sources: ")[2]
    sources = [{"type": "text", "paths": [str(text)]}]
    assert json.loads(f"{{{written}}}") == {"data": {"sources": sources}}


def test_a_section_of_another_system_is_not_converted() -> None:
    with refused(ConfigError):
        compose(Job, tiny(), program={"optim": {"lr": 3}}).resolve()


@pytest.mark.parametrize("part", few(range(9), [0]))
def test_foreign_names_are_answered_with_ours(part: int) -> None:
    """A ninth of all names at once, by themselves and in another system's section."""
    names = dict(list(called().items())[part::9])
    said = hints(*(f"--{path}=1" for name in names for path in (name, f"other.{name}")))
    for name, paths in names.items():
        begins = "" if OTHER_NAMES[name].answer else f"Setpoint calls it {' or '.join(paths)}"
        for path in (name, f"other.{name}"):
            assert said[path] and said[path].startswith(begins), path


AT_0 = "--schedule.floor 0"
SAID = {
    "--min_lr=6e-5 --optimizer.lr=6e-4": "--schedule.floor 0.1",
    "--min_lr=6e-5 --learning_rate=6e-4": "--schedule.floor 0.1",
    "--epochs=3": '--duration "3 epochs"',
    "--max_time=00:01:30:00": '--duration "90 min"',
    "--train_tokens=1e9": '--duration "1000000000 tokens"',
    "--warmup_ratio=0.1": '--schedule.warmup "10 %"',
    "--optimizer.warmup_steps=5": '--schedule.warmup "5 steps"',
    "--optimizer.name=AdamW": "--optimizer adamw",
    "--trainer.precision=bf16-mixed": "--precision.compute bf16",
    "--fp16=true": "--precision.compute fp16",
    "--fp16=false": "--precision.compute fp32",
    "--fp8=true": "--precision.float8 '{}'",
    "--amp=true": "--precision.compute bf16",
    "--torch_compile=true": "--compile '{}'",
    "--gradient_accumulation_steps=4": "--batch.accumulation 4 --batch.global_size 32",
    "--grad_accum=3 --per_device_train_batch_size=2": "--batch.accumulation 3 "
    "--batch.global_size 6",
    "--per_device_train_batch_size=2": "--batch.micro_size 2",
    "--per_device_train_batch_size=3": "--batch.micro_size 3 --batch.global_size 9",
    "--batch_size=8": "--batch.global_size 8 or --batch.micro_size 8",
    "--block_size=128": "--batch.sequence_length 128",
    "--beta1=0.8": "--optimizer.betas '[0.8, 0.95]'",
    "--adam_beta2=0.99 --adam_beta1=0.8": "--optimizer.betas '[0.8, 0.99]'",
    "--optim=adamw_torch_fused": "--optimizer adamw",
    "--lr_scheduler_type=constant_with_warmup": "--schedule constant",
    "--lr_scheduler_type=linear": f"--schedule linear {AT_0}",
    "--lr_scheduler_type=polynomial": f"--schedule polynomial {AT_0} --schedule.power 1",
    "--gradient_checkpointing=true": "--memory.activation_checkpointing full",
    "--eval_steps=50": '--evaluation.every "50 steps"',
    "--eval_steps=0.1": '--evaluation.every "60 steps"',
    "--val_check_interval=0.25": '--evaluation.every "0.25 epochs"',
    "--eval_strategy=no": "--evaluation null",
    "--save_strategy=epoch": '--checkpoint.every "1 epoch"',
    "--eval_iters=20": "--evaluation.sequences 160",
    "--report_to=none": "--tracking.trackers '[]'",
    "--report_to=wandb": "--tracking.trackers '[jsonl, wandb]'",
    "--tokenizer_name=o/gpt2": "--tokenizer huggingface --tokenizer.path o/gpt2",
    "--val_file=b.txt": "--data.validation '[{type: text, paths: [b.txt]}]'",
    "--val_set_size=2": "--data.held_out 2",
    "--auto_resume=false": "--checkpoint.resume never",
    "--resume=latest": "--checkpoint.resume auto",
    "--lr_scheduler.decay_ratio=0.8": '--schedule wsd --schedule.decay_length "80 %"',
}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with texts of the names that flags mention."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("a line of text\n" * 99)


def checked(*flags: str) -> Job:
    """A job in which `setpoint check` finds no problem."""
    job = compose(Job, tiny(), flags=flags).resolve()
    assert not preflight(job, {"files"}).problems, flags
    return job


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("flags", SAID)
def test_the_value_of_another_system_is_converted(flags: str) -> None:
    words = flags.split()
    assert hint(*words).partition(": ")[2] == SAID[flags]
    # What is to be typed passes `setpoint check`, in place of what was.
    for option in SAID[flags].split(" or "):
        typed = shlex.split(option)
        if "fp16=true" in flags or "float16" in flags or "fp8" in flags:
            typed += ["--parallel.device=cuda"]
        if flags.startswith("--grad_accum=3"):
            typed += ["--batch.micro_size=2"]
        checked(*[w for w in words[1:] if "optimizer." in w], *typed)


@pytest.mark.parametrize(
    ("flag", "typed"),
    [
        ("--disable_loss_parallel=true", "--parallel.loss_parallel false"),
        ("--checkpoint.load_only=true", "--checkpoint.save false"),
        ("--save_only_trainable=true", "--checkpoint.save_frozen false"),
        ("--process_group_timeout_ms=10000", "--parallel.torchft.timeout 10"),
        ("--activation_gpu_limit=8", '--memory.activation_offload.limit "8 GB"'),
        ("--save_epochs=0.5", '--checkpoint.also_every "0.5 epochs"'),
        ("--profile_end_step=8", ""),  # the number of steps depends on the first
        ("--optimizer.muon_momentum=0.9", "--optimizer muon --optimizer.momentum 0.9"),
        ("--poly_power=1", "--schedule polynomial --schedule.power 1"),
        ("--model.mixer.momentum=0.9", ""),  # of sgd or of muon
    ],
)
def test_senses_and_units_are_converted(flag: str, typed: str) -> None:
    assert hint(flag).partition(": ")[2] == typed


def test_what_any_name_is_answered_with_passes_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "2").write_text("a line of text\n" * 99)
    answers: dict[str, str] = {}
    names = [name for name, entry in OTHER_NAMES.items() if callable(entry.answer)]
    for name in names[::3]:
        for value in ("2", "0.0005", "true"):
            typed = hint(f"--{name}={value}").partition(": ")[2].partition(" or ")[0]
            if typed.startswith("--"):
                answers.setdefault(typed, name)
                break
    assert len(answers) > 8
    # There is no such tokenizer, no layer with several projections, and no frozen parameter.
    for typed in [a for a in answers if any(word in a for word in ("path 2", "fused", "frozen"))]:
        del answers[typed]
    for typed in answers:
        checked(*shlex.split(typed), *(["--parallel.device=cuda"] if "fp16" in typed else []))


# Values that a place cannot take, with the path that is reported and what is to be typed.
TYPED = {
    "--data=a.txt": ("data", "--data.sources '[{type: text, paths: [a.txt]}]'"),
    "--data=stdlib": ("data", "--data.sources stdlib"),
    "--data=llama3-tiny": ("data", "--data @llama3-tiny"),
    "--data.sources=a.txt": ("data.sources.0", "--data.sources '[{type: text, paths: [a.txt]}]'"),
    "--data.sources=[a.txt, b.txt]": (
        "data.sources.1", "--data.sources '[{type: text, paths: [a.txt, b.txt]}]'"),
    "--data.sources.paths=a.txt": (
        "data.sources.paths", "--data.sources '[{type: text, paths: [a.txt]}]'"),
    "--data.sources.0.alphabet=9": (
        "data.sources.0.alphabet", "--data.sources.0 random --data.sources.0.alphabet 9"),
    "--data.validation=b.txt": (
        "data.validation.0", "--data.validation '[{type: text, paths: [b.txt]}]'"),
    "--precision=bf16-mixed": ("precision", "--precision.compute bf16"),
    "--precision=bf16-true": ("precision", "--precision.params bf16 --precision.compute bf16"),
    "--model=llama3-tiny": ("model.type", "--model @llama3-tiny"),
    "--optimizer=gpt2": ("optimizer.type", "--optimizer @gpt2"),
    "--tokenizer=gpt2": (
        "tokenizer.type", "--tokenizer huggingface --tokenizer.path openai-community/gpt2"),
    "--model.norm.bias=false": (
        "model.norm.bias", "--model.norm layer_norm --model.norm.bias false"),
}  # fmt: skip


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("flag", TYPED)
def test_a_value_meant_for_another_place(flag: str) -> None:
    path, typed = TYPED[flag]
    assert hint(flag, path=path).partition(": ")[2] == typed
    checked(*shlex.split(typed))


def test_a_likely_name_does_not_win_over_what_is_meant(tmp_path: Path) -> None:
    answered("--datasets=a", "--dataset.packed=true", "--checkpoint.folder=a", "--stage=sft",
             "--per_device_eval_batch_size=2", "--tensorboard.enabled=true",
             "--base_model=a/b")  # fmt: skip
    file = tmp_path / "job.json"
    file.write_text('{"checkpointer": {"files": []}, "setpiont": 1}')
    problems = compose(Job, tiny(), files=[file]).problems
    assert [problem.hint for problem in problems] == ["", "Did you mean setpoint?"]


@pytest.mark.parametrize("flag", [
    "--optimizer=adamw_torch", "--optimizer=adamw,sgd", "--optimizer=adamw_bnb_8bit",
    "--optimizer=mine", "--optimizer=adamX", "--model=@mine", "--tokenizer=bpe",
    "--tracking.trackers=neptune", "--r=4", "--low_freq_factor=1", "--compile=true",
    "--evaluation=false", "--model.rope_scaling=false", "--model.mup=true",
    "--init_from=scratch",
])  # fmt: skip
def test_hints_of_single_values(flag: str) -> None:
    answered(flag)


def test_weights_of_another_system(tmp_path: Path) -> None:
    answered("--model_name_or_path=gpt2", f"--model_path={tmp_path}")
    checked("--model", "@gpt2")
    (problem,) = compose(Inference, flags=["--model_path=a/b"]).problems
    assert problem.hint == "Setpoint calls it weights.path: --weights.path a/b"


def test_the_name_of_an_unknown_preset() -> None:
    with refused():
        compose(Job, "mine")


def test_names_without_a_counterpart_are_explained() -> None:
    answered(
        "--wandb.name=x", "--report_to=neptune", "--drop_last=true", "--lora.r=8",
        "--quantization=int8", "--resume_from_checkpoint=runs/a", "--optim=adamw_8bit", "--gpus=8",
        "--deepspeed.zero_optimization.stage=2", "--zero_stage=3", "--stack=graph",
        "--pipeline_parallel_size=2", "--rampup_batch_size=16", "--fp16=false", "--bf16=true",
    )  # fmt: skip


def test_a_file_and_a_variable_are_answered_as_they_are_written(tmp_path: Path) -> None:
    toml, json = tmp_path / "job.toml", tmp_path / "job.json"
    toml.write_text(
        'max_iters = 500\ndata = "a.txt"\n[training]\nmin_lr = 3e-4\n[model]\nn_embd = 64\n'
        '[trainer]\nprecision = "bf16-mixed"\n[lora]\nr = 8\n'
    )
    json.write_text('{"num_train_epochs": 2, "compile": true, "model": {"n_head": 4}}')
    layers: list[dict[str, Any]] = [
        {"files": [toml]},
        {"files": [json]},
        {"environ": {"SETPOINT__LEARNING_RATE": "1e-3"}},
    ]
    for layer in layers:
        with refused(ConfigError):
            compose(Job, tiny(), **layer).resolve()


# What is suggested for names that no system has exactly so; the empty text where none is close.
MEANT = {
    "lerning_rate": "optimizer.lr", "optimiser.lr": "optimizer.lr", "optim.lr": "optimizer.lr",
    "lr": "optimizer.lr", "optimizer.clip": "optimizer.clip_norm", "eps": "optimizer.eps",
    "model.num_layer": "model.layers", "tokenizer.vocab_size": "model.vocab_size",
    "batch.size": "batch.global_size", "data.source": "data.sources", "sed": "seed",
    "early_stopping": "evaluation.early_stopping", "experiment_dir": "experiment",
    "scheduler.type": "schedule", "temperature": "data.mixture.temperature", "model.hidden": "",
    "training.foo": "", "output": "", "hooks": "", "random_state": "", "parallel.q": "", "foo": "",
}  # fmt: skip


def test_a_guess_is_near_or_there_is_none() -> None:
    said = hints(*(f"--{name}=1" for name in MEANT))
    assert said == {
        name: f"Did you mean {field}?" if field else "" for name, field in MEANT.items()
    }


def test_a_name_leads_to_one_field() -> None:
    assert {name for name, paths in called().items() if len(paths) > 1} == AMBIGUOUS


def test_no_foreign_name_is_one_of_ours() -> None:
    ours = {path.rpartition(".")[2] for path, _ in all_fields(Job)}
    assert not ours & called().keys()


def test_foreign_names_in_words() -> None:
    answered(
        "--per_device_train_batch_size=4", "--gradient-accumulation-steps=2",
        "--learning_rate=1e-3", "--batch_size=8", "--training.seq_len=64",
        "--num_train_epochs=3",
    )  # fmt: skip
