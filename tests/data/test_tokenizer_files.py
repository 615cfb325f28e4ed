"""Tokenizers of the Hugging Face format: bytes of tokens, separators, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.data.config import HuggingFace
from setpoint.data.corpus import build_corpus
from setpoint.data.document import Document
from setpoint.data.tokenizer import HuggingFaceTokenizer
from setpoint.data.vocabulary import TextPiece

from ..support.snapshots import refused
from .tokenizers_here import BEGIN, END, byte_level, sentence_piece, word_piece


def built(folder: Path, **settings: Any) -> HuggingFaceTokenizer:
    return resolve(HuggingFace(path=str(folder), **settings)).build()


@pytest.fixture(scope="module", params=[byte_level, sentence_piece])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return built(request.param(tmp_path_factory.mktemp("tokenizer")))


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁")))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_byte_is_lost_or_counted_twice(tokenizer: HuggingFaceTokenizer, text: str) -> None:
    data = text.encode()
    tokens = tokenizer.encode(data)
    assert tokenizer.decode(tokens) == data
    assert int(tokenizer.token_bytes[tokens].sum()) == len(data)
    assert tokenizer.separator not in tokens


@given(text=st.text(st.characters(codec="utf-8")) | st.just(f"a{END} b"))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokens_do_not_depend_on_threads(tokenizer: HuggingFaceTokenizer, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        quick = tokenizer.encode(text.encode())
        patch.delenv("TOKENIZERS_PARALLELISM")
        np.testing.assert_array_equal(quick, tokenizer.encode(text.encode()))


def test_bytes_of_tokens_are_those_that_the_library_decodes(tmp_path: Path) -> None:
    tokenizer = built(byte_level(tmp_path))
    for text in ("hello world", "def f(x):\n    return x + 1\n", "wörds of 東京"):
        ids = tokenizer.tokenizer.encode(text).ids
        assert tokenizer.decode(ids).decode() == tokenizer.tokenizer.decode(ids) == text


def test_the_text_as_the_tokenizer_sees_it_is_what_counts(tmp_path: Path) -> None:
    tokenizer = built(sentence_piece(tmp_path, prefix=True))
    tokens = tokenizer.encode(b"hello")
    assert tokenizer.decode(tokens) == b" hello"
    corpus = build_corpus([Document("a", b"hello")], tokenizer, side="train")
    assert corpus.byte_count == 6 == int(corpus.token_bytes[corpus.tokens].sum())


def test_separator(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    ends, begins = built(folder), built(folder, separator=BEGIN)
    assert ends.tokenizer.id_to_token(ends.separator) == END
    assert begins.tokenizer.id_to_token(begins.separator) == BEGIN
    # They lay out a corpus differently, and so have different names.
    assert ends.name != begins.name
    assert repr(ends) == f"HuggingFaceTokenizer('{folder}', {ends.vocab_size} tokens)"
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({"bos_token": BEGIN}))
    assert built(folder).separator == begins.separator
    settings.unlink()
    with refused():
        built(folder)
    with refused():
        built(folder, separator="<end>")


def test_what_the_tokenizer_puts_before_a_text(tmp_path: Path) -> None:
    assert built(byte_level(tmp_path / "a")).opening == ()
    llama = built(byte_level(tmp_path / "b", begin=True))
    assert llama.opening == (llama.tokenizer.token_to_id(BEGIN),)


def test_its_name_tells_files_apart(tmp_path: Path) -> None:
    one, same = built(byte_level(tmp_path / "a")), built(byte_level(tmp_path / "b"))
    other = built(byte_level(tmp_path / "c", vocab_size=290))
    assert one.name == same.name != other.name
    assert (one.vocab_size, other.vocab_size) == (294, 290)
    documents = [Document("a", b"hello")]
    digests = {build_corpus(documents, each, side="train").digest for each in (one, same, other)}
    assert len(digests) == 2


def test_limits_in_the_file_do_not_cut_documents(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    library = built(folder).tokenizer
    library.enable_truncation(4)
    library.enable_padding(length=64)
    library.save(str(folder / "tokenizer.json"))
    text = b"hello world " * 9
    assert built(folder).decode(built(folder).encode(text)) == text


def test_text_that_is_no_utf8(tmp_path: Path) -> None:
    tokenizer = built(byte_level(tmp_path))
    with refused():
        build_corpus([Document("a/b", b"caf\xe9")], tokenizer, side="train")


def test_tokens_without_certain_bytes(tmp_path: Path) -> None:
    with refused():
        built(word_piece(tmp_path))


def test_a_file_that_the_library_refuses(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    found["pre_tokenizer"] = {"type": "Telepathy"}
    file.write_text(json.dumps(found))
    with pytest.raises(SetpointError, match="tokenizer.json of .* cannot be used: "):
        built(folder)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refused():
        built(byte_level(tmp_path))


def test_an_id_outside_the_vocabulary(tmp_path: Path) -> None:
    with refused():
        built(byte_level(tmp_path)).decode([1, 294])


def test_added_tokens_are_control_tokens_behind_the_last(tmp_path: Path) -> None:
    """As the library adds them: the same ids, and no text is one of them."""
    folder = byte_level(tmp_path / "files")
    plain = built(folder)
    grown = resolve(HuggingFace(path=str(folder), added=("<|im_end|>", "<|tool|>"))).build()
    plain.tokenizer.add_special_tokens(["<|im_end|>", "<|tool|>"])
    for token in ("<|im_end|>", "<|tool|>"):
        assert grown.chat.tokens[token] == plain.tokenizer.token_to_id(token)
    assert (plain.vocab_size, grown.vocab_size, grown.name == plain.name) == (294, 296, False)
    assert grown.decode(grown.encode(b"a<|tool|>")) == b"a<|tool|>"
    pieces = (TextPiece("a", False), TextPiece("<|im_end|>", True), TextPiece("<|im_end|>", False))
    encoded = grown.encode_pieces(pieces).tokens.tolist()
    assert encoded.count(294) == 1
    # A folder that has them already, as that of a checkpoint, is the same tokenizer.
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "tokenizer.json").write_text(grown.document)
    (kept / "tokenizer_config.json").write_bytes((folder / "tokenizer_config.json").read_bytes())
    section = resolve(HuggingFace(path=str(folder), added=("<|im_end|>", "<|tool|>")))
    assert section.build(directory=kept).name == grown.name
    with refused():
        resolve(HuggingFace(path=str(kept), added=("<|tool|>",))).build()


def test_tokens_are_added_once(tmp_path: Path) -> None:
    for added in (("a", "a"), ("",)):
        with refused(ConfigError):
            resolve(HuggingFace(path=str(tmp_path), added=added))
