"""What must start fast imports little: neither torch nor anything the core can do without.

Each case runs in a process of its own, since the test process has imported everything already.
The budget counts modules, which are the same on every machine, and no time, which is not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

HEAVY = (
    "torch", "numpy", "safetensors", "rich", "ruamel", "yaml", "pydantic", "jsonschema", "tyro",
)  # fmt: skip
# The standard library has heavy parts as well; each costs a fast command a tenth of its time.
SLOW = (
    "argparse", "ast", "asyncio", "concurrent", "ctypes", "dataclasses", "decimal", "difflib",
    "email", "http", "inspect", "logging", "multiprocessing", "pdb", "pickle", "random", "shutil",
    "socket", "ssl", "subprocess", "tempfile", "unittest", "uuid", "xml", "zipfile",
)  # fmt: skip
# Modules of the packages below that need torch when they are imported, and why.
NEEDS_TORCH: dict[str, str] = {
    "setpoint.plan.dry_run": "takes the step of training",
    "setpoint.plan.meter": "sees operators",
}

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

# Runs commands as the console script does and prints after which ones heavy packages were there.
COMMANDS = """
import json, shlex, sys
heavy, lines = json.loads(sys.argv[1])
from setpoint.cli.main import main
found = {}
for line in lines:
    try:
        status = main(shlex.split(line))
    except SystemExit as end:
        status = end.code
    if status:
        found[f"status {status}"] = line
    for name in heavy:
        if name in sys.modules:
            found.setdefault(name, line)
print()
print(json.dumps(found))
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


def test_imports_are_light() -> None:
    patterns = (
        "setpoint/__init__.py", "setpoint/config/**/*.py", "setpoint/*/config.py",
        "setpoint/presets/**/*.py", "setpoint/plan/**/*.py", "setpoint/cli/main.py",
    )  # fmt: skip
    modules = [module for pattern in patterns for module in modules_in(pattern)]
    assert run(IMPORT, HEAVY, modules) == {}


def test_commands_are_light() -> None:
    """Those that have no budget below."""
    lines = (
        "train --help", "check tiny --optimizer.no_decay_patterns=[norm]", "why optimizer.lr tiny",
        "list", "schema", "sweep tiny --seed 1,2 --dry-run", "compare tiny",
        "schedule tiny --every 100",
    )  # fmt: skip
    assert run(COMMANDS, HEAVY, lines) == {}


def test_preparing_needs_no_torch(tmp_path: Path) -> None:
    line = f"data prepare tiny --data.sources.0 random -o {tmp_path}"
    assert run(COMMANDS, ["torch"], [line]) == {}
    assert list(tmp_path.glob("*/manifest.json"))


# Runs a command and prints which modules it imported, each with the one that asked for it first.
# Python itself has imported some before; those are not counted.
TRACE = """
import sys
before = set(sys.modules)
importer = {}

class Watch:
    def find_spec(name, path=None, target=None):
        frame = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        importer.setdefault(name, frame.f_globals.get("__name__", "?") if frame else "?")

sys.meta_path.insert(0, Watch)
words = sys.argv[1:]
sys.argv = ["setpoint", *words]
status = 0
if words:
    from setpoint.cli.main import main
    try:
        status = main()
    except SystemExit as end:
        status = end.code
else:
    import setpoint
found = {name: importer.get(name, "?") for name in sys.modules if name not in before}
import json
print()
print(json.dumps({"status": status or 0, "found": found}))
"""
OVERRIDES = (
    "--optimizer.lr 2e-3 --optimizer.weight_decay 0.05 --model.dim=256 --model.layers 6 "
    "batch.global_size=32 --duration=500 --schedule.floor 0.05 --precision.compute fp32 "
    "--evaluation.every 50 --checkpoint.keep 5"
)
# The most modules that each command may import. To raise one is a decision: every module costs
# from a tenth of a millisecond to several, each time that anybody types the command.
BUDGETS = {
    "": 33, "--help": 44, f"check tiny {OVERRIDES}": 193, "check exp.toml": 200, "show tiny": 181,
    "diff tiny exp.toml": 197, "fingerprint tiny": 187, "__complete 2 check --opt": 187,
}  # fmt: skip
# What a slow part is needed for where it is allowed.
NEEDED = {("diff", "ast"): "the line of a preset that sets a value is looked up in its source"}


def chain(found: dict[str, str], name: str) -> str:
    """How a module came to be imported: from whoever asked for it up to the command."""
    names = [name]
    while found.get(names[-1]) in found and found[names[-1]] not in names:
        names.append(found[names[-1]])
    return " <- ".join(names)


def traced(words: str, folder: Path) -> dict[str, str]:
    """The modules that a command imports, each with the one that asked for it first."""
    (folder / "exp.toml").write_text('extends = "tiny"\n[optimizer]\nlr = 2e-3\n')
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SETPOINT__")}
    done = subprocess.run(
        [sys.executable, "-c", TRACE, *words.split()],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["status"] in (0, 1), done.stderr
    return answer["found"]


@pytest.mark.parametrize("words", BUDGETS)
def test_budget_of_imports(words: str, tmp_path: Path) -> None:
    found = traced(words, tmp_path)
    slow = [name for name in found if name.partition(".")[0] in (*HEAVY, *SLOW)]
    forbidden = [name for name in slow if (words.partition(" ")[0], name) not in NEEDED]
    assert not forbidden, "imported by a command that must be fast:\n" + "\n".join(
        chain(found, name) for name in forbidden
    )
    ours = sorted(name for name in found if name.partition(".")[0] == "setpoint")
    others = [chain(found, name) for name in found if name not in ours]
    assert len(found) <= BUDGETS[words], (
        f"`setpoint {words}` imports {len(found)} modules; its budget is {BUDGETS[words]}.\n"
        f"Of Setpoint: {', '.join(ours)}\n" + "\n".join(others)
    )


# Ends with what a whole run has loaded of what takes as long as torch itself.
TRAINED = """
import gc, json, sys
from setpoint.cli.main import main
status = main(["train", *sys.argv[1:]])
found = [name for name in UNWANTED if name in sys.modules]
print(json.dumps([status, gc.get_freeze_count(), found]))
"""
UNWANTED = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "numpy.ma")


def test_a_run_that_compiles_nothing_loads_no_compiler(tmp_path: Path) -> None:
    small = ["--with", "smoke(steps=2)", "--model.dim", "16", "--model.layers", "1"]
    words = ["tiny", *small, "--tracking.progress", "none", "--parallel.device", "cpu"]
    program = f"UNWANTED = {UNWANTED}\n{TRAINED}"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=tmp_path
    )
    status, frozen, found = json.loads(done.stdout.splitlines()[-1])
    assert (status, found) == (0, []), done.stderr
    assert frozen > 100_000  # what torch has left is not searched for garbage again


def test_the_test_sees_heavy_imports() -> None:
    assert run(IMPORT, ["decimal"], ["json", "decimal"]) == {"decimal": "decimal"}
