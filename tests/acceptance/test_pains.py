"""What users of other systems suffer from, pain by pain, and that Setpoint does not have it.

The numbers are those of a ranked list of 25 pains, gathered from the issues of some thirty
projects; the stories below are theirs. Not here:

| pain | why it is not here |
| --- | --- |
| 9, sizes that only the launch finds wrong | `test_09_preflight_on_a_laptop` of test_sixteen.py |
| 10, the sum of the batch | `test_13_batch_plan` |
| 18, secrets | `test_15_secrets`, and tests/config/test_credentials.py for false alarms |
| 19, slow help and start | `test_16_fast` |
| 22, sweeps | `test_14_typed_sweeps`, and tests/sweep |
| 23 "will it fit?" | memory on a device is the model's; `check` says its parameters |
| 24, the size of files | tests/test_structure.py keeps them small |
| 25 systems that churn | no test can promise it; that the old is still read: pains 5 and 6 |
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import setpoint as sp
from setpoint.model.config import TransformerConfig
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job

from .. import goldens
from ..cli.conftest import CommandLine
from ..train.small import events, rows, snapshot
from .conftest import Script
from .lab import Box, Pair, Service, Study, halve

if TYPE_CHECKING:
    from ..conftest import SourceFile


def shown(cli: CommandLine, line: str) -> dict[str, Any]:
    """A resolved configuration in plain data."""
    return json.loads(cli.ok(f"show {line} --json"))


@pytest.mark.parametrize(
    ("story", "answer"),
    [
        ("quantizaton = '4bit'", "unknown key: Job has no field 'quantizaton'"),
        ("precision.compute = 'bf61'", "Did you mean bf16?"),  # inside a value
        ("data.sources = [{type = 'randon'}]", "Did you mean random?"),  # a value of a list
        ("data.sources = [{type = 'random', lenght = 3}]", "Did you mean data.sources.0.length?"),
        ("extend = 'tiny'", "unknown key"),  # a misspelt keyword of the engine
        ("checkpoint.every = 'last_stp'", "valid: "),
        ("learning_rate = 1e-3", "Setpoint calls it optimizer.lr: lr = 0.001 under [optimizer]"),
        ("[optimizer]\nheads = 4", "model.heads"),  # the right name in the wrong section
        ("silence = ['learning-rate-hihg']", "learning-rate-high"),
    ],
)
def test_pain_01_misspelt_keys_are_not_accepted(cli: CommandLine, story: str, answer: str) -> None:
    cli.file("exp.toml", f'extends = "small.toml"\n{story}\n')
    assert answer in cli.refused("train exp.toml")
    for flag in ("--with smoek", "--wtih smoke", "+quantization=4bit", "--import smol"):
        cli.refused(f"train small.toml {flag}")


def test_pain_02_one_owner_and_the_right_one_wins(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Defaults of the command line beat the file: a default is not a layer here.
    cli.file("exp.toml", 'extends = "small.toml"\nduration = "7 steps"\n')
    assert shown(cli, "exp.toml")["duration"] == "7 steps"
    # A flag that says the default is said all the same, and beats the file.
    assert shown(cli, "exp.toml --duration '300 steps'")["duration"] == "300 steps"
    # An ambient file never prevails, since none is read.
    for name in (".env", "default_config.yaml", "setpoint.toml", "config.toml"):
        cli.file(name, "SETPOINT__SEED=9\n" if name == ".env" else "seed = 9\n")
    assert shown(cli, "exp.toml")["seed"] == 1234
    monkeypatch.setenv("SETPOINT__DURATION", "8 steps")
    text = cli.ok("why duration exp.toml --duration '9 steps'")
    assert [line[2] for line in text.splitlines()[1:6]] == [" ", " ", " ", " ", ">"]
    # Two sources of one rank that contradict each other are an error.
    monkeypatch.setenv("SETPOINT__duration", "9 steps")
    assert "SETPOINT__DURATION" in cli.refused("check exp.toml")
    cli.file("twice.toml", 'extends = "small.toml"\nseed = 1\nseed = 2\n')
    assert "is given twice" in cli.refused("check twice.toml")


def test_pain_03_no_dead_knobs(cli: CommandLine) -> None:
    # Left-over settings of another mode, and a 0 that is meant.
    text = cli.refused("train small.toml --schedule constant --schedule.horizon 9")
    assert "has no effect: no length is a share of it" in text
    text = cli.refused("train small.toml --schedule constant --schedule.power 9")
    assert "It is a field of type = polynomial" in text
    assert shown(cli, "small.toml --optimizer.weight_decay 0")["optimizer"]["weight_decay"] == 0
    assert shown(cli, "small.toml --seed 0")["seed"] == 0
    assert "it must be > 0" in cli.refused("train small.toml --optimizer.lr 0")
    # What cannot be had is refused, rather than switched off.
    assert "fp16 needs a GPU" in cli.refused("train small.toml --precision.compute fp16")
    assert "has no effect" in cli.refused("train small.toml --accept optimizer.lr")


def test_pain_04_a_changed_config_on_resume(cli: CommandLine, run: str) -> None:
    before = snapshot(cli.folder / run)
    # Epochs 9 -> 15, the rate at zero already: the curve would not fit, and that is said.
    text = cli.refused(f"train {run} --duration '6 steps'")
    assert "schedule.horizon" in text and '--schedule.horizon "4 steps"' in text
    assert "--optimizer.lr=1 --accept optimizer.lr" in cli.refused(f"train {run} --optimizer.lr 1")
    assert snapshot(cli.folder / run) == before
    # The period of saving and the size of a micro-batch are free, take effect, and are recorded.
    line = f"train {run} --duration '6 steps' --schedule.horizon 4"
    assert cli(f"{line} --checkpoint.every 1 --batch.micro_size 4").status == 0
    saves = [event["step"] for event in events(cli.folder / run, "save")]
    assert {5, 6} <= set(saves)
    (resumed,) = events(cli.folder / run, "resume")
    accepted = {each["path"] for each in resumed["accepted"]}
    assert {"duration", "checkpoint.every", "batch.micro_size"} <= accepted


def test_pain_05_old_records_load(cli: CommandLine, run: str) -> None:
    """With today's default another one than it was then."""
    with pytest.MonkeyPatch.context() as patch:
        goldens.change_default(patch, type(tiny().optimizer), "eps", 9.0)
        assert shown(cli, "small.toml")["optimizer"]["eps"] == 9.0
        assert shown(cli, run)["optimizer"]["eps"] == 1e-8  # what it was trained with


def test_pain_06_names_and_meanings_that_change(cli: CommandLine, script: Script) -> None:
    # A retired name answers with what to do; the software can rewrite the file.
    cli.file("old.toml", "tries = 4  # often\npause = 500\n")
    text = script.refused("check old.toml")
    assert "tries was moved to retry.count in schema 2; " in text
    assert "migrate old.toml`" in text
    assert script("migrate --write old.toml").status == 0
    text = (cli.folder / "old.toml").read_text()
    assert "count = 4" in text and "# often" in text and "wait = 0.5" in text
    # The ratio 1.0 that became one step: a number with a point is not a count of steps.
    for flag in ("schedule.warmup=1.0", "checkpoint.every=1.0", "duration=1.0"):
        assert re.search("whole (number|count)|integer", cli.refused(f"check small.toml {flag}"))
    cli.file("exp.yaml", "extends: small.toml\nevaluation:\n  every: 1.0\n")
    assert "integer number of steps" in cli.refused("check exp.yaml")
    assert "Setpoint calls it schedule.warmup" in cli.refused(
        "check small.toml --schedule.warmup_ratio 1.0"
    )


def test_pain_07_where_a_value_came_from(cli: CommandLine, run: str) -> None:
    cli.file("exp.toml", 'extends = "small.toml"\n\n[optimizer]\n    lr = 0.5\n')
    text = cli.ok("why optimizer.lr exp.toml")
    assert re.search(r"0.003  preset tiny \(.*tiny.py:\d+\)\n  > 0.5 +exp.toml:4:5", text)
    # Derived values say what they follow from, and so do records.
    assert "derived from model.dim, model.heads" in cli.ok(f"why model.head_dim {run}")
    # A conflict names both who say something.
    text = cli.refused("check exp.toml --batch.global_size 7")
    assert "command line --batch.global_size" in text
    assert "with batch.micro_size = 2 (small.toml:15:1)" in text
    # In Python it is the line of the assignment.
    job = tiny()
    job.optimizer.lr = 0.25
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "lr = 0.25" in text)
    (only,) = sp.differences(sp.resolve(job), sp.resolve(tiny()))
    assert f"test_pains.py:{line}" in str(only.left_origin)


@pytest.mark.parametrize("form", ["toml", "yaml", "json"])
def test_pain_08_scalars_mean_what_they_say(cli: CommandLine, form: str) -> None:
    written = {
        "toml": "extends = 'small.toml'\nname = 'no'\noptimizer.lr = 1e-5\n",
        "yaml": "extends: small.toml\nname: no\noptimizer: {lr: 1e-5}\n",
        "json": '{"extends": "small.toml", "name": "no", "optimizer": {"lr": 1e-5}}',
    }
    job = sp.compose(Job, cli.file(f"exp.{form}", written[form])).resolve()
    assert (job.name, job.optimizer.lr) == ("no", 1e-5)


def test_pain_08_flags_of_truth_and_numbers(cli: CommandLine) -> None:
    for word, value in (("False", False), ("false", False), ("True", True), ("true", True)):
        assert shown(cli, f"small.toml --deterministic {word}")["deterministic"] is value
        assert shown(cli, f"small.toml --deterministic={word}")["deterministic"] is value
    for word in ("ture", "on", "yes", "0.5", "''"):  # `on` is False elsewhere
        assert "is not a bool" in cli.refused(f"check small.toml --deterministic={word}")
    assert "is not an int: got 7.9" in cli.refused("check small.toml --model.layers 7.9")
    # A folder after a space is the folder, and a word that belongs nowhere is an error.
    assert shown(cli, "small.toml --workspace /tmp/here")["workspace"] == "/tmp/here"
    assert "unexpected argument '/tmp/here'" in cli.refused(
        "check small.toml --workspace=/tmp /tmp/here"
    )
    assert "needs a value" in cli.refused("check small.toml --workspace --seed 3")
    cli.file("on.yaml", "extends: small.toml\ndeterministic: on\n")
    assert "is not a bool: got on" in cli.refused("check on.yaml")
    cli.file("text.toml", "extends = 'small.toml'\noptimizer.lr = '1e-5'\n")
    assert "is not a float: got '1e-5'" in cli.refused("check text.toml")


def test_pain_11_lists_mappings_unions_on_the_command_line(script: Script) -> None:
    flags = "--services.append '{name: a, retry: {count: 9}}' --services.append '{name: b}'"
    services = shown(script, flags)["services"]
    # An appended item has defaults, and nothing of the item before it.
    assert [service["retry"] and service["retry"]["count"] for service in services] == [9, None]
    flags += " --services.b.retry.count 2 --services.a.token env:T --services.insert.0 '{name: c}'"
    assert [each["name"] for each in shown(script, flags)["services"]] == ["c", "a", "b"]
    assert shown(script, f"{flags} --services.remove a")["services"][1]["retry"]["count"] == 2
    assert shown(script, "--limits.x '[1, 2.5]'")["limits"] == {"x": [1, 2.5]}
    # Brackets are not needed, so that no shell can eat them; unions nest, in lists too.
    script.file("more.toml", "[[more]]\ntype = 'square'\nside = 3.0\n")
    more = shown(script, "more.toml --more.0.color blue --more.append '{type: round}'")["more"]
    assert [(each["type"], each["color"]) for each in more] == [
        ("square", "blue"),
        ("round", "red"),
    ]
    assert "is not a float: got wide" in script.refused("check more.toml --more.0.side wide")
    # An overlay need not replace a list as a whole.
    script.file("over.toml", "[more.append]\ntype = 'round'\n")
    assert len(shown(script, "more.toml --file over.toml")["more"]) == 2


def test_pain_12_what_ran_is_recorded(cli: CommandLine, run: str) -> None:
    for place in (run, f"{run}/checkpoints/latest"):  # defaults and derived values included
        job = shown(cli, place)
        assert (job["optimizer"]["eps"], job["model"]["ffn_dim"]) == (1e-8, 64)
    environment = json.loads((cli.folder / run / "environment.json").read_text())
    assert "torch" in environment["packages"] and "setpoint" in environment["code"]
    # Nothing can be read that is not recorded, as `get("field", default)` would.
    with pytest.raises(AttributeError, match="has no key 'missing'"):
        print(sp.resolve(tiny()).user.missing)
    # A callable is recorded by a path that leads back to it, not by its repr.
    study = sp.resolve(Study(change=halve))
    for name, text in sp.record_files(study).items():
        cli.file(f"record/{name}", text)
    assert sp.compose(Study, "record/config.toml").resolve().change == study.change
    # What is recorded cannot be changed afterwards, not even what is inside of it.
    limits = sp.resolve(Study(limits={"x": (1, 2.0)}, services=[Service(name="a")]))
    before = sp.record_files(limits)
    with pytest.raises(sp.SetpointError, match="immutable"):
        limits.limits["y"] = (3, 4.0)
    with pytest.raises(sp.SetpointError, match="immutable"):
        limits.services.append(Service(name="b"))
    with pytest.raises(sp.SetpointError, match="immutable"):
        limits.services[0].name = "b"
    assert sp.record_files(limits) == before
    # And a record that was changed by hand is not a record.
    path = cli.folder / run / "config.json"
    path.write_text(path.read_text().replace("1234", "99"))
    assert "was changed after it was written: seed is 99" in cli.refused(f"check {run}")


def test_pain_13_composition_without_a_language(cli: CommandLine) -> None:
    # One file says what it is put together from, and one command shows what comes out.
    cli.file("wide.toml", "[model]\ndim = 32\n")
    cli.file("exp.toml", 'extends = ["small.toml", "wide.toml"]\nseed = 5\n')
    found = shown(cli, "exp.toml --model.layers 2")  # a file, and flags on top
    assert (found["model"]["dim"], found["model"]["layers"], found["seed"]) == (32, 2, 5)
    for sigil in ("+seed=1", "++seed=1", "~seed", "model@x=1"):
        cli.refused(f"check exp.toml {sigil}")
    cli.file("loop.toml", 'extends = "loop.toml"\n')
    assert "loop.toml" in cli.refused("check loop.toml")


def test_pain_14_every_rank_has_the_same_config(cli: CommandLine, run: str) -> None:
    """Nothing depends on the process or the hour; what is drawn is drawn once and recorded."""
    digest = Path(run).name.rpartition("-")[2]
    found: set[str] = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "setpoint", "fingerprint", run],
            env={**os.environ, "PYTHONHASHSEED": seed, "RANK": seed, "LOCAL_RANK": seed},
            cwd=cli.folder, text=True, capture_output=True, check=True,
        )  # fmt: skip
        found.add(done.stdout.strip())
    assert len(found) == 1 and found.pop().startswith(digest)
    assert cli("train small.toml --seed null --name drawn").status == 0
    (drawn,) = (cli.folder / "runs").glob("drawn-*")
    assert isinstance(shown(cli, f"runs/{drawn.name}")["seed"], int)
    for resolver in ("${now:%H}", "${oc.env:HOME}", "${random()}"):
        cli.refused(f"check small.toml --optimizer.lr '{resolver}'")


def test_pain_15_nothing_is_pickled(cli: CommandLine, run: str) -> None:
    suffixes = {path.suffix for path in (cli.folder / run).rglob("*") if path.is_file()}
    assert suffixes <= {*(".json", ".jsonl", ".toml", ".safetensors", ".log", ".html", ".txt", "")}
    for path in (cli.folder / run).rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith((b"\x80", b"PK")), path  # pickle, torch's zip


def test_pain_16_messages_that_help(cli: CommandLine) -> None:
    text = cli.refused("train small.toml --data.sources.0.stray 1")
    assert len(text.splitlines()) < 10 and "Traceback" not in text
    # What `check` finds good, the run takes; references fail at load, not when they are read.
    for wrong in ("--optimizer.lr '${optimzer.eps}'", "--batch.global_size 7", "--model import"):
        assert cli.refused(f"check small.toml {wrong}") == cli.refused(f"train small.toml {wrong}")
    # A job of another machine is checked as far as this one can.
    line = "check small.toml --parallel.device cuda --world-size 1"
    skipped = "not checked: parallel: the device is there (needs torch: --using torch)\n"
    assert skipped in cli.ok(line)


def test_pain_17_what_is_different_between_runs(cli: CommandLine, run: str) -> None:
    assert cli(f"train {run}/config.toml --optimizer.lr 0.5 --name other").status == 0
    other = next(str(p) for p in Path("runs").iterdir() if p.name.startswith("other"))
    found = json.loads(cli(f"diff {run} {other} --json").out)
    assert {each["path"] for each in found} == {"name", "optimizer.lr"}  # only what changed
    found = json.loads(cli(f"diff {run} {other} --role identity --json").out)
    assert [(each["left"], each["right"]) for each in found] == [(0.01, 0.5)]
    table = cli.ok(f"compare {run} {other}")
    assert "lr" in table.splitlines()[0] and "dim" not in table.splitlines()[0]
    # Lists are compared item by item, as they are written, not as text.
    found = json.loads(cli("diff small.toml small.toml data.sources.0.length=9 --json").out)
    assert [each["path"] for each in found] == ["data.sources.0.length"]


def test_pain_20_import_paths_are_seldom_needed_and_always_checked(cli: CommandLine) -> None:
    assert Box.Config(width=1).build(paint="red").width == 1  # a class, which editors can follow
    pair = sp.partial(Pair, left=1)
    assert pair.build().left == 1
    for target, answer in (
        ("torch.optim.Adagard", "Did you mean Adagrad?"),
        ("torch.optm.Adagrad", "may not be imported"),
        ("os.system", "may not be imported"),
    ):
        line = f"train small.toml --optimizer '{{type: import, target: {target}}}'"
        assert answer in cli.refused(line)


def test_pain_21_values_derived_across_sections(cli: CommandLine) -> None:
    text = cli.ok("why model.max_sequence_length small.toml --batch.sequence_length 64")
    assert text.startswith("model.max_sequence_length = 64\n")
    assert "derived from batch.sequence_length" in text
    text = cli.ok("why model.dim small.toml --model.dim '${batch.sequence_length * 2}'")
    assert "reference ${batch.sequence_length * 2} over batch.sequence_length" in text
    assert "depends on itself: model.dim -> model.heads -> model.dim" in cli.refused(
        "check small.toml --model.dim '${model.heads}' --model.heads '${model.dim}'"
    )


def test_pain_24_sections_stand_alone(source_files: dict[str, SourceFile]) -> None:
    """A component gets its own section and what it needs; no component knows the whole job."""
    section = TransformerConfig(dim=16, layers=1, heads=2, max_sequence_length=8)
    assert sp.resolve(section).build(vocab_size=5) is not None
    for name, file in source_files.items():
        if name == "setpoint.model.pretrained.recorded_model":
            continue  # reads the record of a run, which is a whole job's
        if re.match(r"setpoint\.(model|data|optim|loss|checkpoint|track|parallel)\b", name):
            assert "setpoint.train.config" not in file.text, name


def test_pain_below_the_line_making_a_config_has_no_side_effects(cli: CommandLine) -> None:
    before = snapshot(cli.folder), dict(os.environ)
    for line in ("check small.toml", "show small.toml", "sweep small.toml --seed 1,2 --dry-run"):
        cli.ok(line)
    sp.resolve(tiny())
    assert (snapshot(cli.folder), dict(os.environ)) == before


def test_pain_below_the_line_a_large_config_does_not_kill_a_run(cli: CommandLine) -> None:
    """Trackers with limits on size; ours have none, and the run goes on with long values."""
    include = ",".join(f"'{'x' * 90}{n}'" for n in range(200))
    cli.file("long.toml", f'extends = "small.toml"\nuser.note = [{include}]\n')
    assert cli("train long.toml").status == 0
    (run,) = (cli.folder / "runs").iterdir()
    assert len(rows(run)) >= 4 and len(shown(cli, f"runs/{run.name}")["user"]["note"]) == 200
