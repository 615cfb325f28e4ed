"""Type checkers see what a user's project gets wrong, and nothing else; examples of pages pass."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..docs.test_commands import DOCS, PAGES, ROOT, blocks, file_name

SAMPLE = Path(__file__).with_name("sample.py")
LINES = SAMPLE.read_text(encoding="utf-8").splitlines()
MISTAKES = {number for number, line in enumerate(LINES, start=1) if "  # MISTAKE:" in line}
# Before Python 3.13 checkers make no `__replace__` from the fields of a class, and see less of
# `evolve`: pyright nothing in classes with required fields, mypy nothing at all.
EVOLVE = {number for number in MISTAKES if ".evolve(" in LINES[number - 1]}
REQUIRED = {number for number in EVOLVE if "required field" in LINES[number - 1]}
FOREIGN = DOCS / "coming-from"
Checker = Callable[[Path, str, bool], list[tuple[str, int]]]


def pyright(folder: Path, version: str, strict: bool) -> list[tuple[str, int]]:
    """The errors in the files of a folder, by name and line."""
    settings = {
        "include": ["."],
        "exclude": ["fit.py"],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict" if strict else "standard",
        "pythonVersion": version,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ["-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = _run(words, folder)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(_checked(folder)), done.stdout
    return [
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1)
        for item in report["generalDiagnostics"]
    ]


def mypy(folder: Path, version: str, strict: bool) -> list[tuple[str, int]]:
    """The errors in the files of a folder, by name and line."""
    settings = folder / "mypy.ini"
    # What these packages say of types costs half a minute; their names are not checked then.
    names = ("torch", "transformers", "numpy")
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in names)
    settings.write_text(f"[mypy]\n{skipped}")
    # What mypy knows of Setpoint is kept from one run of the tests to the next.
    cache = ROOT / ".pytest_cache" / ("mypy-strict" if strict else "mypy")
    words = ["-m", "mypy", "--follow-imports=silent", f"--python-version={version}"]
    words += ["--strict"] * strict + [f"--config-file={settings}", f"--cache-dir={cache}"]
    done = _run([*words, *map(str, _checked(folder))], folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.*?):(\d+): error:", done.stdout, re.MULTILINE)
    return [(Path(name).name, int(line)) for name, line in found]


def _checked(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if path.name != "fit.py")


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    env = env if "mypy" in words else None
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def mistakes(checker: Checker, folder: Path, version: str) -> set[int]:
    """The lines of the sample in which a checker in strict mode finds an error."""
    (folder / "sample.py").write_text(SAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    return {line for _, line in checker(folder, version, True)}


@pytest.mark.parametrize("checker", [pyright, pytest.param(mypy, marks=pytest.mark.documentation)])
def test_exactly_the_planted_mistakes_are_found(checker: Checker, tmp_path: Path) -> None:
    assert (len(MISTAKES), len(EVOLVE), len(REQUIRED)) == (24, 3, 1)
    assert mistakes(checker, tmp_path, "3.13") == MISTAKES


@pytest.mark.slow
def test_what_older_versions_see(tmp_path: Path) -> None:
    assert mistakes(pyright, tmp_path, "3.11") == MISTAKES - REQUIRED
    assert mistakes(mypy, tmp_path, "3.11") == MISTAKES - EVOLVE


def write_first_examples(folder: Path) -> None:
    """Write the first example of each page that uses Setpoint, which readers copy first.

    Pages for users of other systems share the script of their README; what else they show of
    Python are mistakes.
    """
    for page in (page for page in PAGES if page.parent != FOREIGN or page.stem == "README"):
        text = next((text for text in blocks(page, "python") if "setpoint" in text), None)
        if text is not None:
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix(""))).lower()
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
    for text in blocks(FOREIGN / "README.md", "python"):
        if named := file_name(text):
            (folder / named).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "checker",
    [
        pytest.param(pyright, marks=pytest.mark.documentation),
        pytest.param(mypy, marks=pytest.mark.slow),
    ],
)
def test_first_examples_are_typed(checker: Checker, tmp_path: Path) -> None:
    write_first_examples(tmp_path)
    assert len(_checked(tmp_path)) > 15
    assert checker(tmp_path, "3.11", False) == []
