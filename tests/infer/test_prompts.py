import json
from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.data.sources.chat import Conversation
from setpoint.infer.prompts import read_prompts


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
    ("name", "text", "words"),
    [
        ("a.txt", "\n \n", "contains no prompts"),
        ("a.txt", b"caf\xe9", "is not UTF-8"),
        ("a.jsonl", '{"prompt": "a"}\n{', "a.jsonl:2: this is not JSON"),
        ("a.jsonl", '{"text": "a"}', "a.jsonl:1: a string under 'prompt' or a conversation under"),
        ("a.jsonl", '"a"', "a.jsonl:1: a JSON object is needed"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "a.jsonl:1: field 'messages.0.content'"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": "a"}]}', "to answer"),
    ],
)
def test_files_without_prompts(tmp_path: Path, name: str, text: str | bytes, words: str) -> None:
    with pytest.raises(SetpointError, match=words):
        read_prompts(written(tmp_path, name, text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SetpointError, match="none.txt cannot be read: No such file"):
        read_prompts(tmp_path / "none.txt")
