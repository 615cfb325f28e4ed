"""Git repositories made for the tests, also ones that hold Setpoint's own sources."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import setpoint

PACKAGE = Path(setpoint.__file__).parent
IDENTITY = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


class Repository:
    """A git repository.

    Arguments:
        folder: its top folder, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self("init", "-q", "-b", "main", ".")

    def __call__(self, *words: str) -> str:
        """Run git; what it prints."""
        done = subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env={**os.environ, **IDENTITY},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str] | None = None, message: str = "x") -> str:
        """Write files and commit everything; the hash."""
        for name, text in (files or {}).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self("add", "-A")
        self("commit", "-q", "--allow-empty", "-m", message)
        return self("rev-parse", "HEAD")

    def state(self) -> tuple[str, bytes]:
        """What nobody may change: the status, and the index byte for byte."""
        return self("status", "--porcelain"), (self.folder / ".git" / "index").read_bytes()

    def add_setpoint(self) -> Path:
        """Copy Setpoint's sources of today into `src`; the package's folder there."""
        target = self.folder / "src" / "setpoint"
        shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
        return target
