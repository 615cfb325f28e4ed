"""What must start fast imports nothing heavy: neither torch nor anything the core can do without.

Each case runs in a process of its own, since the test process has imported everything already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

HEAVY = (
    "torch",
    "numpy",
    "safetensors",
    "rich",
    "ruamel",
    "yaml",
    "pydantic",
    "jsonschema",
    "tyro",
)
# Modules of the packages below that need torch when they are imported, and why.
NEEDS_TORCH: dict[str, str] = {}

# Imports modules one after the other and prints which heavy packages were there after which.
IMPORT = """
import importlib, json, sys
heavy, modules = json.loads(sys.argv[1])
found = {}
for module in modules:
    importlib.import_module(module)
    for name in heavy:
        if name in sys.modules:
            found.setdefault(name, module)
print(json.dumps(found))
"""

# Runs one command as the console script does and prints which heavy packages it left behind.
COMMAND = """
import json, sys
heavy, words = json.loads(sys.argv[1])
sys.argv = ["setpoint", *words]
from setpoint.cli.main import main
try:
    status = main()
except SystemExit as end:
    status = end.code
print()
print(json.dumps({"status": status or 0, "found": [n for n in heavy if n in sys.modules]}))
"""


def run(program: str, *argument: object) -> dict[str, object]:
    """The last line that a program prints, read as JSON."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SETPOINT__")}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(argument)],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def modules_in(pattern: str) -> list[str]:
    """The modules whose files match a pattern under `src`, by name."""
    names = (path.relative_to(SOURCE).with_suffix("") for path in sorted(SOURCE.glob(pattern)))
    modules = [".".join(name.parts).removesuffix(".__init__") for name in names]
    return [module for module in modules if module not in NEEDS_TORCH]


@pytest.mark.parametrize(
    "pattern",
    [
        "setpoint/__init__.py",
        "setpoint/config/**/*.py",
        "setpoint/*/config.py",
        "setpoint/presets/**/*.py",
        "setpoint/plan/**/*.py",
        "setpoint/cli/main.py",
    ],
)
def test_import_is_light(pattern: str) -> None:
    modules = modules_in(pattern)
    if not modules:
        pytest.skip(f"nothing matches {pattern}")
    found = run(IMPORT, HEAVY, modules)
    assert not found, f"imported by: {found}"


def test_exceptions_exist() -> None:
    for module, reason in NEEDS_TORCH.items():
        assert (SOURCE / f"{module.replace('.', '/')}.py").is_file(), module
        assert reason, module


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "train --help",
        "check tiny optimizer.lr=1e-3 --model.dim 96 --model.layers=2",
        "show tiny",
        "why optimizer.lr tiny",
        "diff tiny tiny",
        "list",
        "fingerprint tiny",
    ],
)
def test_command_is_light(words: str) -> None:
    if not (SOURCE / "setpoint/cli/main.py").is_file():
        pytest.skip("there is no command line")
    assert run(COMMAND, HEAVY, words.split()) == {"status": 0, "found": []}


def test_the_test_sees_heavy_imports() -> None:
    assert run(IMPORT, ["decimal"], ["json", "decimal"]) == {"decimal": "decimal"}
