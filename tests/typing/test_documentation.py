"""What readers copy first passes the type checkers: of each page the first example of Setpoint."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..docs.test_commands import DOCS, PAGES, ROOT, blocks, file_name

FOREIGN = DOCS / "coming-from"
# What mypy knows of Setpoint is kept from one run of the tests to the next.
CACHE = ROOT / ".pytest_cache" / "mypy"


def first_examples() -> dict[str, str]:
    """The first example of each page that uses Setpoint, under a name for its file.

    Pages for users of other systems share the script of their README; what else they show of
    Python are mistakes.
    """
    found: dict[str, str] = {}
    for page in (page for page in PAGES if page.parent != FOREIGN or page.stem == "README"):
        text = next((text for text in blocks(page, "python") if "setpoint" in text), None)
        if text is not None:
            path = page.relative_to(ROOT).with_suffix("")
            found[re.sub(r"\W", "_", str(path)).lower()] = text
    return found


def write(examples: dict[str, str], folder: Path) -> None:
    for name, text in examples.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    for text in blocks(FOREIGN / "README.md", "python"):
        if named := file_name(text):
            (folder / named).write_text(text, encoding="utf-8")


def pyright(folder: Path) -> list[str]:
    settings = {
        "include": ["."],
        "exclude": ["fit.py"],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "--outputjson",
            "--pythonpath",
            sys.executable,
            "-p",
            str(folder),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 10, done.stdout
    return [f"{item['file']}: {item['message']}" for item in report["generalDiagnostics"]]


def mypy(folder: Path) -> list[str]:
    # What these packages say of types costs half a minute; their names are not checked then.
    heavy = ("torch", "transformers", "numpy")
    settings = folder / "mypy.ini"
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in heavy)
    settings.write_text(f"[mypy]\n{skipped}")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--follow-imports=silent",
            "--python-version=3.11",
            f"--config-file={settings}",
            f"--cache-dir={CACHE}",
            *sorted(str(path) for path in folder.glob("*.py") if path.name != "fit.py"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return re.findall(r"^.*: error:.*$", done.stdout, re.MULTILINE)


CHECKERS = [
    pytest.param(pyright, marks=pytest.mark.documentation),
    pytest.param(mypy, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("checker", CHECKERS)
def test_first_examples_are_typed(checker: Callable[[Path], list[str]], tmp_path: Path) -> None:
    examples = first_examples()
    assert len(examples) > 15
    write(examples, tmp_path)
    assert checker(tmp_path) == []
