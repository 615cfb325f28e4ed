import json
from pathlib import Path

import pytest

from setpoint.data.sources.chat import Conversation
from setpoint.infer.prompts import read_prompts

from ..support.snapshots import refused


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_prompt_in_each_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "one\r\n\n  two \n \nthree\x85still three\n")
    assert [prompt for _, prompt in read_prompts(path)] == ["one", "  two ", "three\x85still three"]


def test_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"prompt": "a\\nb", "id": 1}\n\n{"prompt": "c"}')
    assert read_prompts(path) == [(f"{path}:1", "a\nb"), (f"{path}:3", "c")]


def test_rows_of_training_are_asked_for_their_answer(tmp_path: Path) -> None:
    user, answer = ({"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b")))
    rows = [
        {"messages": [user, answer, user, answer], "tools": [{"name": "f"}]},
        {"prompt": [user]},
        {"prompt": "a", "tools": [{"name": "f"}]},
        {"prompt": "a", "completion": "b"},
        {"instruction": "a", "output": "b"},
        {"instruction": "a"},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    found = [prompt for _, prompt in read_prompts(written(tmp_path, "a.jsonl", text))]
    assert all(isinstance(each, Conversation) for each in found)
    asked = [each.messages for each in found if isinstance(each, Conversation)]
    assert asked == [[user, answer, user], *[[user]] * 6]
    tools = [each.tools for each in found if isinstance(each, Conversation)]
    assert tools[:3] == [[{"name": "f"}], None, [{"name": "f"}]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "\n \n"),
        ("a.txt", b"caf\xe9"),
        ("a.jsonl", '{"prompt": "a"}\n{'),
        ("a.jsonl", '{"text": "a"}'),
        ("a.jsonl", '"a"'),
        ("a.jsonl", '{"messages": [{"role": "user"}]}'),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": "a"}]}'),
    ],
)
def test_files_without_prompts(tmp_path: Path, name: str, text: str | bytes) -> None:
    with refused():
        read_prompts(written(tmp_path, name, text))


def test_no_such_file(tmp_path: Path) -> None:
    with refused():
        read_prompts(tmp_path / "none.txt")
