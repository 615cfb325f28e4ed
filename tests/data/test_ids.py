"""`tokenizer.type = ids`: token files by the size of the model's vocabulary alone."""

from pathlib import Path

import numpy as np
import pytest

from setpoint.config import ConfigError, verify
from setpoint.config.composition import compose
from setpoint.data.config import TokenIds
from setpoint.data.sides import read_sides
from setpoint.train.build.job_data import build_training_data
from setpoint.train.config import Job

from ..support.snapshots import refused

S, V = 16, 1000
IDS = np.arange(3000) * 7919 % 991


def write(folder: Path) -> list[str]:
    IDS[:2000].astype(np.uint16).tofile(folder / "b.bin")
    np.save(folder / "a.npy", IDS[2000:].astype(np.int32))
    return [
        "tokenizer=ids", f"model.vocab_size={V}", f"batch.sequence_length={S}",
        f"data.sources=[{{type=tokens, paths=[{folder}/b.bin], token_dtype=uint16}}]",
        "data.shuffle=false",
    ]  # fmt: skip


def test_rows_are_the_tokens_of_the_file(tmp_path: Path) -> None:
    job = compose(Job, flags=[*write(tmp_path), "data.held_out=0", "evaluation=null"]).resolve()
    assert isinstance(job.tokenizer, TokenIds) and job.tokenizer.count == V
    sides = read_sides(job.data, job.tokenizer.build())
    sequences, sampler = build_training_data(job, sides.train)
    count = (2000 - 1) // S
    batch = sequences.batch_of(sampler.take(count))
    # As a loop over a mapped file reads it: S tokens, and the one behind each, every S tokens.
    starts = [S * row for row in range(count)]
    assert batch.inputs.tolist() == [IDS[at : at + S].tolist() for at in starts]
    assert batch.targets.tolist() == [IDS[at + 1 : at + 1 + S].tolist() for at in starts]


def test_a_separator_divides_files(tmp_path: Path) -> None:
    flags = [*write(tmp_path), "data.held_out=0", "evaluation=null", "tokenizer.separator=5"]
    job = compose(Job, flags=flags).resolve()
    (corpus,) = read_sides(job.data, job.tokenizer.build()).train
    assert len(corpus.files) == 1 + int((IDS[:2000] == 5).sum())
    assert corpus.trained is None


def test_an_id_beyond_the_vocabulary_is_named_by_check_and_by_training(tmp_path: Path) -> None:
    job = compose(Job, flags=[*write(tmp_path), "model.vocab_size=900"]).resolve()
    at = int(np.flatnonzero(IDS >= 900)[0])
    said = f"b.bin contains the token {IDS[at]} at position {at:,}, but the tokenizer"
    (problem,) = verify(job, ["files"]).problems
    assert problem.path == "data.sources.0.paths" and said in problem.message
    with refused():
        read_sides(job.data, job.tokenizer.build())
    narrow = compose(Job, flags=[*write(tmp_path), "data.sources.0.token_dtype=uint8"]).resolve()
    (problem,) = verify(narrow, ["files"]).problems
    assert problem.path == "data.sources.0.token_dtype" and "read as uint16" in problem.message


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        (["data.sources=random"], "data.sources.0.type"),
        (["data.packing.method=next_fit"], "data.packing.method"),
        (["tokenizer.separator=1000"], "tokenizer.separator"),
        (["data.sources.0.separator=3"], "data.sources.0.separator"),
        (["model.vocab_size=null"], "tokenizer.count"),
    ],
)
def test_what_is_refused(flags: list[str], path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(Job, flags=[*write(tmp_path), *flags]).resolve()
    assert path in [problem.path for problem in raised.value.problems]
