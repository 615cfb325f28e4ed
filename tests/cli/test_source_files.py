from __future__ import annotations

from collections.abc import Callable

import pytest

from ..support.snapshots import compare
from .conftest import CommandLine

FILES: dict[str, str | bytes] = {
    "broken.toml": "seed = 3\n[optimizer\nlr = 1\n",
    "broken.yaml": "seed: 3\noptimizer: {lr: 1\n",
    "broken.json": '{"seed": 3,\n "optimizer": {"lr": }}',
    "twice.toml": "seed = 3\n[model]\ndim = 1\ndim = 2\n",
    "twice.yaml": "seed: 3\noptimizer:\n  lr: 1\n  lr: 2\n",
    "twice.json": '{"seed": 3,\n "seed": 4}',
    "latin.toml": b'seed = 1\nname = "caf\xe9"\n',
    "latin.yaml": b"seed: 1\nname: caf\xe9\n",
    "latin.json": b'{"seed": 1,\n "name": "caf\xe9"}',
    "list.yaml": "- 1\n- 2\n",
    "list.json": "[1, 2]",
    "tab.yaml": "optimizer:\n\tlr: 1\n",
    "tag.yaml": "seed: !!python/object/apply:os.system [ls]\n",
    "misspelt.toml": "[optimizer]\nlearning_rate = 1\nwieght_decay = 0.1\n",
    "misspelt.yaml": "optimiser:\n  lr: 1\n",
    "misspelt.json": '{"optimizer":\n  {"lrr": 1}}',
    "misplaced.toml": "[model]\nlr = 1\nsequence_length = 3\n",
    "wrong_type.toml": '[model]\ndim = "big"\n[optimizer]\nlr = true\n[data]\nsources = 3\n',
    "wrong_type.yaml": "model:\n  dim: big\noptimizer:\n  lr: true\n  betas: 0.9\n",
    "out_of_range.toml": "[model]\ndropout = 2\n[optimizer]\nlr = -1\nbetas = [0.9, 1.0]\n",
    "variant.toml": '[optimizer]\ntype = "adam"\n[schedule]\ntype = "constant"\nfloor = 0.1\n',
    "unknown.toml": "epochs = 3\n[trainer]\ndevices = 8\n",
    "item.toml": '[[data.sources]]\ntype = "random"\n\n[[data.sources]]\ntype = "txt"\n',
    "cycle.toml": '[model]\ndim = "${model.ffn_dim}"\nffn_dim = "${model.dim}"\n',
    "batch.toml": "[batch]\nglobal_size = 10\nmicro_size = 4\n",
    "crlf.toml": b"seed = 1\r\n[optimizer]\r\nlr = -1\r\n",
}


@pytest.mark.parametrize("name", FILES)
def test_bad_file(cli: CommandLine, transcript: Callable[[list[str]], str], name: str) -> None:
    cli.file(name, FILES[name])
    text = transcript([f"train {name}"])
    compare(f"cli/file_{name.replace('.', '_')}", text)
    assert f"{name}:" in text, "the error does not say where in the file"


@pytest.mark.parametrize("name", ["small.toml", "tiny"])
def test_a_bad_file_on_top_of_a_good_source(cli: CommandLine, name: str) -> None:
    cli.file("broken.yaml", FILES["broken.yaml"])
    assert "broken.yaml:3:1" in cli.refused(f"train {name} --file broken.yaml")


def test_extends(cli: CommandLine, transcript: Callable[[list[str]], str]) -> None:
    files = {
        "preset.toml": 'seed = 1\nextends = "tinny"\n',
        "missing.toml": 'extends = "nosuch.toml"\n',
        "number.yaml": "extends: 3\n",
        "items.json": '{"extends": ["small.toml", 4]}',
        "late.toml": 'extends = ["small.toml", "tiny"]\n',
        "itself.toml": 'extends = "itself.toml"\n',
        "a.toml": 'extends = "b.yaml"\n',
        "b.yaml": "extends: a.toml\n",
        "above.toml": 'extends = "inner/broken.toml"\n',
        "inner/broken.toml": "seed = \n",
        "misspelt.toml": 'extend = "tiny"\n',
    }
    for name, text in files.items():
        cli.file(name, text)
    lines = [f"check {name}" for name in files if name not in ("b.yaml", "inner/broken.toml")]
    compare("cli/extends", transcript(lines))


def test_what_is_no_file(cli: CommandLine, transcript: Callable[[list[str]], str]) -> None:
    (cli.folder / "folder").mkdir()
    (cli.folder / "folder.toml").mkdir()
    cli.file("notes.txt", "hello")
    lines = [
        "train folder",
        "train .",
        "train folder.toml",
        "train notes.txt",
        "check small.toml --file folder.toml",
        "check small.toml --file notes.txt",
        "check small.toml --file ''",
    ]
    compare("cli/no_file", transcript(lines))


def test_an_empty_file_is_the_defaults(cli: CommandLine) -> None:
    cli.file("empty.toml", "")
    assert cli.ok("fingerprint empty.toml") == cli.ok("fingerprint own:Job")


def test_a_file_of_another_system_is_extended_with_its_origins(cli: CommandLine) -> None:
    """`DIALECT:FILE` stands wherever a whole file can be named, relative to what names it."""
    cli.file("there/job.toml", "[training]\nsteps = 10\nseq_len = 128\n[optimizer]\nlr = 1e-3\n")
    cli.file("here.toml", 'extends = "torchtitan:there/job.toml"\n[parallel]\ndevice = "cpu"\n')
    cli.file("section.toml", '[model]\nextends = "torchtitan:there/job.toml"\n')
    cli.file("absent.toml", 'extends = "torchtitan:absent_job.toml"\n')
    for source in ("here.toml", "tiny --file torchtitan:there/job.toml"):
        answer = cli(f"why optimizer.lr {source}")
        assert "there/job.toml:5:1" in answer.out, answer
        assert "note: there/job.toml (torchtitan's default" in answer.err
    assert "needs a decision" in cli.refused("check here.toml --strict")
    assert "absent.toml:1:1: there is no file absent_job.toml" in cli.refused("check absent.toml")
    assert "is a whole configuration" in cli.refused("check section.toml")
