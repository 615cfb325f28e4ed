"""What a SOURCE may be: presets, files, runs and code."""

import json
import shutil
from pathlib import Path

import pytest

from setpoint.checkpoint import folder, manifest
from setpoint.cli import source
from setpoint.cli.source import (
    CHECKPOINT,
    OTHER,
    REVISION,
    RUN,
    is_hugging_face_directory,
    is_revision,
    kind_of,
    split_revision,
)
from setpoint.config.record.record import recorded_fingerprint

from .conftest import CommandLine
from .test_diff import record


def shown(cli: CommandLine, line: str, key: str) -> str:
    """One value of a configuration."""
    first = cli.ok(f"why {key} {line}").splitlines()[0]
    return first.removeprefix(f"{key} = ")


def test_the_number_of_ranks_twice(cli: CommandLine) -> None:
    for override in ("--parallel.world-size 4", "parallel.world_size=2", "parallel={world_size=4}"):
        cli.refused(f"check small.toml {override} --world-size 2")
    run = record(cli.folder / "run", "small.toml", "--parallel.world_size=2")
    assert shown(cli, f"{run} --world-size 1", "parallel.world_size") == "1"


def test_a_preset_is_the_preset_whatever_lies_about(cli: CommandLine) -> None:
    expected = cli.ok("fingerprint tiny")
    (cli.folder / "tiny").mkdir()
    assert cli.ok("fingerprint tiny") == expected
    cli.refused("fingerprint ./tiny")
    cli.file("tiny/adapter_config.json", "{}")
    cli.refused("fingerprint ./tiny")
    shutil.rmtree(cli.folder / "tiny")
    cli.file("tiny", "a file")
    assert cli.ok("fingerprint tiny") == expected


def test_a_file_on_top_cannot_replace_the_source(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml")
    cli.file("preset.toml", 'extends = "tiny"\n')
    cli.file("file.toml", 'extends = "preset.toml"\n')
    for below in (run, "small.toml", "own:small", "tiny"):
        for name in ("preset.toml", "file.toml"):
            cli.refused(f"check {below} --file {name}")


def test_a_text_or_a_script_in_the_place_of_source(cli: CommandLine) -> None:
    cli.file("my text.txt", "a line of text\n" * 99)
    for command in ("train", "check"):
        said = cli.refused(f"{command} 'my text.txt'")
        typed = said.partition("a preset or file: setpoint ")[2].strip()
        assert typed.startswith(f"{command} tiny --data.sources ")
    cli.ok(typed)
    cli.refused("train own.py")
    cli.ok("check own:small")


def test_the_deletions_of_hydra_are_refused(cli: CommandLine) -> None:
    for line in ("small.toml ~evaluation", "small.toml ~evaluation=x"):
        cli.refused(f"check {line}")


def test_what_a_variable_of_the_environment_is_taken_for(cli: CommandLine) -> None:
    for text in ("${HOME}", "runs-${HOME}", "${oc.env:HOME}", "a-${env:HOME,b}"):
        cli.refused(f"check small.toml --name '{text}'")


FILES: dict[str, str | bytes] = {
    "broken.toml": "seed = 3\n[optimizer\nlr = 1\n",
    "twice.yaml": "seed: 3\noptimizer:\n  lr: 1\n  lr: 2\n",
    "misspelt.toml": "[optimizer]\nlearning_rate = 1\nwieght_decay = 0.1\n",
    "wrong_type.toml": '[model]\ndim = "big"\n[optimizer]\nlr = true\n[data]\nsources = 3\n',
    "variant.toml": '[optimizer]\ntype = "adam"\n[schedule]\ntype = "constant"\nfloor = 0.1\n',
    "item.toml": '[[data.sources]]\ntype = "random"\n\n[[data.sources]]\ntype = "txt"\n',
    "cycle.toml": '[model]\ndim = "${model.ffn_dim}"\nffn_dim = "${model.dim}"\n',
    "batch.toml": "[batch]\nglobal_size = 10\nmicro_size = 4\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_refused_with_its_place(cli: CommandLine, name: str) -> None:
    cli.file(name, FILES[name])
    cli.refused(f"train {name}")


def test_folders_and_other_files_are_refused(cli: CommandLine) -> None:
    (cli.folder / "folder").mkdir()
    (cli.folder / "folder.toml").mkdir()
    cli.file("notes.txt", "hello")
    lines = [
        "train folder", "train .", "train folder.toml", "train notes.txt",
        "check small.toml --file folder.toml", "check small.toml --file notes.txt",
        "check small.toml --file ''",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


def test_an_empty_file_is_the_defaults(cli: CommandLine) -> None:
    cli.file("empty.toml", "")
    answer = cli("fingerprint empty.toml")
    assert answer.out == cli.ok("fingerprint own:Job")
    assert (answer.status, answer.err) == (0, "note: empty.toml sets nothing\n")


def test_a_file_of_another_system_is_extended_with_its_origins(cli: CommandLine) -> None:
    """`DIALECT:FILE` stands wherever a whole file can be named, relative to what names it."""
    cli.file("there/job.toml", "[training]\nsteps = 10\nseq_len = 128\n[optimizer]\nlr = 1e-3\n")
    cli.file("here.toml", 'extends = "torchtitan:there/job.toml"\n[parallel]\ndevice = "cpu"\n')
    cli.file("section.toml", '[model]\nextends = "torchtitan:there/job.toml"\n')
    cli.file("absent.toml", 'extends = "torchtitan:absent_job.toml"\n')
    for words in ("here.toml", "tiny --file torchtitan:there/job.toml"):
        answer = cli(f"why optimizer.lr {words}")
        assert "there/job.toml:5:1" in answer.out, answer
        assert "note: there/job.toml (torchtitan's default" in answer.err
    cli.refused("check here.toml --strict")
    cli.refused("check absent.toml")
    cli.refused("check section.toml")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("main:tiny", ("main", "tiny")),
        ("main@{2026-01-01 10:30}:tiny", ("main@{2026-01-01 10:30}", "tiny")),
        ("HEAD^{/fix: this}:x.yaml", ("HEAD^{/fix: this}", "x.yaml")),
        ("v1:own:small", ("v1", "own:small")),
        ("tiny(name=a:b)", None),
        (":tiny", None),
        ("main:", None),
        ("", None),
    ],
)
def test_a_revision_and_its_source_are_split(source: str, expected: tuple[str, str] | None) -> None:
    assert split_revision(source) == expected


def test_modules_are_told_from_revisions(cli: CommandLine) -> None:
    (cli.folder / "main").mkdir()  # a folder of this name is not a module with functions in it
    (cli.folder / "package").mkdir()
    (cli.folder / "package" / "inner.py").write_text("")
    functions = ("own:small", "own:Job", "json:loads", "sys:exit", "package.inner:f")
    revisions = (
        "main:tiny", "nosuch:tiny", "HEAD:tiny", "v1.0:tiny", "feature/x:tiny", "HEAD~1:tiny",
        "own:small.toml", "own:a/b.json", "json:x.yaml", "C:\\dir\\x.toml", "heads/own:small",
        "3fa94c2:tiny", "nosuch.inner:f",
    )  # fmt: skip
    assert [word for word in functions if is_revision(word)] == []
    assert [word for word in revisions if not is_revision(word)] == []


def test_what_lies_in_the_folder(cli: CommandLine) -> None:
    for name in ("runs/a/checkpoints/step-00000001", "tiny", "main:x"):
        (cli.folder / name).mkdir(parents=True)
    (cli.folder / "runs/a/checkpoints/step-00000001/manifest.json").write_text("{}")
    (cli.folder / "step-2.toml").write_text("")
    (cli.folder / "b:c.toml").write_text("")
    found = {
        RUN: ["runs/a", "runs", ".", "main:x", "./tiny"],
        CHECKPOINT: [
            "runs/a/checkpoints/step-00000001", "runs/a/checkpoints/step-00000001/",
            "runs/a/checkpoints/latest", "runs/a/checkpoints/best", "runs/a/checkpoints/step-9",
        ],
        REVISION: ["main:tiny", "b:d.toml"],
        OTHER: ["small.toml", "nosuch.toml", "own:small", "b:c.toml", "./step-2.toml", "nosuch"],
    }  # fmt: skip
    import setpoint.presets  # noqa: F401 - registers tiny

    for expected, sources in found.items():
        assert [kind_of(source) for source in sources] == [expected] * len(sources), expected
    assert kind_of("tiny") == OTHER
    assert kind_of("tiny(x=a:b)") == OTHER


def test_the_names_are_those_of_checkpoints() -> None:
    # Repeated there, since every command decides what its SOURCE is.
    assert source.MANIFEST == manifest.MANIFEST
    assert source.POINTERS == folder.POINTERS


def test_a_model_of_hugging_face_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert is_hugging_face_directory(str(tmp_path))
    (tmp_path / "origins.json").write_text("{}")
    assert not is_hugging_face_directory(str(tmp_path))
    assert not is_hugging_face_directory("nowhere")


def differing(cli: CommandLine, line: str) -> dict[str, tuple[object, object]]:
    """What differs, with both values."""
    rows = json.loads(cli(f"diff {line} --json").out)
    return {row["path"]: (row.get("left"), row.get("right")) for row in rows}


def test_a_record_is_compared_as_it_was_written(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml")
    chains = json.loads((cli.folder / "run" / "origins.json").read_text())
    config = json.loads((cli.folder / "run" / "config.json").read_text())
    # As code of another time would have derived it, with a field that there is no longer.
    config["model"]["ffn_dim"] = chains["model.ffn_dim"]["value"] = 7
    config["gone"] = "x"
    chains["gone"] = dict(chains["seed"], value="x")
    config["setpoint"]["fingerprint"] = recorded_fingerprint(chains)
    (cli.folder / "run" / "origins.json").write_text(json.dumps(chains))
    (cli.folder / "run" / "config.json").write_text(json.dumps(config))
    found = differing(cli, f"{run} small.toml")
    assert set(found) == {"model.ffn_dim", "gone"}
    assert found["gone"] == ("x", None)
    assert set(differing(cli, f"small.toml {run}")) == set(found)


def test_what_is_changed_is_resolved_anew(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(cli.folder / "run", "small.toml")
    assert differing(cli, f"small.toml {run} --seed 5") == {"seed": (1234, 5)}
    cli.file("more.toml", "seed = 6\n")
    assert differing(cli, f"small.toml {run} --file more.toml") == {"seed": (1234, 6)}
    monkeypatch.setenv("SETPOINT__SEED", "7")
    assert differing(cli, f"small.toml {run}") == {"seed": (1234, 7)}
    # The first is what it is.
    assert differing(cli, f"{run} small.toml") == {"seed": (1234, 7)}


def test_classes_of_ones_own_need_not_be_there(cli: CommandLine) -> None:
    cli.file(
        "lost_module.py",
        "from setpoint.loss.config import LossConfig\n"
        "class Lost(LossConfig, type='lost_and_found'):\n"
        "    '''Mine.'''\n    weight: float = 1.0\n",
    )
    cli.ok("check tiny --import lost_module --loss lost_and_found")
    cli.file("mine.toml", "extends = 'tiny'\n[loss]\ntype = 'lost_and_found'\n")
    run = record(cli.folder / "run", "mine.toml")
    from setpoint.loss.config import LossConfig

    del LossConfig.__setpoint__.variants["lost_and_found"]
    assert differing(cli, f"tiny {run}")["loss.weight"] == (None, 1.0)
