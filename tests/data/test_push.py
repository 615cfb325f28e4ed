"""`setpoint data push` and the way back, against a hub on this machine."""

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from setpoint.cli.main import main
from setpoint.config import RunError, compose, resolve
from setpoint.config.resolving.checks import verify as verify_job
from setpoint.data.config import Data, Prepare, TokenIds
from setpoint.data.prepare import prepare_all
from setpoint.data.push import reshard
from setpoint.data.sides import read_sides
from setpoint.data.sources.config import Conversations, Random, SourceConfig, Tokens
from setpoint.data.sources.tokens import file_problems, token_count
from setpoint.data.token_store import MANIFEST, open_side, read_manifest, verify
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.train.config import Job

from ..hub.server import Hub, local_hub
from ..support.snapshots import refused
from .in_memory import in_memory
from .test_prepared import assert_all_same, assert_same, data_of, token_files
from .tokenizers_here import byte_level

# A library's own.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

CONFIG = """
extends = "tiny"
[data]
sources = [{type = "random", documents = 90, length = 50}]
held_out = 0.2
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(CONFIG)
    with local_hub() as found:
        found.use(monkeypatch, tmp_path / "hub")
        yield found


def push(*arguments: str, job: str = "job.toml", repository: str = "me/toks") -> int:
    return main(["data", "push", job, repository, "-o", "cache", *arguments])


def corpora_of(path: Path | str) -> Any:
    return in_memory(Data(sources=(Tokens(paths=(str(path),)),)), ByteTokenizer())


def check_card(card: str, *flags: str) -> None:
    """The lines of a card are those of a job."""
    (lines,) = re.findall(r"```toml\n(.*?)```", card, re.DOTALL)
    Path("card.toml").write_text(f'extends = "tiny"\n{lines}')
    assert not verify_job(compose(Job, "card.toml", flags=flags).resolve(), ("files",)).problems


def local() -> Path:
    (folder,) = (each.parent for each in Path("cache").glob(f"*/{MANIFEST}"))
    return folder


def test_what_is_pushed_is_read_as_it_lies_here(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = Tokens(paths=("hf://datasets/me/toks/train",))
    assert push() == 0 and "commit " in capsys.readouterr().out
    assert hub.datasets["me/toks"].private
    assert not list(file_problems(tokens)) and not Path("hub").exists()  # `check` downloads nothing
    assert token_count(tokens) is None
    here = corpora_of(local())
    assert_all_same(here, corpora_of(tokens.paths[0]))
    assert_all_same(here, corpora_of("hf://datasets/me/toks@main/train/"))
    # Training opens it as it was split here: the same batches as from the text.
    made = resolve(Data(sources=(Random(documents=90, length=50),), held_out=0.2))
    pushed = resolve(Data(sources=(tokens,), held_out=0.2))
    before, after = (read_sides(data, ByteTokenizer()) for data in (made, pushed))
    assert before.held_out is not None and after.held_out is not None
    for one, other in ((before.train[0], after.train[0]), (before.held_out, after.held_out)):
        np.testing.assert_array_equal(one.tokens[:], other.tokens[:])
    card = hub.datasets["me/toks"].files()["README.md"].decode()
    manifest = read_manifest(local())
    for fact in (
        "`bytes`",
        manifest.key,
        tokens.paths[0],
        *(f"{s.tokens:,}" for s in manifest.sides),
    ):
        assert fact in card
    check_card(card)
    # A branch of its own, in other shards.
    assert push("--revision", "v2", "--shards", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["url"].endswith("me/toks/tree/v2")
    assert "train/train-00002.tokens.npy" in hub.datasets["me/toks"].files("v2")
    assert "train/train-00002.tokens.npy" not in hub.datasets["me/toks"].files()
    assert_all_same(here, corpora_of("hf://datasets/me/toks@v2/train"))
    assert not list(Path("cache").glob("*shards*"))
    with refused():
        corpora_of("hf://datasets/me/none")


def test_a_push_that_fails_leaves_nothing_and_goes_on(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.fail_after = 3
    assert push() == 1
    assert "no more space" in capsys.readouterr().err
    assert list(hub.datasets["me/toks"].files()) == [".gitattributes"]
    hub.fail_after = None
    assert push() == 0
    assert len(set(hub.uploads)) == len(hub.uploads) > 3  # none twice
    assert_all_same(corpora_of(local()), corpora_of("hf://datasets/me/toks/train"))
    before = dict(hub.datasets["me/toks"].branches)
    assert push() == 0
    assert hub.datasets["me/toks"].branches == before


def test_other_data_takes_the_place_of_old_and_what_is_yours_is_left(hub: Hub) -> None:
    assert push("--shards", "2", "--data.held_out", "9") == 0
    dataset = hub.datasets["me/toks"]
    assert b"\nheld_out = 9\n" in dataset.files()["README.md"]
    dataset.commit("main", {**dataset.files(), "README.md": b"# Mine", "notes/a.txt": b"a"})
    byte_level(Path("mine"))
    flags = ("--data.sources.0.seed", "5", "--tokenizer", "huggingface", "--tokenizer.path", "mine")
    validation = "[{type: random, name: other, documents: 9, length: 40}]"
    assert push(*flags, "--data.validation", validation) == 0
    files = dataset.files()
    assert (files["README.md"], files["notes/a.txt"]) == (b"# Mine", b"a")
    assert "train/train-00001.tokens.npy" not in files
    assert files["tokenizer/tokenizer.json"] == Path("mine/tokenizer.json").read_bytes()
    dataset.commit("main", {name: data for name, data in files.items() if name != "README.md"})
    assert push(*flags, "--data.validation", validation, "--revision", "v2") == 0
    check_card(dataset.files("v2")["README.md"].decode(), "tokenizer.path=mine")
    assert f"validation/{MANIFEST}" in files and "train/held_out.starts.npy" not in files


def test_what_is_refused(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*arguments: str, **more: str) -> str:
        assert push(*arguments, **more) in (1, 2)
        return capsys.readouterr().err

    assert "is not an id of a data set" in refusal(repository="toks")
    assert "(--revision names the branch)" in refusal(repository="me/toks@v2")
    assert not Path("cache").exists()  # nothing was prepared for it
    assert "its text is not shown" in refusal("--token", "hunter2")
    assert "NOT_THERE" in refusal("--token", "env:NOT_THERE")
    assert "no rights to create" in (said := refusal(repository="not-mine/toks"))
    assert "The token needs write access to it" in said
    assert push("--public") == 0 and not hub.datasets["me/toks"].private
    assert "me/toks is a public data set.\nValid: --public, if all" in refusal()
    monkeypatch.setenv("WRONG", "hf_wrong")
    assert "hf_wrong" not in refusal("--token", "env:WRONG")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "the hub cannot be reached" in refusal()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("setpoint.hub.upload.find_spec", lambda _: None)
    assert "pip install 'setpoint[data]'" in refusal()


@pytest.mark.parametrize(("kind", "shards"), [("text", 4), ("chat", 1000)])
def test_other_shards_hold_the_same(tmp_path: Path, kind: str, shards: int) -> None:
    rows = [{"prompt": f"q{n}", "completion": "a" * (n % 7 + 1)} for n in range(40)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chat = Conversations(paths=(f"{tmp_path}/c.jsonl",), template="plain")
    sources: tuple[SourceConfig, ...] = (Random(documents=30, length=90),)
    sources += (chat,) if kind == "chat" else (Random(name="b", documents=9, length=900),)
    data = Data(sources=sources, held_out=0.2, prepare=Prepare(folder=f"{tmp_path}/cache"))
    folder = Path(prepare_all(data, ByteTokenizer())[0].folder)
    manifest = read_manifest(folder)
    made = reshard(folder, manifest, tmp_path / "new", shards, ByteTokenizer())
    assert read_manifest(tmp_path / "new") == made
    verify(tmp_path / "new", made)
    for before, after in zip(manifest.sides, made.sides, strict=True):
        assert after.shards == min(shards, before.documents)
        old = open_side(folder, manifest, before, ByteTokenizer())
        new = open_side(tmp_path / "new", made, after, ByteTokenizer())
        assert_same(old, new)
        assert (old.trained is None) == (kind == "text")
    # About as many tokens each.
    sizes = [len(np.load(path)) for path in (tmp_path / "new").glob("train-*.tokens.npy")]
    assert shards > 4 or max(sizes) - min(sizes) < 2000


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), resolve(TokenIds(count=300)).build()])
def test_token_files_that_were_mapped_are_pushed_as_shards(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "files").mkdir()
    tokens = token_files(tmp_path / "files")
    read_sides(data_of(tmp_path / "cache", (tokens,), held_out=0.2), tokenizer)
    (folder,) = (path.parent for path in tmp_path.glob(f"cache/*/{MANIFEST}"))
    manifest = read_manifest(folder)
    assert len(manifest.token_files) == 3
    old = [open_side(folder, manifest, side, tokenizer) for side in manifest.sides]
    made = reshard(folder, manifest, tmp_path / "new", None, tokenizer)
    verify(tmp_path / "new", made)
    for path in tmp_path.glob("files/*"):
        path.unlink()
    assert not made.token_files and not list(tmp_path.glob("new/*.places.npy"))
    for side, before in zip(made.sides, old, strict=True):
        assert_same(before, open_side(tmp_path / "new", made, side, tokenizer))


def test_a_full_disk_leaves_no_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Prepare(folder=f"{tmp_path}/cache")
    data = Data(sources=(Random(documents=90, length=50),), held_out=0.2, prepare=cache)
    folder = Path(prepare_all(data, ByteTokenizer())[0].folder)

    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("setpoint.data.push.write_parts", full)
    with refused(RunError):
        reshard(folder, read_manifest(folder), tmp_path / "new", 2, ByteTokenizer())
    assert not (tmp_path / "new").exists()
