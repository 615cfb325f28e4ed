"""BPE that is trained on the texts of a job."""

import json
import os
import subprocess
import sys
from pathlib import Path

from setpoint.config import resolve
from setpoint.data.bpe import train_bpe
from setpoint.data.config import Data, HuggingFace
from setpoint.data.reading import split_position
from setpoint.data.sources.config import Conversations, Random, Text
from setpoint.data.vocabulary import TOKENIZER

from ..support.snapshots import refused

TEXTS = ["one fish two fish red fish blue fish", "a wörd of 東京 and 12345 fish", "\x00\t<|x|>"]


def data(folder: Path, texts: list[str] = TEXTS, **settings: float) -> Data:
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text * 9)
    return resolve(
        Data(sources=(Text(paths=(f"{folder}/*.txt",)),), **{"held_out": 0.0, **settings})
    )


def test_any_text_can_be_encoded_and_control_tokens_come_first(tmp_path: Path) -> None:
    trained = train_bpe(data(tmp_path), 290, special=["<|x|>"])
    assert trained.vocab_size == 290
    for name, text in trained.files.items():
        (tmp_path / name).write_text(text)
    tokenizer = resolve(HuggingFace(path=str(tmp_path))).build()
    for text in (*TEXTS, "nothing like it: ελ 🙂\r\n"):
        assert tokenizer.decode(tokenizer.encode(text.encode())) == text.encode()
    assert tokenizer.chat.tokens["<|endoftext|>"] == tokenizer.separator == 0
    assert tokenizer.chat.tokens["<|x|>"] == 1
    assert len(tokenizer.encode(b" fish")) == 1
    about = json.loads(trained.files["training.json"])
    assert (about["documents"], about["bytes"]) == (3, trained.bytes)
    assert about["data"]["sources"][0]["paths"] == [f"{tmp_path}/*.txt"]


SCRIPT = """
import sys
from setpoint.config import resolve
from setpoint.data.config import Data
from setpoint.data.sources.config import Random
from setpoint.data.bpe import train_bpe
config = resolve(Data(sources=(Random(documents=60, alphabet=90),)))
sys.stdout.write(train_bpe(config, 400).files["tokenizer.json"])
"""


def test_the_same_data_gives_the_same_tokenizer() -> None:
    config = resolve(Data(sources=(Random(documents=60, alphabet=90),)))
    expected = train_bpe(config, 400).files[TOKENIZER]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, env=environment, check=True
    )
    assert done.stdout.decode() == expected


def test_held_out_documents_are_not_learned_from(tmp_path: Path) -> None:
    names = [f"text/{number}.txt" for number in range(40)]
    words = [f"{'held' if split_position(name) < 0.3 else 'taken'}word " for name in names]
    assert 3 < words.count("heldword ") < 37
    trained = train_bpe(data(tmp_path, words, held_out=0.3), 400)
    vocabulary = trained.tokenizer.get_vocab()
    assert "takenword" in vocabulary and not any("held" in token for token in vocabulary)
    # A number of documents are those with the lowest hashes.
    lowest = sorted(names, key=split_position)[:5]
    words = [f"{'held' if name in lowest else 'taken'}word " for name in names]
    trained = train_bpe(data(tmp_path, words, held_out=5.0), 400)
    assert trained.documents == 35
    assert not any("held" in token for token in trained.tokenizer.get_vocab())
    # Of a single document the end is held out, as in training.
    for file in tmp_path.glob("*.txt"):
        file.unlink()
    (trained_on, rest) = ("one two\n" * 90, "six seven\n" * 10)
    config = data(tmp_path, [], held_out=0.122)
    (tmp_path / "a.txt").write_text(trained_on + rest)
    assert train_bpe(config, 400).bytes == len(trained_on)


def test_conversations_are_learned_from_without_their_template(tmp_path: Path) -> None:
    row = {"prompt": "fish fish fish", "completion": "bird bird"}
    (tmp_path / "chats.jsonl").write_text("\n".join([json.dumps(row)] * 3))
    source = Conversations(paths=(f"{tmp_path}/chats.jsonl",), template="chatml")
    config = resolve(Data(sources=(source,), held_out=0.0))
    trained = train_bpe(config, 300, template="chatml")
    assert {" fish", "bird"} <= {token.replace("Ġ", " ") for token in trained.tokenizer.get_vocab()}
    assert trained.bytes == 3 * len("fish fish fish\nbird bird")
    for name, text in trained.files.items():
        (tmp_path / name).write_text(text)
    tokenizer = resolve(HuggingFace(path=str(tmp_path))).build()
    assert tokenizer.chat.controls == ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    assert "<|im_start|>" in tokenizer.chat.templates["default"]
    assert "bos_token" in train_bpe(config, 300, template="llama3").files["tokenizer_config.json"]


def test_what_is_refused(tmp_path: Path) -> None:
    with refused():
        train_bpe(data(tmp_path), 200, special=["<|x|>"])
    with refused():
        train_bpe(data(tmp_path, ["", "", ""]), 300)
    row = '{"input_ids": [1, 2]}'
    (tmp_path / "chats.jsonl").write_text(row)
    tokens = resolve(Data(sources=(Conversations(paths=(f"{tmp_path}/chats.jsonl",)),)))
    with refused():
        train_bpe(tokens, 300)
