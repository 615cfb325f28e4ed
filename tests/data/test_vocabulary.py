"""What is known of a tokenizer without building it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import resolve
from setpoint.config.resolving.checks import verify
from setpoint.data.config import Bytes, HuggingFace
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.data.vocabulary import find_tokenizer, read_vocabulary, vocabulary_size

from ..support.snapshots import refused
from .tokenizers_here import byte_level, sentence_piece


def test_size_and_separator(tmp_path: Path) -> None:
    found = read_vocabulary(str(byte_level(tmp_path)))
    assert (found.size, found.separator(None)) == (294, "<|endoftext|>")
    assert read_vocabulary(str(tmp_path / "tokenizer.json")).size == 294
    assert read_vocabulary(str(sentence_piece(tmp_path / "other"))).separator(None) == "</s>"


def test_the_size_is_that_of_the_tokenizer_once_it_is_built(tmp_path: Path) -> None:
    for config in (Bytes(), HuggingFace(path=str(byte_level(tmp_path)))):
        section = resolve(config)
        assert vocabulary_size(section) == section.build().vocab_size
    assert vocabulary_size(resolve(HuggingFace(path="somebody/something"))) is None


def test_the_size_is_not_known_where_the_files_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    assert vocabulary_size(HuggingFace(path=str(tmp_path))) is None


def test_a_vocabulary_that_is_a_list(tmp_path: Path) -> None:
    """As Unigram models have it."""
    text = '{"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": []}'
    (tmp_path / "tokenizer.json").write_text(text)
    assert read_vocabulary(str(tmp_path)).ids == {"a": 0, "b": 1}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": {"vocab": {}}}'])
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with refused():
        read_vocabulary(str(tmp_path))


def test_places_that_hold_none(tmp_path: Path) -> None:
    with refused():
        find_tokenizer(str(tmp_path))
    with refused():
        find_tokenizer("./nowhere")


def test_what_the_hub_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def no_network(*names: str, **options: object) -> str:
        raise OSError("no route to host\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    with refused():
        find_tokenizer("some/thing")

    def cached(
        name: str, *, revision: str | None, allow_patterns: list[str], repo_type: str, **_: object
    ) -> str:
        assert (name, revision, allow_patterns[0]) == ("some/thing", "v1", "tokenizer.json")
        assert repo_type == "model"
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    with refused():
        find_tokenizer("some/thing@v1")
    byte_level(tmp_path)
    assert find_tokenizer("some/thing@v1") == tmp_path / "tokenizer.json"


def test_what_a_check_finds(tmp_path: Path) -> None:
    def found(**fields: str) -> list[str]:
        config = resolve(HuggingFace(**fields))
        return [f"{each.path}: {each.message}" for each in verify(config, ["files"]).problems]

    folder = str(byte_level(tmp_path))
    assert found(path=folder) == []
    assert found(path="somebody/something") == []  # a hub id is looked for by the run
    assert found(path=folder, separator="<end>") == [f"separator: '<end>' is not in {folder}."]
    assert found(path=f"{folder}/none") == [f"path: {folder}/none does not exist."]


@given(data=st.binary())
@settings(deadline=None)
def test_round_trip_is_exact_and_separators_are_no_text(data: bytes) -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(data)
    assert tokens.tolist() == list(data)
    assert tokens.dtype == np.uint16
    assert tokenizer.decode([256, *tokens.tolist(), 256]) == data
    assert int(tokenizer.token_bytes[tokens].sum()) == len(data)


@pytest.mark.parametrize("wrong", [-1, 257, 1000])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with refused():
        ByteTokenizer().decode([65, wrong])
