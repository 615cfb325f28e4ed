"""Files of `TrainingArguments` mean what transformers makes of them."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import setpoint as sp
from setpoint.cli.main import main
from setpoint.interop.dialect import ConvertedDocument, read_foreign, recognize
from setpoint.interop.huggingface_sft import SPLITS
from setpoint.interop.huggingface_trainer import KEYS
from setpoint.model.build import parameter_kinds
from setpoint.optim.config import AdamWConfig
from setpoint.train.config import Job
from setpoint.train.run import train

from ..data.tokenizers_here import END, byte_level
from ..support.snapshots import compare_problems
from .converting import assert_rates, assert_values, job_of, kinds

BASE: dict[str, Any] = {
    "output_dir": "out", "model_name_or_path": "gpt2", "max_steps": 60, "learning_rate": 1e-3,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "warmup_steps": 10,
    "dataset_name": "text", "block_size": 64, "train_sampling_strategy": "sequential",
}  # fmt: skip


def read(folder: Path, **keys: Any) -> ConvertedDocument:
    """Convert the file above with other keys; one that is None is left out."""
    path = folder / "job.json"
    data = {key: value for key, value in {**BASE, **keys}.items() if value is not None}
    path.write_text(json.dumps(data))
    return read_foreign("huggingface_trainer", str(path))


def converted(folder: Path, ranks: int = 1, **keys: Any) -> Job:
    return job_of(read(folder, **keys), ranks)


def test_every_field_of_the_class_is_there_with_its_default() -> None:
    from transformers import TrainingArguments

    for field in dataclasses.fields(TrainingArguments):
        assert field.name in KEYS, field.name
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        given = getattr(default, "value", default)
        key = KEYS[field.name]
        # Any value that is off is the default of a key without a field.
        is_off = bool(key.idle or key.refused) and not (key.default or given)
        assert is_off or key.default == given or field.name == "report_to", field.name


@pytest.mark.parametrize("keys", [
    {}, {"lr_scheduler_type": "cosine"}, {"lr_scheduler_type": "constant_with_warmup"},
    {"lr_scheduler_type": "constant"}, {"lr_scheduler_type": "polynomial"},
    {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 3.0, "lr_end": 1e-5}},
    {"lr_scheduler_type": "inverse_sqrt"}, {"warmup_steps": 0.25}, {"warmup_steps": 0},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4}},
    {"lr_scheduler_type": "cosine_warmup_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"lr_scheduler_type": "cosine_warmup_with_min_lr", "warmup_steps": 1,
     "lr_scheduler_kwargs": {"min_lr_rate": 0.2}},
    {"lr_scheduler_type": "cosine_warmup_with_min_lr",
     "lr_scheduler_kwargs": {"min_lr_rate": 0.1, "warmup_lr_rate": 0.3}},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 5}},
    {"lr_scheduler_type": "cosine_with_restarts", "warmup_steps": 0,
     "lr_scheduler_kwargs": {"num_cycles": 2}},
    {"lr_scheduler_type": "warmup_stable_decay",
     "lr_scheduler_kwargs": {"num_decay_steps": 20, "decay_type": "linear"}},
    {"lr_scheduler_type": "warmup_stable_decay",
     "lr_scheduler_kwargs": {"num_decay_steps": 20, "decay_type": "1-sqrt"}},
    {"lr_scheduler_type": "warmup_stable_decay",
     "lr_scheduler_kwargs": {"num_decay_steps": 20, "num_stable_steps": 5, "min_lr_ratio": 0.1}},
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Both num_training_steps")
def test_rates_are_those_of_the_scheduler_of_transformers(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    from transformers import TrainingArguments, get_scheduler

    job = converted(tmp_path, **keys)
    given = {**BASE, **keys}
    plain = {key: given[key] for key in ("max_steps", "warmup_steps")}
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **plain)
    warmup = arguments.get_warmup_steps(60)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler = get_scheduler(
        given.get("lr_scheduler_type", "linear"), optimizer, warmup, 60,
        scheduler_specific_kwargs=given.get("lr_scheduler_kwargs"),
    )  # fmt: skip
    expected: list[float] = []
    for _ in range(60):
        expected.append(float(scheduler.get_last_lr()[0]) / 1e-3)
        optimizer.step()
        scheduler.step()
    assert_rates(job, lambda step: expected[step], 1e-9)


def test_a_share_of_epochs_is_not_rounded_up(tmp_path: Path) -> None:
    keys = {"max_steps": None, "num_train_epochs": 2, "warmup_steps": None, "warmup_ratio": 0.1}
    document = read(tmp_path, **keys)
    assert document.data["schedule"]["warmup"] == "10 %"
    assert kinds(document)["warmup_ratio"] == "differs"
    for more in ({"lr_scheduler_type": "constant"}, {"max_steps": 32}):
        assert "warmup_ratio" not in kinds(read(tmp_path, **keys | more))


def test_batch_is_per_device_times_accumulation_times_ranks(tmp_path: Path) -> None:
    job = converted(tmp_path, ranks=4, fsdp="full_shard auto_wrap", optim="adamw_torch")
    assert (job.batch.global_size, job.batch.micro_size) == (4 * 3 * 4, 4)
    assert (job.parallel.shard, type(job.optimizer)) == (-1, AdamWConfig)
    job = converted(tmp_path, ranks=4, deepspeed={"zero_optimization": {"stage": 2}})
    assert (type(job.parallel.engine).__name__, job.batch.accumulation) == ("DeepSpeed", 3)
    half = {"bf16": True, "dtype": "bfloat16"}  # weights that both copy to fp32
    for shards in ({"fsdp": "full_shard"}, {"deepspeed": {"zero_optimization": {"stage": 3}}}):
        precision = converted(tmp_path, ranks=4, **half, **shards).precision
        assert (precision.params, precision.compute) == ("fp32", "bf16")
    assert converted(tmp_path, **half).precision.params == "bf16"


def test_the_best_by_accuracy_is_evaluated(tmp_path: Path) -> None:
    keys = {"eval_strategy": "steps", "eval_steps": 5, "metric_for_best_model": "accuracy"}
    job = converted(tmp_path, **keys, load_best_model_at_end=True)
    assert job.evaluation is not None and job.evaluation.accuracy
    assert job.evaluation.best.metric == "accuracy"


def test_decayed_weights_are_those_of_the_trainer(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    optimizer = converted(tmp_path, weight_decay=0.1).optimizer
    for kind, sizes in (("llama", {"intermediate_size": 48}), ("gpt2", {}), ("qwen2", {})):
        config = AutoConfig.for_model(
            kind, hidden_size=32, vocab_size=64, num_hidden_layers=2, num_attention_heads=2, **sizes
        )
        model = AutoModelForCausalLM.from_config(config)
        trainer = Trainer(model, TrainingArguments(output_dir=str(tmp_path), use_cpu=True))
        kinds = parameter_kinds(model)
        decayed = {name for name, part in kinds.items() if part not in optimizer.no_decay}
        trained = dict(model.named_parameters())  # without the names of tied weights
        assert decayed == trained.keys() & trainer.get_decay_parameter_names(model), kind


def test_evaluation_saves_and_the_rest(tmp_path: Path) -> None:
    job = converted(
        tmp_path, eval_strategy="steps", eval_steps=0.1, save_steps=20, save_total_limit=3,
        logging_steps=5, bf16=True, gradient_checkpointing=True, label_smoothing_factor=0.1,
        report_to=["tensorboard", "wandb"], run_name="a run", max_grad_norm=0.0, seed=7,
        group_by_length=None,
    )  # fmt: skip
    assert job.evaluation is not None and str(job.evaluation.every) == "6 steps"
    assert (str(job.checkpoint.every), job.checkpoint.keep) == ("20 steps", 3)
    assert (job.precision.compute, job.optimizer.clip_norm, job.seed) == ("bf16", None, 7)
    trackers = [type(tracker).__name__ for tracker in job.tracking.trackers]
    assert trackers == ["Jsonl", "TensorBoard", "Wandb"]
    assert not job.data.shuffle
    reported = kinds(read(
        tmp_path, sharded_ddp="simple", greater_is_better=True, eval_strategy="epoch",
        lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 3},
        push_to_hub=True,
    ))  # fmt: skip
    for key in ("sharded_ddp", "greater_is_better", "push_to_hub"):
        assert reported[key] == "refused"
    assert reported["lr_scheduler_kwargs"] == "needs a decision"  # 50 steps in three cycles
    job = converted(tmp_path, dataset_name=None, eval_strategy="epoch")  # of data in Python
    assert job.data.held_out and job.evaluation is not None


def test_the_model_of_the_folder_and_what_needs_a_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    document = read(tmp_path, model_name_or_path=None, dataset_name=None, learning_rte=1.0)
    assert document.data["model"] == {"type": "huggingface", "config": str(tmp_path)}
    compare_problems(document.problems)
    assert kinds(document)["dataset_name"] == "needs a decision"
    assert recognize(str(tmp_path / "job.json")) is None
    read(tmp_path)
    assert recognize(str(tmp_path / "job.json")) == "huggingface_trainer"
    read(tmp_path, optim="adafactor")
    assert main(["convert", str(tmp_path / "job.json"), "--strict"]) != 0
    assert "optim: differs" in capsys.readouterr().err
    keys = {"model_name_or_path": "gpt2", "max_length": 64, "packing": True, "dtype": "float32",
            "packing_strategy": "ffd", "block_size": None}  # fmt: skip
    read(tmp_path, **keys, per_device_eval_batch_size=2)
    assert main(["convert", str(tmp_path / "job.json"), "--strict"]) == 0
    assert "per_device_eval_batch_size: without effect" in capsys.readouterr().err
    assert main(["fingerprint", str(tmp_path / "job.json"), "--strict"]) == 0


def test_models_without_an_organization_are_found_on_the_hub(tmp_path: Path) -> None:
    job = converted(tmp_path, model_revision="v1")
    assert job.model.pretrained == "openai-community/gpt2@v1"
    assert vars(job.tokenizer)["path"] == "openai-community/gpt2@v1"


def test_groups_by_length_have_no_effect_on_rows_of_one_length(tmp_path: Path) -> None:
    assert not converted(tmp_path, group_by_length=True).data.packing.length_buckets
    document = read(tmp_path, group_by_length=True)
    assert kinds(document)["group_by_length"] == "without effect"


def test_a_file_that_transformers_wrote_has_no_report(tmp_path: Path) -> None:
    """Its arguments as JSON hold every key, secrets as `<HUB_TOKEN>`, and null former names."""
    from transformers import TrainingArguments

    arguments = TrainingArguments(output_dir="out", use_cpu=True, report_to="none")
    written = json.loads(arguments.to_json_string())
    former = {"per_gpu_train_batch_size": None, "_n_gpu": 0, "mp_parameters": "", "tpu_num_cores":
              None, "hub_token": "<HUB_TOKEN>", "hub_private_repo": False}  # fmt: skip
    path = tmp_path / "args.json"
    data = {"model_name_or_path": "gpt2", "dataset_name": "wikitext", "block_size": 64,
            "dtype": "float32"}  # fmt: skip
    path.write_text(json.dumps(written | former | data))
    document = read_foreign("huggingface_trainer", str(path))
    assert document.problems == []
    reported = {report.key for report in document.reports if report.kind != "without effect"}
    assert reported == {"dataset_name"}  # the rows of run_clm
    assert recognize(str(path)) == "huggingface_trainer"


ULTRACHAT: dict[str, Any] = {"id": "a/chat", "config": "default", "split": "train_sft"}
SFT: list[tuple[dict[str, Any], dict[str, object]]] = [
    ({"max_seq_length": 96}, {
        "batch.sequence_length": 96, "data.packing.method": "none", "optimizer.lr": 1e-3,
        "memory.activation_checkpointing.type": "full", "precision.compute": "bf16",
        "data.sources.0.loss_on": "completion", "data.sources.0.filter.longest": 96,
        "data.sources.0.paths.0": "hf://datasets/text@~parquet/default/train/*.parquet"}),
    ({"packing": True, "assistant_only_loss": True, "fp16": True}, {
        "batch.sequence_length": 1024, "data.packing.method": "first_fit_decreasing",
        "data.sources.0.loss_on": "answers", "precision.compute": "fp16"}),
    ({"use_flash_attention_2": True, "dataset_mixer": {"/data/rows": 1.0},
      "neftune_noise_alpha": 5}, {"model.embedding_noise": 5,
        "model.attention_backend": "flash_attention_2", "data.sources.0.paths.0": "/data/rows"}),
    ({"packing": False, "completion_only_loss": False, "dataset_text_field": "body"}, {
        "data.sources.0.loss_on": "all", "data.sources.0.columns.text": "body"}),
    ({"packing": True, "packing_strategy": "wrapped", "dataset_text_field": "body"}, {
        "data.packing.method": "concatenate", "data.sources.0.field": "body"}),
    ({"packing": True, "packing_strategy": "wrapped", "dataset_text_field": "body",
      "streaming": True, "eval_strategy": "steps"}, {
        "data.sources.0.streaming": True, "data.shuffle": False,
        "data.validation.0.field": "body"}),
    ({"packing": True, "streaming": True}, {
        "data.sources.0.type": "conversations", "data.shuffle": False}),
    ({"use_peft": True, "lora_r": 4, "load_in_4bit": True, "lora_target_modules": ["q_proj"],
      "torch_dtype": "bfloat16"}, {
        "adapter.type": "qlora", "adapter.rank": 4, "adapter.alpha": 32.0,
        "adapter.targets.0": r"(^|\.)(q_proj)$", "precision.params": "bf16"}),
    ({"dataset_mixer": {"a/b": 0.5, "c/d": 1}, "dataset_splits": ["train_sft", "test_sft"],
      "evaluation_strategy": "epoch"}, {
        "data.sources.0.filter.shards": 2, "data.sources.1.name": "source-1",
        "data.validation.1.paths.0": "hf://datasets/c/d@~parquet/default/test_sft/*.parquet"}),
    ({"packing": False, "dataset_configs": ["tiny"], "eval_strategy": False, "use_liger": True,
      "report_to": ["wandb"], "wandb_project": "p", "benchmarks": ["aime24"]}, {
        "data.sources.0.paths.0": "hf://datasets/text@~parquet/tiny/train/*.parquet",
        "evaluation": None, "loss.type": "chunked_cross_entropy",
        "tracking.trackers.1.project": "p"}),
    ({"dataset_mixture": {"datasets": [ULTRACHAT], "test_split_size": 1000},
      "eval_strategy": "epoch"}, {
        "data.held_out": 1000, "data.sources.0.paths.0":
        "hf://datasets/a/chat@~parquet/default/train_sft/*.parquet"}),
]  # fmt: skip
"""Files of TRL, the alignment handbook and open-r1, and fields of what they mean."""


@pytest.mark.parametrize(("keys", "fields"), SFT)
def test_files_of_trl_have_its_defaults(
    tmp_path: Path, keys: dict[str, Any], fields: dict[str, object]
) -> None:
    document = read(tmp_path, block_size=None, **keys)
    assert_values(document.data, fields)
    job_of(document, 2)


def test_recomputation_by_either_name(tmp_path: Path) -> None:
    new, old = "activation_checkpointing", "gradient_checkpointing"
    on: list[dict[str, Any]] = [{}, {new: True, old: False}]
    off: list[dict[str, Any]] = [{old: False}, {new: False}, {new: False, old: True}]
    for keys in (*on, *off):
        document = read(tmp_path, block_size=None, max_length=64, **keys)
        assert (new in document.data.get("memory", {})) is (keys in on), keys


def test_options_of_recomputation_by_either_name(tmp_path: Path) -> None:
    new, old = "activation_checkpointing", "gradient_checkpointing"
    options = {"use_reentrant": True, "every_n_layers": 2, "offload": True}
    for switch, kwargs in itertools.product((new, old), repeat=2):
        document = read(tmp_path, **{switch: True, f"{kwargs}_kwargs": options})
        assert document.data["memory"] == {
            "activation_checkpointing": {"type": "full", "reentrant": True, "every": 2},
            "activation_offload": {},
        }
    keys = {new: True, f"{old}_kwargs": {"determinism_check": "none"}}
    assert kinds(read(tmp_path, **keys))[f"{old}_kwargs"] == "not converted"
    keys = {new: False, f"{old}_kwargs": options}
    assert kinds(read(tmp_path, **keys))[f"{old}_kwargs"] == "without effect"


def test_no_noise_is_no_difference(tmp_path: Path) -> None:
    assert kinds(read(tmp_path, neftune_noise_alpha=5))["neftune_noise_alpha"] == "differs"
    assert "neftune_noise_alpha" not in kinds(read(tmp_path, neftune_noise_alpha=0))


def test_local_files_of_a_split(tmp_path: Path) -> None:
    names = ("train-0.jsonl", "more/train_1.parquet", "test.jsonl", "README.md")
    for name in names:
        (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rows" / name).touch()
    keys = {"dataset_name": str(tmp_path / "rows"), "packing": False, "eval_strategy": "epoch"}
    data = read(tmp_path, **keys).data["data"]
    places = [str(tmp_path / "rows" / name) for name in names]
    assert data["sources"][0]["paths"] == places[1::-1]
    assert data["validation"][0]["paths"] == places[2:3]
    document = read(tmp_path, **keys, dataset_test_split="validation")
    assert kinds(document)["dataset_name"] == "needs a decision"
    assert document.data["data"]["validation"][0]["paths"] == [f"{tmp_path / 'rows'}/validation*"]
    for name in names[:2]:
        (tmp_path / "rows" / name).unlink()
    (tmp_path / "rows/rest.jsonl").touch()
    for split, name in (("train", "rest.jsonl"), ("validation", "validation*")):
        document = read(tmp_path, **keys, dataset_train_split=split)
        assert document.data["data"]["sources"][0]["paths"] == [f"{tmp_path / 'rows'}/{name}"]
        assert kinds(document)["dataset_name"] == "needs a decision"


def test_words_of_splits_are_those_of_the_package_datasets(tmp_path: Path) -> None:
    from datasets.data_files import get_data_patterns

    folder = tmp_path / "rows"
    folder.mkdir()
    for words in SPLITS.values():
        for word in words.split("|"):
            (folder / f"{word}.jsonl").touch()
    patterns = get_data_patterns(str(folder))
    (folder / "rest.jsonl").touch()
    for split in SPLITS:
        data = read(tmp_path, dataset_name=str(folder), dataset_train_split=split).data["data"]
        expected = {f"{word}.jsonl" for word in SPLITS[split].split("|")}
        assert {Path(path).name for path in data["sources"][0]["paths"]} == expected
        matches = {Path(path).name for pattern in patterns[split] for path in folder.glob(pattern)}
        assert matches == expected


def test_losses_and_weights_are_those_of_the_trainer(tmp_path: Path) -> None:
    """A file of TRL, and Trainer on rows as TRL makes them."""
    import transformers

    folder = byte_level(tmp_path / "model", vocab_size=270)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, pad_token=END, bos_token=None)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    pairs = [(f"hello {n}", " world" * (1 + n % 4)) for n in range(20)]
    rows = [{"prompt": first, "completion": second} for first, second in pairs[:10]]
    rows += [{"prompt": first, "completion": second + END} for first, second in pairs[10:]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"), "max_steps": 8, "learning_rate": 0.02,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "warmup_steps": 2,
        "lr_scheduler_type": "cosine", "weight_decay": 0.1, "max_grad_norm": 0.5, "use_cpu": True,
        "train_sampling_strategy": "sequential", "label_smoothing_factor": 0.1, "bf16": False,
        "logging_steps": 1,
    }  # fmt: skip
    length = 26

    def encoded(first: str, second: str) -> dict[str, list[int]]:
        start, ids = (tokenizer(text)["input_ids"] for text in (first, first + second + END))
        labels = [-100] * len(start) + ids[len(start) :]
        return {"input_ids": ids[:length], "labels": labels[:length]}

    losses: list[float] = []

    class Recorded(transformers.Trainer):
        def training_step(self, *inputs: Any, **more: Any) -> torch.Tensor:
            losses.append(float(loss := super().training_step(*inputs, **more)))
            return loss

    trainer = Recorded(
        transformers.LlamaForCausalLM.from_pretrained(folder, dtype="float32"),
        transformers.TrainingArguments(**arguments, report_to="none", disable_tqdm=True),
        train_dataset=[encoded(*pair) for pair in pairs],
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, padding=True),
    )
    trainer.train()
    data = {
        "model_name_or_path": str(folder), "dataset_name": str(tmp_path / "rows.jsonl"),
        "max_length": length, "completion_only_loss": True, "gradient_checkpointing": False,
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(arguments | data))
    document = read_foreign("huggingface_trainer", str(tmp_path / "job.json"))
    run = sp.load_run(train(job_of(document)))
    expected = [sum(losses[n : n + 2]) for n in range(0, len(losses), 2)]
    ours = [row["loss"] for row in run.rows if row["kind"] == "train"]
    assert ours == pytest.approx(expected, abs=1e-5)
    sp.export(run, tmp_path / "trained")
    trained = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "trained")
    trained, weights = trained.state_dict(), trainer.model.state_dict()
    assert trained.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, rtol=0, atol=1e-5)


def test_what_trl_has_and_setpoint_has_not_is_reported(tmp_path: Path) -> None:
    compare_problems(read(tmp_path, beta=0.1, max_length=9).problems)
    more = {"eos_token": "<|im_end|>", "chat_template": "{{x}}", "dataset_mixer": {"a/b": 0.3}}
    document = read(tmp_path, packing=False, lora_r=4, dataset_name=None, **more)
    assert kinds(document)["lora_r"] == "without effect"
    for key in ("eos_token", "chat_template", "dataset_mixer"):
        assert kinds(document)[key] == "needs a decision"
    document = read(tmp_path, packing=True, packing_strategy="wrapped")
    assert kinds(document)["packing_strategy"] == "differs"  # rows overlap by a token
    assert kinds(read(tmp_path, packing=True, streaming=True))["streaming"] == "differs"


def test_the_dtype_of_the_weights_is_said(tmp_path: Path) -> None:
    def reported(**keys: object) -> bool:
        return "dtype" in kinds(read(tmp_path, **keys))

    assert reported() and not reported(dtype="float32") and reported(dtype="float16")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')
    assert reported(model_name_or_path=None)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert not reported(model_name_or_path=None)


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    job = converted(tmp_path, save_strategy="no", save_total_limit=3, save_only_model=True)
    assert not job.checkpoint.save
