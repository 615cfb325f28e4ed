"""What SECURITY.md promises: nothing that is read runs code, and no secret is written."""

import ast
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .audit import audit
from .conftest import SourceFile
from .support.forks import forked

UNSAFE = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve",
}  # fmt: skip
"""Modules whose readers run code."""
CALLS = {"eval", "exec", "compile", "torch.load", "yaml.load", "os.system", "os.popen"}
LAST_OF_CALLS = {name.rpartition(".")[2] for name in CALLS}
SOCKETS = {"bind", "listen", "HTTPServer", "ThreadingHTTPServer", "TCPServer", "create_server"}

PIPES = "what this process's own children send through a pipe of theirs"
ALLOWED = {
    ("setpoint.data.loader", "pickle"): PIPES,
    ("setpoint.data.workers", "pickle"): PIPES,
    ("setpoint.ops.prometheus", "self.socket.bind"): "asked for, on loopback by default",
    ("setpoint.config.schema.field", "eval"): "annotations of classes, which are code already",
    ("setpoint.interop.checkpoints.safe_read", "pickle"): "an unpickler of a few known classes",
}
"""Modules with what they use, and why that reads nothing from others."""


def used(text: str, tree: ast.AST) -> Iterator[str]:
    """The unsafe modules and calls, and the sockets, of a module."""
    serves = any(
        name in text for name in ("import socket", "from socket", "import http", "asyncio")
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name.partition(".")[0] for a in node.names if a.name in UNSAFE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in UNSAFE:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            last = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if last in LAST_OF_CALLS or (serves and last in SOCKETS):
                name = ast.unparse(node.func)
                if any(ast.unparse(k) == "weights_only=True" for k in node.keywords):
                    continue  # torch's own unpickler of tensors
                if name in CALLS or last in SOCKETS:
                    yield name
            if any(
                k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords
            ):
                yield "allow_pickle"
            if any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords):
                yield "shell"


def test_no_module_reads_what_can_run_code_or_listens(source_files: dict[str, SourceFile]) -> None:
    found = {
        (module, name)
        for module, file in source_files.items()
        for name in used(file.text, file.tree)
    }
    assert found == ALLOWED.keys()


def test_the_check_sees_what_it_is_to_see() -> None:
    text = (
        "import pickle\nfrom dill import load\nimport torch\ntorch.load('a')\neval('1')\n"
        "import numpy as np\nnp.load('a', allow_pickle=True)\n"
        "import subprocess\nsubprocess.run('ls', shell=True)\n"
        "import socket\nserver.bind(('', 80))\n"
    )
    assert [*used(text, ast.parse(text))] == [
        "pickle", "dill", "torch.load", "eval", "allow_pickle", "shell", "server.bind",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("printed", "status", "said"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 packages were looked up"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}], 1,
         "a 1: PYSEC-1, mended in 2"),
        ([{"name": "a", "skip_reason": "not found"}], 3, "1 packages could not be looked up: a"),
        (None, 3, "nothing was audited: the advisory service did not answer: no route"),
    ],
)  # fmt: skip
def test_an_audit_that_could_not_look_is_not_taken_for_a_clean_one(
    tmp_path: Path, printed: object, status: int, said: str
) -> None:
    answer = "" if printed is None else json.dumps({"dependencies": printed})
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\necho '{answer}'\necho no route >&2\n")
    program.chmod(0o755)
    found, lines = audit([str(program)])
    assert (found, lines[0]) == (status, said)


def test_an_audit_without_its_program_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.audit.find_spec", lambda name: None)
    assert audit() == (
        3, ["nothing was audited: pip-audit is not installed; `make audit` does so"]
    )  # fmt: skip


SECRETS = {
    "HF_TOKEN": "hf_PlantedPlantedPlantedPlantedPlanted",
    "WANDB_API_KEY": "0123456789abcdefdeadbeef0123456789abcdef",
    "AWS_SECRET_ACCESS_KEY": "PlantedPlanted/PlantedPlanted+Planted123",
    "MY_PASSWORD": "correct-horse-battery",
}
LOGIN = "https://user:PlantedInAnAddress@example.com/x"

# Trains and resumes, and gives secrets where they do not belong.
PROGRAM = """
import json, sys

events = []
def hook(name, arguments):
    if name in ("pickle.find_class", "socket.bind", "socket.listen", "marshal.loads"):
        frame, seen = sys._getframe(1), []
        while frame is not None:
            seen.append(frame.f_globals.get("__name__", ""))
            frame = frame.f_back
        if not any(each.startswith(("importlib", "_frozen_importlib")) for each in seen):
            events.append([name, repr(arguments)[:200], seen[:6]])

from setpoint.cli.main import main
sys.addaudithook(hook)
job = ["job.toml"]
statuses = [
    main(["train", *job]),
    main(["train", *job, "--duration", "12 steps", "--accept", "schedule.horizon"]),
    main(["generate", *job, "--duration", "12 steps", "--prompt", "a", "--max-tokens", "2"]),
    main(["train", *job, "--user.address", ADDRESS]),
    main(["train", *job, "--duration", "12 steps", "--data.sources.0.path", ADDRESS]),
]
print(json.dumps({"events": events, "statuses": statuses}))
"""

JOB = """
name = "small"
duration = "6 steps"
checkpoint.every = "3 steps"
tracking.every = "1 steps"
tracking.trackers = ["jsonl", "csv"]
[model]
dim = 16
layers = 1
heads = 2
[data]
held_out = 0.2
sources = [{ type = "random", documents = 20, length = 100 }]
[batch]
micro_size = 2
sequence_length = 16
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder after some commands with secrets in the environment and in flags, umask 027."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "job.toml").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("ADDRESS", repr(LOGIN))],
        cwd=folder,
        env={**os.environ, **SECRETS},
        capture_output=True,
        text=True,
        timeout=120,
        umask=0o027,
        check=False,
    )
    return folder, done


@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_hostile_runs_are_data_to_every_command(tmp_path: Path, which: str) -> None:
    """They write nothing outside of themselves, take no memory, and are refused in words."""
    found = json.loads(forked("tests.support.hostile", str(tmp_path), which).splitlines()[-1])
    assert found["wrong"] == []
    assert found["traps"] >= 40 and found["commands"] >= (700 if which == "all" else 20)


def test_no_secret_is_written_or_shown(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = run
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 15
    places = {str(path): path.read_bytes() for path in files}
    places |= {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    for secret in (*SECRETS.values(), "PlantedInAnAddress"):
        assert [place for place, text in places.items() if secret.encode() in text] == []


def test_a_run_unpickles_nothing_and_listens_to_nobody(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = run
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["statuses"] == [0, 0, 0, 2, 2], done.stderr
    assert found["events"] == []


def test_files_have_the_rights_that_the_user_wants(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = run
    paths = [path for path in folder.rglob("*") if path.name not in ("job.toml", "__pycache__")]
    rights = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert {n: oct(r) for n, r in rights.items() if r not in (0o640, 0o750)} == {}
