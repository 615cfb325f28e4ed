"""Which weights are loaded, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import RunError, resolve
from setpoint.config.resolving.checks import verify
from setpoint.data.config import HuggingFace
from setpoint.data.vocabulary import TextPiece
from setpoint.infer.adopt import complete
from setpoint.infer.config import EvaluationTask, Inference, InferenceWeights
from setpoint.infer.loaded_model import LoadedModel, load
from setpoint.infer.prompts import Prompt
from setpoint.infer.rules import UNTRAINED
from setpoint.model.pretrained.save_pretrained import save_pretrained
from setpoint.shapes.placed import in_memory
from setpoint.train.config import Job
from setpoint.train.run import train
from tests.support.tensors import read

from ..checkpoint.stored import load as load_stored
from ..checkpoint.stored import pointers
from ..data.tokenizers_here import BEGIN, END, byte_level
from ..support.snapshots import refused
from ..train.small import small_job
from .small import inference, small_model


def opened(path: Path, **fields: Any) -> LoadedModel:
    weights = InferenceWeights(path=str(path), **fields)
    return load(complete(Inference(weights=weights, evaluation=EvaluationTask())))


def text(words: str) -> Prompt:
    return Prompt((TextPiece(words),), is_whole=False)


def first(loaded: LoadedModel) -> torch.Tensor:
    return next(iter(loaded.model.state_dict().values()))


def test_which_checkpoint(trained: tuple[Job, Path], tmp_path: Path) -> None:
    run = trained[1]
    root = run / "checkpoints"
    latest, best = pointers(root)
    assert latest == 120 and best is not None
    for which, step in (("latest", latest), ("best", best), (40, 40), (None, best)):
        found = opened(run, checkpoint=which)
        assert found.place.directory.name == f"step-{step:08d}"
        expected = read(load_stored(root, step).tensors["model"])
        torch.testing.assert_close(dict(found.model.state_dict()), expected, rtol=0, atol=0)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "checkpoints" / "best").unlink()
    assert opened(copy).place.directory.name == "step-00000120"


def test_a_damaged_checkpoint_is_named_with_others(
    trained: tuple[Job, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained[1], copy)
    path = copy / "checkpoints" / "step-00000120" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="; step-00000040 or step-00000080 can be used instead"):
        opened(copy, checkpoint="latest")
    # Others are looked at before they are named.
    (copy / "checkpoints" / "step-00000080" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(RunError, match="; step-00000040 can be used instead"):
        opened(copy, checkpoint="latest")


def test_it_runs_as_the_run_did(loaded: LoadedModel) -> None:
    assert not loaded.model.training
    assert (loaded.compute, loaded.context) == ("fp32", 16)
    assert (loaded.opening, loaded.stops) == ((256,), (256,))
    assert loaded.tokens_of(text("ab")) == [256, 97, 98]


def test_a_model_of_the_users_own(tmp_path: Path) -> None:
    flags = ("model={type=import, target=torch.nn.Embedding, embedding_dim=257, "
             "num_embeddings=257}", "duration=3 steps")  # fmt: skip
    run = train(small_job(tmp_path, *flags)).directory
    found = opened(run)
    expected = load_stored(run / "checkpoints", "best").tensors["model"]
    torch.testing.assert_close(first(found), in_memory(expected["weight"]))


def test_a_run_that_started_from_another_one(trained: tuple[Job, Path], tmp_path: Path) -> None:
    """What it started from may be gone."""
    source = tmp_path / "source"
    shutil.copytree(trained[1], source)
    flags = ("duration=2 steps", "model.dim=32", "model.dropout=0", f"model.pretrained={source}")
    run = train(small_job(tmp_path, *flags)).directory
    shutil.rmtree(source)
    expected = read(load_stored(run / "checkpoints", "best").tensors["model"])
    torch.testing.assert_close(dict(opened(run).model.state_dict()), expected)


def test_a_hugging_face_model(tmp_path: Path) -> None:
    """It begins as its tokenizer begins, and ends where its files say."""
    model = small_model(vocab_size=300)
    folder = byte_level(save_pretrained(model, tmp_path / "hf"), begin=True)
    found = opened(folder)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(found.model(tokens), model(tokens))
    ids = found.tokenizer.encode(b"ab").tolist()
    ends = resolve(found_config(folder, "bos")).build().separator
    assert found.tokens_of(text("ab")) == [ends, *ids]
    assert found.stops == (found.tokenizer.separator,)
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert opened(folder).stops == (5, 7, found.tokenizer.separator)
    settings.write_text("{")
    with refused():
        opened(folder)


def found_config(folder: Path, name: str) -> Any:
    return HuggingFace(path=str(folder), separator={"bos": BEGIN, "eos": END}[name])


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = byte_level(save_pretrained(small_model(vocab_size=100), tmp_path / "hf"))
    with refused():
        opened(folder)


def test_tokens_are_added_by_training_alone(tmp_path: Path) -> None:
    folder = byte_level(save_pretrained(small_model(vocab_size=300), tmp_path / "hf"))
    tokenizer = HuggingFace(path=str(folder), added=("<|tool|>",))
    weights = InferenceWeights(path=str(folder))
    job = complete(Inference(weights=weights, evaluation=EvaluationTask(), tokenizer=tokenizer))
    (problem,) = verify(job, ("files",)).problems
    assert (problem.path, problem.message) == ("tokenizer.added", UNTRAINED)
    with refused():
        load(job)


def test_a_model_that_transformers_runs(tmp_path: Path) -> None:
    """It goes uncached, and is asked for rows of one length at a time."""
    from setpoint.infer.generation import Sampling, generate
    from setpoint.model.config import HuggingFaceConfig

    model = small_model(vocab_size=300)
    folder = byte_level(save_pretrained(model, tmp_path / "hf"))
    job = inference(folder, evaluation=EvaluationTask())
    job.model = HuggingFaceConfig(config=str(folder), max_sequence_length=48)
    found = load(complete(job))
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(found.model(tokens), model(tokens), rtol=0, atol=1e-4)
    prompts, greedy = [[1, 2, 3], [4], [5, 6]], Sampling(temperature=0)
    theirs, ours = (
        generate(each, prompts, max_tokens=8, sampling=greedy) for each in (found.model, model)
    )
    assert theirs == ours
