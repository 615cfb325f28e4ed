"""Generation from the checkpoints of a run."""

from __future__ import annotations

import io
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, SetpointError
from setpoint.infer.write import Sampling, write
from setpoint.train.config import Job
from setpoint.train.run import train

from ..train.small import small_job

GREEDY = Sampling(max_tokens=24, temperature=0.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A run that has learnt that each symbol is followed by the next one."""
    job = small_job(
        tmp_path_factory.mktemp("run"), "duration=120 steps", "optimizer.lr=2e-2",
        "model.dim=32", "model.dropout=0", "batch.micro_size=8", "checkpoint.every=40 steps",
        "checkpoint.keep=null", "evaluation.every=40 steps",
    )  # fmt: skip
    return job, train(job).directory


def written(trained: tuple[Job, Path], prompt: str, which: str | None = None,
            sampling: Sampling = GREEDY) -> str:  # fmt: skip
    stream = io.StringIO()
    write(trained[0], str(trained[1]), prompt, which, sampling, stream)
    return stream.getvalue()


def test_it_writes_what_it_has_learnt(trained: tuple[Job, Path]) -> None:
    # Symbols are the eight bytes from the space upwards, and three in four go one up.
    text = written(trained, '!"#')
    assert text.startswith('!"#')
    assert text.endswith("\n")
    body = text[:-1]
    steps = [(ord(b) - ord(a)) % 8 for a, b in pairwise(body)]
    assert len(body) > 10
    assert steps.count(1) > 0.8 * len(steps)


def test_greedy_equals_a_loop_over_the_model(trained: tuple[Job, Path]) -> None:
    job, run = trained
    checkpoint = CheckpointStore(run / "checkpoints").load("best")
    model = job.model.build(vocab_size=257)
    model.load_state_dict(checkpoint.tensors["model"])
    model.eval()
    tokens = [256, *b'!"#']
    with torch.no_grad():
        for _ in range(24):
            window = torch.tensor([tokens[-job.model.max_sequence_length :]])
            following = int(model(window)[0, -1].argmax())
            if following == 256:
                break
            tokens.append(following)
    assert written(trained, '!"#') == bytes(tokens[1:]).decode() + "\n"


def test_a_seed_repeats_the_text(trained: tuple[Job, Path]) -> None:
    texts = [
        written(trained, "!", None, Sampling(max_tokens=40, temperature=1.0, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_which_checkpoint(trained: tuple[Job, Path]) -> None:
    _, run = trained
    best = CheckpointStore(run / "checkpoints").best
    assert written(trained, "!") == written(trained, "!", "best")
    assert written(trained, "!", str(best)) == written(trained, "!", "best")
    assert written(trained, "!", "latest") == written(trained, "!", "120")
    # Untrained, it does not know what follows.
    assert written(trained, "!", "0") != written(trained, "!", "120")


def test_without_a_best_the_latest(trained: tuple[Job, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained[1], copy)
    (copy / "checkpoints" / "best").unlink()
    assert written((trained[0], copy), "!") == written(trained, "!", "latest")


def test_no_such_step(trained: tuple[Job, Path]) -> None:
    with pytest.raises(SetpointError, match="no checkpoint step 7 .* steps there: 0, 40, 80, 120"):
        written(trained, "!", "7")


def test_a_run_without_checkpoints(trained: tuple[Job, Path], tmp_path: Path) -> None:
    with pytest.raises(SetpointError, match="there is no checkpoint latest"):
        written((trained[0], tmp_path), "!")


def test_a_damaged_checkpoint_is_named(trained: tuple[Job, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained[1], copy)
    path = copy / "checkpoints" / "step-00000120" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    words = r"model\.safetensors.*; --checkpoint \d+.* chooses another"
    with pytest.raises(RunError, match=words):
        written((trained[0], copy), "!", "latest")


def test_another_model_is_refused(trained: tuple[Job, Path], tmp_path: Path) -> None:
    other = small_job(tmp_path, "model.dim=16")
    with pytest.raises(RunError, match="does not fit the model: embedding.weight is"):
        written((other, trained[1]), "!")


def test_a_long_prompt_is_cut_to_what_the_model_takes(trained: tuple[Job, Path]) -> None:
    prompt = " !\"#$%&'" * 20
    assert written(trained, prompt).startswith(prompt)
