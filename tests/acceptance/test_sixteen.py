"""The sixteen promises of docs/reference/promises.md, a test for each, as users see them."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import setpoint as sp
from setpoint.optim.config import AdamWConfig
from setpoint.optim.schedule import Cosine
from setpoint.train.config import Job

from .. import goldens
from ..cli.conftest import CommandLine
from ..support.snapshots import refused
from ..test_imports import HEAVY, traced
from ..train.small import events, snapshot
from ..train.test_config_effects import EFFECTS, SECTIONS, classes
from .conftest import TRAIN, VARIABLE, Script
from .lab import Retry, Round, Service, Square, Study, halve

ROOT = Path(__file__).parents[2]
PROMISES = ROOT / "docs/reference/promises.md"


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested mappings and lists by dotted path."""
    if isinstance(value, dict) and value:
        pairs = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        pairs = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for key, item in pairs:
        found |= leaves(item, f"{path}.{key}".lstrip("."))
    return found


def layers(text: str) -> list[tuple[bool, str, str]]:
    """The layers that `why` prints of one value: True for the winner, its value, its origin."""
    found = re.findall(r"^  ([ >]) (\S+|'[^']*') {2,}(.+)$", text, re.MULTILINE)
    return [(mark == ">", value, origin) for mark, value, origin in found]


def test_01_origins(cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value knows where it came from; all layers are named, and saved with the run."""
    cli.file("top.toml", 'extends = "small.toml"\n\n[optimizer]\n  lr = 0.04\n')
    monkeypatch.setenv("SETPOINT__OPTIMIZER__LR", "0.05")
    text = cli.ok("why optimizer.lr top.toml --optimizer.lr 0.06 optimizer.lr=0.07")
    preset = Path(sp.__file__).parent / "presets/tiny.py"
    lines = preset.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "lr=3e-3" in text)
    assert layers(text) == [
        (False, "0.003", f"preset tiny (setpoint/presets/tiny.py:{line})"),
        (False, "0.04", "top.toml:4:3"),
        (False, "0.05", "environment variable SETPOINT__OPTIMIZER__LR"),
        (False, "0.06", "command line --optimizer.lr"),
        (True, "0.07", "command line optimizer.lr"),
    ]
    assert layers(cli.ok("why optimizer.eps top.toml")) == [(True, "1e-08", "default")]
    derived = layers(cli.ok("why model.head_dim top.toml"))
    assert derived == [(True, "8", "derived from model.dim, model.heads")]
    # Saved with the run: each of its values, with all layers, though the sources are gone.
    monkeypatch.delenv("SETPOINT__OPTIMIZER__LR")
    monkeypatch.setenv(*VARIABLE)
    paths = ("optimizer.lr", "tracking.progress", "deterministic", "model.ffn_dim")
    source = " ".join(f"'{word}'" for word in TRAIN[1:])
    before = [layers(cli.ok(f"why {path} {source}")) for path in paths]
    monkeypatch.delenv(VARIABLE[0])
    (cli.folder / "small.toml").unlink()
    assert [layers(cli.ok(f"why {path} {run}")) for path in paths] == before
    origins = json.loads((cli.folder / run / "origins.json").read_text())
    config = json.loads((cli.folder / run / "config.json").read_text())
    del config["setpoint"]
    assert leaves(config).keys() - {"user"} == origins.keys()
    assert all(value["layers"][-1]["origin"] for value in origins.values())


def test_02_override_before_derivation(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever layer sets a value, what follows from it follows the one that wins."""
    wide = cli.file("wide.toml", 'extends = "small.toml"\nmodel.dim = 96\n')
    model = sp.compose(Job, wide, flags=["--model.dim", "32"], program={"model.dim": 48}).resolve()
    assert (model.model.dim, model.model.head_dim) == (48, 24)
    monkeypatch.setenv("SETPOINT__MODEL__DIM", "64")
    names = "${model.dim * 3}"
    for flags, dim in (("", 64), ("--model.dim 32", 32), ("--model.dim 32 --model.dim 80", 80)):
        shown = json.loads(cli.ok(f"show {wide} {flags} --model.ffn_dim '{names}' --json"))
        model = shown["model"]
        assert (model["dim"], model["head_dim"], model["ffn_dim"]) == (dim, dim // 2, 3 * dim)
    # Across sections: the warm-up follows the horizon, and that the duration.
    shown = json.loads(cli.ok("show small.toml --duration '400 steps' --json"))
    assert (shown["schedule"]["horizon"], shown["schedule"]["warmup"]) == ("400 steps", "20 steps")


def test_03_all_problems_at_once(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with path, origin, numbers, nearest valid values, and the name that was meant."""
    cli.file("bad.toml", 'extends = "small.toml"\ndim = 32\n\n[batch]\nglobal_size = 7\n')
    monkeypatch.setenv("SETPOINT__PRECISION__COMPUTE", "bf61")
    cli.refused("check bad.toml --model.heads 5 --optimizer.lr -1 --optimizer.weight_decya 0")
    line = "check bad.toml --model.heads 5 --optimizer.lr -1 --optimizer.weight_decya 0 --json"
    found = {each["path"]: each for each in json.loads(cli(line).out)["problems"]}
    assert {path: (each["value"], each["origin"]) for path, each in found.items()} == {
        "batch.global_size": ("7", "bad.toml:5:1"),
        "dim": ("32", "bad.toml:2:1"),
        "model.heads": ("5", "command line --model.heads"),
        "optimizer.lr": ("-1", "command line --optimizer.lr"),
        "optimizer.weight_decya": ("0", "command line --optimizer.weight_decya"),
        "precision.compute": ("bf61", "environment variable SETPOINT__PRECISION__COMPUTE"),
    }
    batch, heads = found["batch.global_size"], found["model.heads"]
    assert batch["message"] == "7 sequences cannot be divided by 2 = 2 (micro) * 1 (ranks)"
    assert batch["valid"] == ["6", "8"]
    assert "batch.micro_size = 2 (small.toml:15:1)" in batch["also"]
    assert heads["message"] == "dim = 16 cannot be divided among 5 heads"
    assert heads["valid"][0] == "4"
    assert found["optimizer.lr"]["message"] == "is out of range: it must be > 0, finite"
    assert found["optimizer.weight_decya"]["hint"] == "Did you mean optimizer.weight_decay?"
    assert found["dim"]["hint"] == "Did you mean model.dim?"  # it belongs in another section
    assert found["precision.compute"]["hint"] == "Did you mean bf16?"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("--schedule constant --schedule.floor 0.2", "schedule.floor"),
        ("--data.shuffle false --data.seed 3", "data.seed"),
        ("--data.sources.0.include 'json/*'", "data.sources.0.include"),
        ("--optimizer '{type: import, target: torch.optim.SGD, betas: [0.9, 0.9]}'", None),
        ("--silence no-such-caution", "silence"),
    ],
)
def test_04_no_dead_knobs(cli: CommandLine, line: str, path: str | None) -> None:
    """A value without effect in this mode is an error, and each field has a test of its effect."""
    assert (path or "has no parameter 'betas'") in cli.refused(f"train small.toml {line}")
    fields = {f"{cls.__name__}.{name}" for cls in classes() for name in cls.__setpoint__.fields}
    assert fields == EFFECTS.keys() | SECTIONS  # `test_the_field_has_an_effect` runs each of them


def test_05_a_role_on_each_field(cli: CommandLine, run: str) -> None:
    """Declared once beside it, the role decides on the fingerprint and on resuming."""
    listed = json.loads(cli.ok("list fields --json"))["fields"]
    roles = {each["path"]: each["role"] for each in listed}
    assert set(roles.values()) == {"identity", "budget", "runtime"}
    base, base_hash = f"train {run}", cli.ok("fingerprint small.toml")
    changes = {
        "identity": ("seed=2", "optimizer.lr=0.5", "data.held_out=0.3", "model.dropout=0.1"),
        "budget": ("duration='6 steps'",),
        "runtime": ("batch.micro_size=4", "name=other", "checkpoint.keep=1", "evaluation=null"),
    }
    for role, overrides in changes.items():
        for override in overrides:
            assert roles[override.partition("=")[0]] == role
            same = cli.ok(f"fingerprint small.toml --schedule.horizon 4 {override}")
            assert (same == base_hash) == (role != "identity"), override
    for override in changes["identity"]:
        path, refusal = override.partition("=")[0], cli.refused(f"{base} {override}")
        # Another seed orders the data anew: a place in it cannot be accepted.
        assert (f" --accept {path}\n" in refusal) == (path != "seed")
    # A budget may grow, and is recorded; a runtime value is free to change.
    grown = "duration='6 steps' schedule.horizon=4 batch.micro_size=4 checkpoint.keep=1"
    assert cli(f"{base} {grown}").status == 0
    (resumed,) = events(cli.folder / run, "resume")
    accepted = {each["path"]: each["role"] for each in resumed["accepted"]}
    assert accepted["duration"] == "budget"
    assert accepted["batch.micro_size"] == accepted["checkpoint.keep"] == "runtime"


def test_06_fingerprint(cli: CommandLine, run: str) -> None:
    """One hash of what is learned, the same in every process, in logs, checkpoints and names."""
    config = json.loads((cli.folder / run / "config.json").read_text())
    digest = config["setpoint"]["fingerprint"]
    for seed, ranks in (("1", 1), ("2", 4)):  # other ranks are other processes
        words = ["-m", "setpoint", "fingerprint", *TRAIN[1:], "--batch.micro_size=1"]
        done = subprocess.run(
            [sys.executable, *words, f"--world-size={ranks}"],
            env={"PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": f"UTC+{seed}"},
            cwd=cli.folder,
            text=True,
            capture_output=True,
            check=True,
        )
        assert done.stdout.strip() == digest
    assert run.endswith(f"small-{digest[:8]}")
    (start,) = events(cli.folder / run, "start")
    assert start["fingerprint"] == digest
    for checkpoint in (cli.folder / run).glob("checkpoints/step-*"):
        record = json.loads((checkpoint / "config.json").read_text())
        assert record["setpoint"]["fingerprint"] == digest
    # The order in which things are said does not count; what is learned does.
    assert cli.ok("fingerprint small.toml seed=1 user.a=2") == cli.ok(
        "fingerprint small.toml user.a=2 seed=1"
    )
    assert cli.ok("fingerprint small.toml user.a=2") != cli.ok("fingerprint small.toml user.a=3")


def test_07_resume_contract(cli: CommandLine, run: str) -> None:
    """Resuming compares field by field, prints the difference and refuses, or records it."""
    before = snapshot(cli.folder / run)
    assert "2 identity values differ" in cli.refused(f"train {run} --optimizer.lr 0.5 --seed 7")
    assert "a budget may grow, not shrink" in cli.refused(f"train {run} --duration '2 steps'")
    assert snapshot(cli.folder / run) == before
    text = cli.refused(f"train {run} --optimizer.lr 0.5 --duration '5 steps' --schedule.horizon 4")
    (command,) = re.findall("anyway: setpoint (.*)", text)
    assert command.endswith(" --schedule.horizon=4 --accept optimizer.lr")
    assert cli(command).status == 0
    (resumed,) = events(cli.folder / run, "resume")
    accepted = {each["path"]: each for each in resumed["accepted"]}
    lr, duration = accepted["optimizer.lr"], accepted["duration"]
    assert (lr["left"], lr["right"], lr["role"]) == (0.01, 0.5, "identity")
    assert lr["right_origin"] == "command line --optimizer.lr"
    assert (duration["left"], duration["right"]) == ("4 steps", "5 steps")


def test_08_diff_of_anything_with_anything(cli: CommandLine, run: str) -> None:
    """Preset, file, run, checkpoint, revision: only what differs, in effect, with origins."""
    shutil.copy(cli.folder / "small.toml", cli.folder / "then.toml")
    cli.file(
        "mine.py", "from setpoint.presets.tiny import tiny\n\n\ndef own():\n    return tiny()\n"
    )
    for command in ("init -q", "add then.toml mine.py", "commit -q -m now"):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *command.split()], cwd=cli.folder, check=True)
    sources = ["tiny", "small.toml", run, f"{run}/checkpoints/latest", "HEAD:mine:own"]
    sources.append("HEAD:then.toml")
    shown = {
        source: leaves(json.loads(cli.ok(f"show {source} --json")))
        for source in sources
        if not source.startswith("HEAD")
    }
    shown |= {"HEAD:mine:own": shown["tiny"], "HEAD:then.toml": shown["small.toml"]}
    for left, right in itertools.pairwise([*sources, sources[0]]):
        answer = cli(f"diff {left} {right} --json")
        found = {each["path"]: each for each in json.loads(answer.out)}
        a, b = shown[left], shown[right]
        differing = {path for path in a.keys() | b.keys() if a.get(path) != b.get(path)}
        assert found.keys() == differing, (left, right)  # nothing more, nothing less
        assert answer.status == (1 if differing else 0)
        for path, each in found.items():
            assert path not in a or each["left_origin"]
            assert path not in b or each["right_origin"]
    text = cli("diff small.toml small.toml --model.dim 32").out
    assert "model.head_dim  (identity)" in text  # what follows differs as well
    assert "small.toml:6:1" in text and "command line --model.dim" in text


def test_09_preflight_on_a_laptop(cli: CommandLine, tmp_path: Path) -> None:
    """Sums, divisibility and paths for any number of ranks, without a GPU or torch."""
    text = cli.refused("check small.toml --world-size 1024 --batch.global_size 5000")
    assert "5000 sequences cannot be divided by 2048 = 2 (micro) * 1024 (ranks)" in text
    assert "Valid: 4096, 6144" in text
    text = cli.ok("check small.toml --world-size 1024 --batch.global_size 4096")
    assert "4096 = 2 (micro) * 2 (accumulation) * 1024 (ranks)" in text
    assert "'lost.txt' does not exist" in cli.refused(
        "check small.toml --data.sources '[{type: text, paths: [lost.txt]}]'"
    )
    assert re.search(r"parameters +8,000\b", cli.ok("check small.toml"))
    words = "check tiny --world-size 1024 --batch.global_size=1024"
    assert not [name for name in traced(words, tmp_path) if name.partition(".")[0] in HEAVY]


def test_10_old_configs_always_load(cli: CommandLine, script: Script) -> None:
    """Schema, migrations, tombstones: a retired key answers with what to do."""
    # A file that says its schema is taken along, with a note of what has changed in meaning.
    old = {"setpoint": {"schema": 1}, "tries": 3, "pause": 500, "fast": False}
    answer = script(f"show {cli.file('old.json', json.dumps(old))} --json")
    assert json.loads(answer.out)["retry"] == {"count": 3, "wait": 0.5, "longest": 1.5}
    assert "retry.wait: 500 is 0.5 since schema 2: seconds, not ms" in answer.err
    # One that does not is not guessed at: each retired key says what to do.
    del old["setpoint"]
    text = script.refused(f"check {cli.file('old.json', json.dumps(old))} --pause 100")
    assert "tries was moved to retry.count in schema 2" in text
    assert "pause was moved to retry.wait in schema 2" in text
    assert "everything is fast now" in text
    cli.file("new.toml", "setpoint = {schema = 99}\n")
    assert "update Setpoint to load it" in cli.refused("check new.toml")


def test_11_default_drift_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden files hold every preset; a changed default changes the fingerprint of each."""
    names = {"tiny.txt", "tiny+smoke.txt", "tiny+reproducible.txt"}
    assert names <= {path.name for path in goldens.FOLDER.iterdir()}
    assert goldens.all_drift() == {}
    goldens.change_default(monkeypatch, AdamWConfig, "eps", 1e-6)
    goldens.change_default(monkeypatch, Cosine, "floor", 0.2)
    drifted = goldens.all_drift()
    assert drifted.keys() >= names | {goldens.FIELDS}
    assert "-optim.AdamWConfig.eps = 1e-08  # identity" in drifted[goldens.FIELDS]
    assert "+optim.AdamWConfig.eps = 1e-06  # identity" in drifted[goldens.FIELDS]
    assert all(drifted[name][0].startswith("-fingerprint ") for name in names)
    # The preset sets its own floor, which is no longer the default.
    assert "+schedule.floor = 0.1  # identity" in drifted["tiny.txt"]


def test_12_lossless_both_ways(script: Script) -> None:
    """Python, files and command line say the same, with unions, lists of sections, callables."""
    study = Study(services=[Service(name="a"), Service(name="b", retry=Retry(count=9))])
    study.shape, study.more = Square(side=3.0), [Round(), None]
    study.change, study.limits, study.pace = halve, {"x": (1, 2.5)}, 0.25
    config = sp.resolve(study)
    flags = [
        "--services=[{name: a}, {name: b, retry: {count: 9}}]", "--shape=square", "--shape.side=3",
        "--more=[{type: round}, null]", f"--change={halve.__module__}.halve",
        "--limits={x: [1, 2.5]}", "--pace=0.25",
    ]  # fmt: skip
    assert sp.compose(Study, flags=flags).resolve() == config
    assert config.change is not None and config.change(4.0) == 2.0
    line = shlex.join(flags)
    for form in ("toml", "yaml", "json"):
        for whole in ("", "--minimal"):
            text = script.ok(f"show {line} --format {form} {whole}")
            file = script.file(f"study.{form}", text)
            again = sp.compose(Study, file).resolve()
            assert (again, sp.fingerprint(again)) == (config, sp.fingerprint(config))
            assert script.ok(f"show {file} --format {form} {whole}") == text  # to the byte
    text = script.ok(f"show {line} --format python")
    script.file("written.py", text)
    assert sp.compose(Study, "written:my_preset").resolve() == config
    assert script.ok("show written:my_preset --format python") == text
    for name, kept in sp.record_files(config).items():
        script.file(f"record/{name}", kept)
    assert sp.compose(Study, "record/config.toml").resolve() == config
    assert script.ok("diff record written:my_preset").startswith("no differences ")


def test_13_batch_plan(cli: CommandLine) -> None:
    """Any two sizes give the third; the sum is printed, and the nearest valid values offered."""
    cli.file("bare.toml", "data.sources = [{type = 'random'}]\n")
    for sizes, total in (
        ("batch.global_size=12 batch.micro_size=3", "12 = 3 (micro) * 4 (accumulation)"),
        ("batch.global_size=12 batch.accumulation=3", "12 = 4 (micro) * 3 (accumulation)"),
        ("batch.micro_size=5 batch.accumulation=2", "10 = 5 (micro) * 2 (accumulation)"),
    ):
        assert f"{total} * 1 (ranks)" in cli.ok(f"check bare.toml {sizes}")
    # All three, and they do not agree: the sum of the two others, and what it would have to be.
    text = cli.refused(f"check bare.toml {sizes} batch.global_size=7")
    assert f"7 sequences contradict the other sizes: {total}" in text and "Valid: 10\n" in text
    text = cli.refused("check bare.toml batch.global_size=100 batch.micro_size=16")
    assert "Valid: 96, 112" in text


def test_14_typed_sweeps(cli: CommandLine) -> None:
    """Grid, zip, list, random and tags; all points checked before any starts; stable names."""

    def names(line: str) -> list[str]:
        answer = json.loads(cli.ok(f"sweep {line} --dry-run --json"))
        return [point["name"] for point in answer["points"]]

    grid = "small.toml --optimizer.lr 1e-3,3e-4 --seed 1,2"
    assert names(grid) == ["lr=1e-3,seed=1", "lr=1e-3,seed=2", "lr=3e-4,seed=1", "lr=3e-4,seed=2"]
    assert set(names(f"{grid},3")) > set(names(grid))  # a name depends on its own point alone
    assert names("small.toml --tag.learning_rate 1e-3,1e-2") == [
        "learning_rate=1e-3", "learning_rate=0.01",
    ]  # fmt: skip
    zipped = "[sweep.zip]\nmodel.layers = [1, 2]\nmodel.dim = [16, 32]\n"
    listed = "[sweep]\npoints = [{seed = 5}, {seed = 6, optimizer.lr = 0.5}]\n"
    drawn = '[sweep.random]\ncount = 3\naxes = {"optimizer.lr" = "log_uniform(1e-5, 1e-2)"}\n'
    for name, table, count in (("z", zipped, 2), ("l", listed, 2), ("r", drawn, 3)):
        file = cli.file(f"{name}.toml", f'extends = "small.toml"\n{table}')
        assert len(set(names(file))) == count
        assert names(file) == names(file)
    wrong = cli.refused("sweep small.toml --model.heads 2,3 --optimizer.lr 1e-3,fast")
    assert "problems in 3 of 4 points; nothing was started" in wrong
    assert "is not a float: got fast" in wrong and "cannot be divided among 3 heads" in wrong
    assert not (cli.folder / "runs").exists()


def test_15_secrets(cli: CommandLine, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret cannot be written down, only referred to; no form of a config shows it."""
    monkeypatch.setenv("TOKEN", "hunter2")
    with refused(sp.ConfigError):
        Service(name="a", token="hunter2")  # pyright: ignore[reportArgumentType]
    config = sp.resolve(Study(services=[Service(name="a", token=sp.Secret("env:TOKEN"))]))
    token = config.services[0].token
    assert token is not None and token.reveal() == "hunter2"
    texts = [repr(config), str(config), repr(token.reveal()), sp.fingerprint(config)]
    texts += sp.record_files(config).values()
    texts += map(str, sp.differences(config, sp.resolve(Study())))
    line = "--services '[{name: a, token: env:TOKEN}]'"
    for command in ("show", "show --format yaml", "show --json", "show --format python"):
        written = script.ok(f"{command} {line}")
        assert "env:TOKEN" in written
        texts.append(written)
    texts.append(script.ok(f"why services {line}"))
    texts.append(script.refused("check --services '[{name: a, token: hunter2}]'"))
    assert not [text for text in texts if "hunter2" in text]
    for value in ("https://me:hunter2@example.org", "https://example.org/?api_key=hunter2abcdef"):
        assert "hunter2" not in cli.refused(f"train small.toml --user.url {value}")


@pytest.mark.parametrize("words", ["--help", "check exp.toml", "show tiny", "diff tiny exp.toml"])
def test_16_fast(words: str, tmp_path: Path) -> None:
    """In the time of a Python start, since nothing heavy is ever imported."""
    found = traced(words, tmp_path)
    assert not [name for name in found if name.partition(".")[0] in HEAVY]
    # Of `diff`, with the files of the sections of data, adapters and pipelines, and of rules.
    assert len(found) <= 212  # the exact budgets are in tests/test_imports.py


def test_the_page_of_promises_is_true() -> None:
    """Each promise has a row, a page that exists, and a test of this file."""
    tests = {name for name in globals() if re.match(r"test_\d\d_", name)}
    rows = re.findall(r"^(\d+)\. (.+?)`(test_\w+)`$", PROMISES.read_text(), re.M | re.DOTALL)
    assert [int(number) for number, _, _ in rows] == list(range(1, 17))
    assert {test for _, _, test in rows} == tests
    for number, links, test in rows:
        assert test.startswith(f"test_{int(number):02}_")
        for page, _, anchor in re.findall(r"\]\(([^)#]+)(#([^)]+))?\)", links):
            text = (PROMISES.parent / page).read_text()
            titles = re.findall(r"^#+ (.+)$", text, re.M)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert not anchor or anchor in slugs, (page, anchor)
