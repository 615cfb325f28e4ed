from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.infer.prompts import read_prompts


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_prompt_in_each_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "one\r\n\n  two \n \nthree\x85still three\n")
    assert read_prompts(path) == ["one", "  two ", "three\x85still three"]


def test_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"prompt": "a\\nb", "id": 1}\n\n{"prompt": "c"}')
    assert read_prompts(path) == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "\n \n", "holds no prompt"),
        ("a.txt", b"caf\xe9", "is not UTF-8"),
        ("a.jsonl", '{"prompt": "a"}\n{', "a.jsonl:2: this is not JSON"),
        ("a.jsonl", '{"text": "a"}', 'a.jsonl:1: expected a text under "prompt"'),
        ("a.jsonl", '"a"', 'a.jsonl:1: expected a text under "prompt"'),
    ],
)
def test_files_without_prompts(tmp_path: Path, name: str, text: str | bytes, words: str) -> None:
    with pytest.raises(SetpointError, match=words):
        read_prompts(written(tmp_path, name, text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SetpointError, match="none.txt cannot be read: No such file"):
        read_prompts(tmp_path / "none.txt")
