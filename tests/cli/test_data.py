"""`setpoint data inspect`, `data stats` and `tokenizer train`."""

import json

import pytest

from setpoint.cli import data, output

from ..support.snapshots import compare
from .conftest import CommandLine

CHATS = [
    {"prompt": "2 + 2?", "completion": "4 é"},
    {"prompt": "2 + 2?", "completion": "4 é"},
    {"messages": [{"role": "user", "content": "Hi|"}, {"role": "assistant", "content": "Hello"}]},
]
CONFIG = """
extends = "small.toml"
batch = {sequence_length = 20}

[data]
held_out = 0.0
sources = [{type = "conversations", paths = ["c.jsonl"], template = "plain"}]
"""
MIXED = """
extends = "small.toml"
[data]
held_out = 0.2
sources = [
    {type = "random", name = "a", documents = 40, length = 10, weight = 1.0},
    {type = "random", name = "b", documents = 30, length = 600, seed = 3, weight = 3.0},
]
"""


@pytest.fixture
def chats(cli: CommandLine) -> CommandLine:
    cli.file("c.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in CHATS))
    cli.file("chats.toml", CONFIG)
    return cli


INSPECT = "data inspect chats.toml --evaluation null --count 1"


def test_a_row_as_people_read_it(chats: CommandLine) -> None:
    compare("cli/data_inspect", chats.ok(INSPECT))
    compare("cli/data_inspect_tokens", chats.ok(f"{INSPECT} --tokens"))


def test_on_a_terminal_there_are_colours_and_no_marks(
    chats: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = chats.ok(INSPECT)
    for module in (data, output):
        monkeypatch.setattr(module, "colours", lambda *_: True)
    shown = chats.ok(INSPECT)
    assert "[[" in plain and "[[" not in shown
    assert "\033[1m4\033[0m" in shown or "\033[1;48;5;236m4\033[0m" in shown
    assert "\033[35;" in shown  # a control token


def test_rows_are_those_of_the_batches(cli: CommandLine) -> None:
    cli.file("mixed.toml", MIXED)
    found = json.loads(cli.ok("data inspect mixed.toml --count 12 --json"))
    assert [row["row"] for row in found] == [*range(12)]
    assert {tuple(row["sources"]) for row in found} == {("a",), ("b",)}
    for row in found:
        assert len(row["ids"]) == len(row["text"]) == len(row["document"]) == 33
        assert all(name.startswith(f"{row['sources'][0]}/") for name in row["documents"])
        assert row["trained"] == [False, *[True] * 32]
        assert max(row["document"]) == len(row["documents"]) - 1
    only = json.loads(cli.ok("data inspect mixed.toml --count 2 --source a --json"))
    assert only == [row for row in found if row["sources"] == ["a"]][:2]


def test_a_row_of_several_sources_names_all_of_them(cli: CommandLine) -> None:
    for name in "ab":
        rows = (f'{{"text": "{name}{number}"}}\n' for number in range(20))
        cli.file(f"{name}.jsonl", "".join(rows))
    sources = [{"type": "text", "name": name, "paths": [f"{name}.jsonl"]} for name in "ab"]
    line = f"""data inspect small.toml --data.sources '{json.dumps(sources)}' --count 2"""
    found = json.loads(cli.ok(f"{line} --json"))
    for row in found:
        drawn = dict.fromkeys(name.partition("/")[0] for name in row["documents"])
        assert row["sources"] == [*drawn] and len(drawn) == 2
    title = f"row 0 of {', '.join(found[0]['sources'])}: "
    assert cli.ok(f"{line} --source b").startswith(title)


def test_what_cannot_be_inspected(cli: CommandLine) -> None:
    cli.refused("data inspect small.toml --rows 2")
    cli.refused("data inspect small.toml --source c")
    cli.refused("data inspect small.toml --count 0")
    cli.refused("data inspect small.toml --seed null")
    gone = "data stats tiny --data.sources text --data.sources.0.paths gone.txt"
    cli.refused(gone)


def test_stats(chats: CommandLine) -> None:
    compare("cli/data_stats", chats.ok("data stats chats.toml --evaluation null"))
    facts = json.loads(chats.ok("data stats chats.toml --evaluation null --json"))
    (source,) = facts["train"]
    # Texts and an end each; of which "4 é" and its end twice, "Hello" and its end.
    assert (source["documents"], source["tokens"]) == (3, 2 * (6 + 4 + 1) + 3 + 5 + 1)
    assert source["trained_tokens"] == 2 * (4 + 1) + 5 + 1
    assert source["bytes"] == source["tokens"] - 3
    assert source["duplicates"] == facts["duplicates"]["documents"] == 1
    assert (
        facts["duplicates"]["examples"]
        == [["conversations/c.jsonl#000000", "conversations/c.jsonl#000001"]]
        or len(facts["duplicates"]["examples"][0]) == 2
    )
    assert sum(each["documents"] for each in facts["histogram"]) == 3
    assert facts["rows"] == {"rows": 2, "steps": 2 / 8, "note": "2 rows, 30.0% padding"}
    cut = "--evaluation null --data.packing.method concatenate --batch.sequence_length 400"
    short = chats.ok(f"data stats chats.toml {cut}")
    assert "batch.sequence_length: 400 needs 401 tokens for one row" in short
    assert "longer than 400" in short


def test_stats_of_a_mixture(cli: CommandLine) -> None:
    cli.file("mixed.toml", MIXED)
    facts = json.loads(cli.ok("data stats mixed.toml --json"))
    first, second = facts["train"]
    assert (first["mixture_share"], second["mixture_share"]) == (0.25, 0.75)
    assert first["share"] + second["share"] == pytest.approx(1)
    assert first["longer_than_sequence"] == 0
    assert second["longer_than_sequence"] == second["documents"]
    held = {each["source"]: each["documents"] for each in facts["held_out"]}
    assert held == {"a": 40 - first["documents"], "b": 30 - second["documents"]}
    assert "drawn" in cli.ok("data stats mixed.toml")


def test_a_document_that_is_held_out_and_trained_on(cli: CommandLine) -> None:
    for number in range(30):
        cli.file(f"texts/{number}.txt", f"text {number % 29} " * 20)
    flags = "--data.sources text --data.sources.0.paths texts --data.held_out 0.5"
    said = cli.ok(f"data stats tiny {flags} --json")
    facts = json.loads(said)
    twice = facts["duplicates"]
    assert (
        twice["documents"]
        + twice["held_out_in_training"]
        + (sum(each["duplicates"] for each in facts["held_out"]))
        == 1
    )


# `setpoint tokenizer train`.

TEXT = "tiny --data.sources text --data.sources.0.paths text.txt"


@pytest.fixture
def text(cli: CommandLine) -> CommandLine:
    cli.file("text.txt", "one fish two fish red fish blue fish\n" * 50)
    return cli


def test_a_tokenizer_is_trained_and_used(text: CommandLine) -> None:
    said = text.ok(f"tokenizer train {TEXT} --vocab-size 280 -o made")
    assert "made: " in said and "--tokenizer huggingface --tokenizer.path made" in said
    used = "--tokenizer huggingface --tokenizer.path made"
    assert "ok" in text.ok(f"check {TEXT} {used}")
    text.refused(f"check {TEXT} {used} --model.vocab_size 270")
    facts = json.loads(text.ok(f"tokenizer train {TEXT} --vocab-size 260 --output other --json"))
    assert facts["vocab_size"] == 260 and facts["documents"] == 1


def test_what_tokenizer_train_refuses(text: CommandLine) -> None:
    train = f"tokenizer train {TEXT}"
    text.refused(f"{train} -o made")
    text.refused(f"{train} --vocab-size 300")
    text.refused(f"{train} --vocab-size 300 -o made --template chatlm")
    gone = "tokenizer train tiny --data.sources text --data.sources.0.paths gone.txt"
    text.refused(f"{gone} --vocab-size 300 -o made")
    text.refused(f"{train} --vocab-size 3 -o made")
    assert not (text.folder / "made").exists()
    text.file("made/notes.txt", "mine")
    text.refused(f"{train} --vocab-size 300 -o made")
    assert [each.name for each in (text.folder / "made").iterdir()] == ["notes.txt"]
