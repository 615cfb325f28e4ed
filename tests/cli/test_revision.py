"""Sources at a git revision, `REVISION:SOURCE`."""

import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from setpoint.cli import revision
from setpoint.cli import revision as calls
from setpoint.config import SetpointError

from .conftest import CommandLine
from .repository import Repository
from .test_source import shown


def change(path: Path, old: str, new: str) -> None:
    """Replace a piece of a file that is there once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is not there once"
    path.write_text(text.replace(old, new))


def test_a_file_at_a_revision(cli: CommandLine, git: Repository) -> None:
    git("tag", "v1.0")
    text = (cli.folder / "small.toml").read_text()
    git.commit({"small.toml": text.replace("lr = 0.01", "lr = 0.02"), "note.txt": "x"})
    commit = git("rev-parse", "--short=7", "v1.0")
    answer = cli("diff HEAD~1:small.toml small.toml")
    assert (answer.status, answer.err) == (1, "")
    assert answer.out.splitlines() == [
        "optimizer.lr  (identity)",
        f"  HEAD~1:small.toml  0.01  small.toml:15:1 at {commit}",
        "  small.toml         0.02  small.toml:15:1",
    ]
    for name in ("v1.0", commit, "HEAD^{/x}~1"):
        assert shown(cli, f"'{name}:small.toml'", "optimizer.lr") == "0.01"
    assert cli.ok("diff main:small.toml small.toml").startswith("no differences")


def test_extends_is_resolved_inside_the_revision(cli: CommandLine, git: Repository) -> None:
    git.commit({"sub/base.toml": "seed = 1\n", "sub/top.yaml": "extends: [base.toml, ../a.json]\n",
                "a.json": '{"name": "old"}'})  # fmt: skip
    git.commit({"sub/base.toml": "seed = 2\n"})
    assert shown(cli, "HEAD~1:sub/top.yaml", "seed") == "1"
    assert shown(cli, "HEAD:sub/top.yaml", "seed") == "2"
    (cli.folder / "sub" / "base.toml").unlink()
    assert shown(cli, "HEAD~1:sub/top.yaml", "name") == "'old'"


def test_from_a_folder_below(
    cli: CommandLine, git: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    git.commit({"sub/exp.toml": "seed = 7\n", "exp.toml": "seed = 8\n", "top.toml": "seed = 9\n"})
    monkeypatch.chdir(cli.folder / "sub")
    assert shown(cli, "HEAD:exp.toml", "seed") == "7"
    assert shown(cli, "HEAD:../exp.toml", "seed") == "8"
    assert shown(cli, "HEAD:top.toml", "seed") == "9"  # as git itself reads it


def test_a_preset_is_made_by_the_code_of_its_revision(cli: CommandLine, git: Repository) -> None:
    package = git.add_setpoint()
    root = package / "train" / "config.py"
    last = "    user: Free ="
    change(root, last, f'    retired: int = 3\n    """Gone since."""\n\n{last}')
    change(package / "presets" / "tiny.py", 'name="tiny"', 'name="older"')
    git.commit()
    change(package / "presets" / "tiny.py", 'name="older"', 'name="newer"')
    git.commit()
    before = git.state()
    answer = cli("diff HEAD~1:tiny HEAD:tiny tiny --json")
    assert (answer.status, answer.err) == (1, "")
    found = {row["path"]: row["sides"] for row in json.loads(answer.out)}
    assert [side.get("value") for side in found["name"]] == ["older", "newer", "tiny"]
    assert "setpoint/presets/tiny.py:" in found["name"][0]["origin"]
    assert found["name"][0]["origin"].endswith(f" at {git('rev-parse', '--short=7', 'HEAD~1')}")
    # A field that no longer exists can still be compared.
    assert [side.get("value", "absent") for side in found["retired"]] == [3, 3, "absent"]
    assert set(found) == {"name", "retired"}
    # But it is not a configuration of today, and says so without a word of where it was written to.
    refused = cli.refused("show HEAD:tiny")
    assert "unknown key: Job has no field 'retired'" in refused
    assert "HEAD:tiny/config.json" in refused
    assert tempfile.gettempdir() + "/setpoint-" not in refused
    assert git.state() == before


def test_ones_own_code_at_a_revision(cli: CommandLine, git: Repository) -> None:
    change(cli.folder / "own.py", "lr=0.02", "lr=0.03")
    assert shown(cli, "own:small", "optimizer.lr") == "0.03"
    assert shown(cli, "HEAD:own:small", "optimizer.lr") == "0.02"
    module = (
        "from setpoint.config import preset\n"
        "from setpoint.train.config import Job\n"
        "@preset\ndef my_own():\n    return Job(seed=5)\n"
    )
    git.commit({"revision_module.py": module})
    change(cli.folder / "revision_module.py", "seed=5", "seed=6")
    assert shown(cli, "my-own --import revision_module", "seed") == "6"
    assert shown(cli, "HEAD:my-own --import revision_module", "seed") == "5"


def test_a_run_that_is_under_version_control(cli: CommandLine, git: Repository) -> None:
    from .test_diff import record

    record(cli.folder / "runs" / "a", "small.toml", "--optimizer.lr=0.5")
    git.commit()
    (cli.folder / "runs" / "a" / "config.json").unlink()
    assert shown(cli, "HEAD:runs/a", "optimizer.lr") == "0.5"


def test_wrong_revisions_and_files_are_refused(cli: CommandLine, git: Repository) -> None:
    git("branch", "feature/warm-up")
    git.commit({"exp/first.toml": "seed = 1\n", "bad.toml": "sede = 1\n", "broken.toml": "a = \n",
                "fails.py": "def f():\n    raise ValueError('no luck')\n",
                "lost.toml": "extends = '../../outside.toml'\n"})  # fmt: skip
    lines = [
        "show nosuch:small.toml", "show feature/warmup:small.toml", "show HEAD:smal.toml",
        "show HEAD:first.toml", "diff HEAD:bad.toml small.toml",
        "diff HEAD:broken.toml small.toml", "diff HEAD:lost.toml small.toml",
        "diff HEAD:fails:f small.toml", "show --output=x:small.toml", "show HEAD:tinny",
        "show HEAD:own.py",
    ]  # fmt: skip
    for line in lines:
        assert tempfile.gettempdir() + "/setpoint-" not in cli.refused(line)


def test_no_path_leads_out_of_the_revision(cli: CommandLine, git: Repository) -> None:
    outside = cli.folder.parent / f"{cli.folder.name}-outside.toml"
    outside.write_text("seed = 3\n")
    for path in (str(outside), f"../{outside.name}", "../../../../../../../../etc/hosts.toml"):
        cli.refused(f"show HEAD:{path}")


def test_outside_of_a_repository(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.refused("show HEAD:small.toml")
    cli.refused("evaluate s3://bucket/runs/tiny")
    gone = cli.folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    cli.refused("show HEAD:small.toml")


def test_code_that_does_not_end(
    cli: CommandLine, git: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision, "TIMEOUT", 3.0)
    module = (
        "import os, time\nopen(os.environ['NOTE'], 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    git.commit({"slow.py": module})
    note = cli.folder.parent / f"{cli.folder.name}-pid"
    monkeypatch.setenv("NOTE", str(note))
    began = time.monotonic()
    cli.refused("show HEAD:slow:f")
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), signal.SIGCONT)


def test_nothing_is_left_behind_or_changed(
    cli: CommandLine, git: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = cli.folder.parent / f"{cli.folder.name}-scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    cli.file("small.toml", "seed = 3\n")
    cli.file("new.toml", "seed = 4\n")
    git("add", "small.toml")
    before = git.state()
    cli.ok("show HEAD:small.toml")
    cli.refused("show HEAD:nosuch.toml")
    cli.refused("show HEAD:own:not_a_job")
    assert git.state() == before
    assert list(scratch.iterdir()) == []
    assert not list(cli.folder.rglob("__pycache__"))


def test_links_that_lead_outside_are_left_out(cli: CommandLine, git: Repository) -> None:
    secret = cli.folder.parent / f"{cli.folder.name}-secret.toml"
    secret.write_text("seed = 99\n")
    (cli.folder / "link.toml").symlink_to(secret)
    (cli.folder / "good.toml").symlink_to("small.toml")
    git.commit()
    cli.refused("show HEAD:link.toml")
    assert shown(cli, "HEAD:good.toml", "optimizer.lr") == "0.01"


def test_branches_tags_and_files_are_found(cli: CommandLine, git: Repository) -> None:
    git("tag", "-a", "v1", "-m", "x")
    commit = git.commit({"ä/b c.toml": "", "new\nline.toml": ""})
    here = str(cli.folder)
    assert calls.repository_of(str(cli.folder / "ä")) == here
    assert calls.branches_and_tags(here) == ["main", "v1"]
    assert calls.commit_of(here, "main") == commit
    assert calls.commit_of(here, "v1") == git("rev-parse", "HEAD~1")
    assert set(calls.files_at(here, commit)) == {
        "small.toml", "own.py", "ä/b c.toml", "new\nline.toml",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["--help", "nosuch", "a\0b", "HEAD:small.toml", ""])
def test_names_without_a_commit_are_none(cli: CommandLine, git: Repository, name: str) -> None:
    assert calls.commit_of(str(cli.folder), name) is None


def test_a_repository_that_git_refuses(cli: CommandLine, git: Repository) -> None:
    (cli.folder / ".git" / "config").write_text("[core\n")
    with pytest.raises(SetpointError, match="git cannot read the repository of .*bad config"):
        calls.repository_of(str(cli.folder))


def test_a_commit_whose_files_are_lost(cli: CommandLine, git: Repository) -> None:
    commit = git("rev-parse", "HEAD")
    for path in (cli.folder / ".git" / "objects").rglob("*"):
        if path.is_file() and path.parent.name + path.name != commit:
            path.unlink()
    (cli.folder / "out").mkdir()
    for call in (
        lambda: calls.extract(str(cli.folder), commit, str(cli.folder / "out")),
        lambda: calls.files_at(str(cli.folder), commit),
    ):
        with pytest.raises(SetpointError, match="git cannot"):
            call()
    assert not (cli.folder / "out.tar").exists()
