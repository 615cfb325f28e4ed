"""Plugins of installed packages, found through their entry points."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = '''
import sys
from setpoint.config import Config, field, preset, modifier
from setpoint.config.schema.class_info import add_section
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job
from setpoint.optim.config import OptimizerConfig

class Lab(Config):
    level: int = 1

add_section(Job, "lab", Lab)

class Sloth(OptimizerConfig, type="sloth"):
    naps: int = 3

@preset
def sloth(naps: int = 2) -> Job:
    """A lab preset."""
    job = tiny()
    job.optimizer = Sloth(naps=naps)
    return job

@modifier
def napping(job: Job, naps: int) -> Job:
    """More naps."""
    job.optimizer = Sloth(naps=naps)
    return job
'''


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with an installed package that brings a plugin."""
    (tmp_path / "lab_plugin.py").write_text(PLUGIN)
    info = tmp_path / "lab_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[setpoint.plugins]\nlab = lab_plugin\n")
    return tmp_path


COMMANDS = """
import shlex, sys
from setpoint.cli.main import main
sys.exit(max([main(shlex.split(line)) for line in sys.argv[1:]]))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python beside the package; with `-c` and COMMANDS, lines of `setpoint` in one process."""
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=folder, check=False, timeout=60
    )


def test_everything_it_brings_is_found(installed: Path) -> None:
    (installed / "exp.toml").write_text('extends = "tiny"\n[lab]\nlevel = 7\n')
    lines = ["show tiny --with napping(naps=4) --minimal", "why lab.level exp.toml", "list"]
    done = run(installed, COMMANDS, "show sloth(naps=2) --minimal", *lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('type = "sloth"') == 2
    assert "naps = 2" in done.stdout and "naps = 4" in done.stdout
    assert "lab.level = 7" in done.stdout and "napping" in done.stdout


def test_records_know_what_is_installed(installed: Path) -> None:
    program = (
        "from setpoint.config.composition import compose\n"
        "from setpoint.config.record.record import record_files\n"
        "from setpoint.train.config import Job\n"
        "import os\n"
        "os.mkdir('run')\n"
        "config = compose(Job, 'sloth', flags=['--lab.level=3']).resolve()\n"
        "for name, text in record_files(config).items():\n"
        "    open(f'run/{name}', 'w').write(text)\n"
    )
    assert run(installed, program).returncode == 0
    done = run(installed, COMMANDS, "show run --minimal", "diff run tiny")
    assert done.returncode == 1 and done.stdout.count("sloth") > 1, done.stderr
    (installed / "lab_plugin.py").write_text("import nowhere_to_be_found")
    done = run(installed, COMMANDS, "show run")
    assert done.returncode == 2 and "nowhere_to_be_found" in done.stderr


def test_it_is_not_imported_where_nothing_asks_for_it(installed: Path) -> None:
    (installed / "lab_plugin.py").write_text("raise SystemExit('imported')")
    assert run(installed, COMMANDS, "check tiny").returncode == 0


def test_a_broken_plugin_is_named_and_hides_only_itself_from_a_list(installed: Path) -> None:
    (installed / "lab_plugin.py").write_text("import nowhere_to_be_found")
    done = run(installed, COMMANDS, "list presets", "check tiny --optimizer sloth")
    assert done.returncode == 2 and "tiny" in done.stdout
    assert "warning: the plugin 'lab' of lab-plugin" in done.stderr
    assert done.stderr.count("the plugin 'lab' of lab-plugin") == 2
    assert "nowhere_to_be_found" in done.stderr
