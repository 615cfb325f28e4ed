from __future__ import annotations

import pytest

from setpoint.cli.complete import sources
from setpoint.config.layers.presets import presets

from .conftest import CommandLine
from .repository import Repository
from .test_complete import complete
from .test_diff import record


def test_checkpoints_of_a_run_that_is_typed(cli: CommandLine) -> None:
    run = cli.folder / "runs" / "small-1"
    record(run, "small.toml")
    for name in ("step-00000100", "step-00000200.tmp-7"):
        (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / "latest").write_text("step-00000100\n")
    assert complete(cli, "show", "runs/") == ["runs/small-1"]
    assert complete(cli, "show", "runs/small-1/c") == [
        "runs/small-1/checkpoints/latest",
        "runs/small-1/checkpoints/step-00000100",
    ]


def test_revisions_and_what_is_in_them(
    cli: CommandLine, git: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("tag", "made")
    git.commit({"sub/exp.yaml": "{}"})
    assert complete(cli, "show", "ma") == ["main:", "made:"]
    found = complete(cli, "show", "made:")
    assert found == [*(f"made:{name}" for name in presets), "made:small.toml"]
    assert complete(cli, "diff", "main~1:small.toml", "main:s") == [
        "main:small.toml",
        "main:sub/exp.yaml",
    ]
    assert complete(cli, "show", "nosuch:") == []
    # As bash takes it apart.
    assert complete(cli, "show", "main", ":", "sub") == ["sub/exp.yaml"]
    assert complete(cli, "show", "main", ":")[0] == "tiny"
    monkeypatch.chdir(cli.folder / "sub")
    assert "main:exp.yaml" in list(sources("main:"))


def test_without_git_no_revisions_are_proposed(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete(cli, "show", "main:") == []
    monkeypatch.setenv("PATH", "")
    assert complete(cli, "show", "sm") == ["small.toml"]
