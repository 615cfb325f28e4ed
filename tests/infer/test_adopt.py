"""What the weights come with: taken over, overridden where it may be, refused where it may not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from setpoint.checkpoint.manifest import read_manifest
from setpoint.config import ConfigError, resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import recorded_fingerprint
from setpoint.config.values.node import chain_of
from setpoint.config.values.origin import RECORD
from setpoint.data.config import Bytes, Data, HuggingFace, TokenIds
from setpoint.data.sources.config import Random
from setpoint.files.atomic import digest_file
from setpoint.infer.adopt import adopt, complete
from setpoint.infer.config import EvaluationTask, Inference, InferenceWeights
from setpoint.infer.inference import infer
from setpoint.infer.tasks import DataSet, ExportTask
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.pretrained.save_pretrained import save_pretrained
from setpoint.train.config import Job
from setpoint.train.run import train

from ..data.tokenizers_here import byte_level
from ..support.snapshots import refused
from ..train.small import small_job
from .small import inference, small_model

RECORD_FILES = ("config.json", "origins.json")


def adopted(path: object, *flags: str) -> Inference:
    """A job with what its weights come with.

    Raises:
        ConfigError: they contradict it.
    """
    base = [f"weights.path={path}", "evaluation.sequences=3"]
    composition = compose(Inference, flags=[*base, *flags])
    composition.problems.extend(adopt(composition.draft))
    return composition.resolve()


def test_the_record_is_the_base(trained: tuple[Job, Path]) -> None:
    job, run = trained
    found = complete(inference(run, evaluation=EvaluationTask()))
    for name in ("model", "tokenizer", "data", "deterministic"):
        assert getattr(found, name) == getattr(job, name), name
    assert found.precision.compute == job.precision.compute
    assert found.batch.sequence_length == job.batch.sequence_length
    (*_, (origin, _)) = chain_of(found.model, "dim")
    assert origin.layer == RECORD
    assert "config.json:" in origin.describe(("model", "dim"))


def test_what_was_learned_cannot_be_changed(trained: tuple[Job, Path]) -> None:
    for flags in (
        ("model.dim=64", "model.rope_base=5", "model.heads=2"),
        ("tokenizer={type=huggingface, path=somebody/something}",),
        ("model={type=import, target=torch.nn.Identity}",),
    ):
        with refused(ConfigError):
            adopted(trained[1], *flags)


def test_other_fields_can_be_changed(trained: tuple[Job, Path]) -> None:
    run = str(trained[1])
    adopted(run, "model.attention_backend=eager", "precision.compute=bf16")
    job = Inference(weights=InferenceWeights(path=run), evaluation=EvaluationTask())
    job.data.held_out = 0.5
    job.model.attention_backend = "eager"  # pyright: ignore[reportAttributeAccessIssue]
    found = complete(job)
    assert found.data.held_out == 0.5
    assert found.data.sources == trained[0].data.sources
    assert isinstance(found.model, TransformerConfig)
    assert (found.model.attention_backend, found.model.dim) == ("eager", 32)


def test_weights_that_do_not_exist_are_refused(
    trained: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("adapter").mkdir()
    Path("adapter", "adapter_config.json").write_text("{}")
    Path("run").symlink_to(trained[1])
    for path, *flags in (
        ("none",), ("empty",), ("adapter",), ("run", "weights.checkpoint=7"),
        ("run/checkpoints/latest", "weights.checkpoint=best"),
    ):  # fmt: skip
        with refused(ConfigError):
            adopted(path, *flags)
    for checkpoint in ("latest", "step-00000040"):
        adopted(f"run/checkpoints/{checkpoint}")


def test_a_record_of_a_class_that_is_not_imported_names_its_module(
    trained: tuple[Job, Path], tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(trained[1] / "checkpoints/step-00000080", tmp_path / "saved")
    manifest = read_manifest(checkpoint)
    record, origins = (json.loads((checkpoint / name).read_text()) for name in RECORD_FILES)
    record["model"]["type"] = origins["model.type"]["value"] = "own"
    origins["model.type"]["layers"][-1]["value"] = "own"
    fingerprint = recorded_fingerprint(origins)
    record["setpoint"] |= {"fingerprint": fingerprint, "modules": ["own_model", "json"]}
    for name, content in zip(RECORD_FILES, (record, origins), strict=True):
        (checkpoint / name).write_text(json.dumps(content))
        files = {**manifest.files, name: digest_file(checkpoint / name)}
        manifest = replace(manifest, files=files)
    (checkpoint / "manifest.json").write_bytes(manifest.render())
    weights = InferenceWeights(path=str(checkpoint))
    with refused():
        complete(Inference(weights=weights, evaluation=EvaluationTask()))


def test_a_hugging_face_model_brings_its_tokenizer(tmp_path: Path) -> None:
    save_pretrained(small_model(vocab_size=300), tmp_path / "hf")
    folder = str(tmp_path / "hf")
    with refused(ConfigError):
        adopted(folder)
    adopted(folder, "tokenizer=bytes")
    byte_level(tmp_path / "hf")
    found = complete(Inference(weights=InferenceWeights(path=folder), evaluation=EvaluationTask()))
    assert found.tokenizer == resolve(HuggingFace(path=folder))
    assert isinstance(found.model, TransformerConfig)
    assert (found.model.dim, found.batch.sequence_length) == (32, 48)
    (*_, (origin, _)) = chain_of(found.model, "dim")
    assert origin.describe(("model", "dim")) == f"record {folder}/config.json"
    (*_, (origin, _)) = chain_of(found.tokenizer, "path")
    assert origin.describe(("tokenizer", "path")) == f"record {folder}/tokenizer.json"
    assert found.evaluation is not None and found.evaluation.sides == ("held_out",)
    # The training data is unknown, so sets are evaluated alone.
    sets = (DataSet(name="noise", sources=(Random(),)),)
    other = Inference(weights=InferenceWeights(path=folder), evaluation=EvaluationTask(sets=sets))
    for data, sides in ((None, ()), (Data(sources=(Random(),)), ("held_out",))):
        if data is not None:
            other.data = data
        evaluation = complete(other).evaluation
        assert evaluation is not None and evaluation.sides == sides
    given = Inference(
        weights=InferenceWeights(path=folder), tokenizer=Bytes(), evaluation=EvaluationTask()
    )
    assert complete(given).tokenizer == resolve(Bytes())
    with refused(ConfigError):
        adopted(folder, "model.dim=16")


def test_a_family_that_transformers_alone_knows(tmp_path: Path) -> None:
    keys = {"model_type": "qwen3_next", "vocab_size": 500, "max_position_embeddings": 99}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    weights, ids = InferenceWeights(path=str(tmp_path)), TokenIds()
    found = complete(Inference(weights=weights, tokenizer=ids, evaluation=EvaluationTask()))
    assert isinstance(found.model, HuggingFaceConfig) and isinstance(found.tokenizer, TokenIds)
    assert (found.model.config, found.tokenizer.count) == (str(tmp_path), 500)
    assert (found.model.max_sequence_length, found.batch.sequence_length) == (99, 99)
    assert complete(found) == found
    adopted(tmp_path, "tokenizer=bytes", "model.attention_backend=eager")
    # Fields that only Setpoint's own models have are not those of this model.
    for flag in ("model.dim=12", "model=transformer"):
        with refused(ConfigError):
            adopted(tmp_path, "tokenizer=bytes", flag)
    keys["architectures"] = ["Qwen3NextForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with refused(ConfigError):
        adopted(tmp_path, "tokenizer=bytes")


def test_a_vocabulary_that_does_not_fit(tmp_path: Path) -> None:
    from setpoint.config.resolving.checks import verify

    save_pretrained(small_model(vocab_size=100), tmp_path / "hf")
    byte_level(tmp_path / "hf")
    found = complete(inference(tmp_path / "hf", evaluation=EvaluationTask()))
    (problem,) = verify(found, ["files"]).problems
    assert problem.path == "model.vocab_size"
    assert problem.message.startswith("100 rows are too few for the 294 tokens of the tokenizer")


def test_attention_that_cannot_be_deterministic(trained: tuple[Job, Path]) -> None:
    flags = (
        "deterministic=true", "parallel.device=cuda", "precision.compute=bf16",
        "model.attention_backend=sdpa_cudnn",
    )  # fmt: skip
    with refused(ConfigError):
        adopted(trained[1], *flags)


@pytest.mark.parametrize("master", ["null", "fp32"])
def test_weights_of_a_run_in_bf16_stay_in_bf16(master: str, tmp_path: Path) -> None:
    formats = f"precision={{params=bf16, compute=bf16, master={master}, reduce=fp32}}"
    job = small_job(tmp_path, "duration=6 steps", "model.dropout=0", formats)
    outcome = train(job)
    run = str(outcome.directory)
    found = complete(Inference(weights=InferenceWeights(path=run), evaluation=EvaluationTask()))
    assert (found.weights.dtype, found.precision.compute) == ("bf16", "bf16")
    (*_, (origin, _)) = chain_of(found.weights, "dtype")
    assert origin.layer == RECORD
    assert complete(found) == found
    # As judged in training, and by another way of computing with the same weights.
    latest = InferenceWeights(path=run, checkpoint="latest")
    judged = infer(Inference(weights=latest, evaluation=EvaluationTask(sequences=12)))
    loss = outcome.scores["held_out"].loss
    assert judged.scores["held_out"].loss == pytest.approx(loss, rel=1e-6)
    latest.dtype = "fp32"
    mixed = infer(Inference(weights=latest, evaluation=EvaluationTask(sequences=12)))
    assert mixed.scores["held_out"].loss == pytest.approx(loss, rel=1e-2)
    assert mixed.scores["held_out"].loss != judged.scores["held_out"].loss
    # What an export does not need of the record is not a mistake.
    export = Inference(weights=InferenceWeights(path=run), export=ExportTask(path=tmp_path / "out"))
    assert complete(export).export is not None
