"""The commands of examples/README.md, in a twentieth of their steps."""

import json
import re
import shutil
from pathlib import Path

import pytest

from .conftest import ROOT
from .docs.test_commands import blocks, run, shown_commands
from .support.forks import Forks

pytestmark = pytest.mark.documentation
PAGE = ROOT / "examples/README.md"
SECTIONS = re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SMALL = "SETPOINT__BATCH__SEQUENCE_LENGTH=64 SETPOINT__EVALUATION__SEQUENCES=8"
LEFT_BY = {
    "A chat fine-tune with LoRA, and its export": "chat-hf/config.json",
    "A sweep with a plot": "rates.svg",
}
"""Files that commands of a section are to leave behind."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples")
    for name in ("examples", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("runs", "*.jsonl"))
    for name in ("README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, root / name)
    for path in (root / "examples").glob("*.*"):
        if path.suffix in (".toml", ".py"):
            path.write_text(shortened(path.read_text()))
    return root / "examples"


def shortened(text: str) -> str:
    return re.sub(
        r"(\d+) steps|--until (\d+)",
        lambda match: re.sub(r"\d+", lambda n: str(max(1, int(n[0]) // 20)), match[0]),
        text,
    )


@pytest.mark.parametrize(("name", "text"), SECTIONS, ids=[name for name, _ in SECTIONS])
def test_the_commands_run(name: str, text: str, folder: Path, forks: Forks) -> None:
    if name.startswith("A chat") and not list(folder.glob("runs/own-text-*")):
        test_the_commands_run("Your own text", dict(SECTIONS)["Your own text"], folder, forks)
    shown = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown
    for command, status, _ in shown_commands("".join(shown)):
        done = run(f"{SMALL} {shortened(command)}", folder, forks)
        assert done.returncode == status, f"{command}\n{done.stdout}"
    if name in LEFT_BY:
        assert (folder / LEFT_BY[name]).is_file()


def test_every_file_is_shown() -> None:
    names = {path.name for path in PAGE.parent.iterdir() if path.is_file()} - {PAGE.name}
    assert {name for name in names if name not in PAGE.read_text()} <= {"own_model.toml"}
    assert not blocks(PAGE, "python")


def test_the_notebook_runs(tmp_path: Path, forks: Forks) -> None:
    cells = json.loads((PAGE.parent / "notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = tmp_path / "notebook.py"
    script.write_text(shortened("\n".join(code)))
    status, output = forks.run([str(script)], tmp_path)
    assert status == 0, output
    assert "Did you mean optimizer.lr?" in output
