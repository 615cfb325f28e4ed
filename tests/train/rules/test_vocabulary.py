from pathlib import Path

import pytest

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import cautions_of, verify
from setpoint.data.cache import prepare_all
from setpoint.data.config import Data, Prepare
from setpoint.data.sources.config import Random
from setpoint.data.tokenizers.config import BYTES_VOCABULARY, Bytes, HuggingFace
from setpoint.data.tokenizers.tokenizer import ByteTokenizer
from setpoint.train.config import Job
from setpoint.train.rules.model import known_vocabulary

from ...support.snapshots import compare

TOKENIZER = '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<end>": 7}, "merges": []}}'


def job(*flags: str) -> Job:
    return compose(Job, flags=flags).resolve()


def test_bytes() -> None:
    assert known_vocabulary(Bytes()) == Bytes().build().vocab_size == BYTES_VOCABULARY


def test_files_are_read_where_they_are(tmp_path: Path) -> None:
    assert known_vocabulary(HuggingFace(path="some/where")) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert known_vocabulary(HuggingFace(path=str(tmp_path))) is None
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    assert known_vocabulary(HuggingFace(path=str(tmp_path))) == 8


def test_too_few_rows() -> None:
    with pytest.raises(ConfigError) as caught:
        job("model.vocab_size=256")
    compare("train/vocabulary", str(caught.value))
    assert job("model.vocab_size=257").model


def test_too_few_rows_for_a_tokenizer_in_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    tokenizer = (f"tokenizer={{type=huggingface, path={tmp_path}}}", "tokenizer.separator=<end>")
    resolved = job(*tokenizer, "model.vocab_size=7")
    assert not [p for p in verify(resolved, ()).problems if p.path == "model.vocab_size"]
    (problem,) = verify(resolved, ("files",)).problems
    assert problem.path == "model.vocab_size"
    assert "7 rows do not hold the 8 tokens" in problem.message
    assert problem.valid == ("8", "null")


@pytest.mark.parametrize(
    ("flag", "codes"),
    [
        ("model.vocab_size=1028", []),
        ("model.vocab_size=1029", ["vocabulary-mostly-unused"]),
        ("model.vocab_multiple_of=512", []),
        ("model.vocab_multiple_of=1500", ["vocabulary-mostly-unused"]),
    ],
)
def test_a_vocabulary_that_is_hardly_used(flag: str, codes: list[str]) -> None:
    assert [caution.code for caution in cautions_of(job(flag))] == codes


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
    assert "train-00000.tokens.npy has " in said
    (folder / "manifest.json").write_text('{"kind": "setpoint prepared data"')
    assert "manifest.json cannot be read" in tokens_problems(folder)[0]
