"""The documentation builds as a site: every page in its navigation, every link and anchor there."""

import subprocess
import sys
from pathlib import Path

import pytest

from .fields import ROOT

pytestmark = pytest.mark.documentation


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "reference/commands/index.html").read_text()
    fields = (tmp_path / "reference/fields/index.html").read_text()
    python = (tmp_path / "reference/python/index.html").read_text()
    assert "setpoint evaluate SOURCE" in commands
    assert "Newton-Schulz iterations" in fields  # the help of one variant's field
    assert "TrainedModel.generate" in python
