"""What a study of configuration systems asks of the next one: NG-01 to NG-43 of its list.

The numbers are in the names of the tests. Where the study complains about another system, the test
shows that the opposite holds here.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import setpoint as sp
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import AdamWConfig
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job

from ..cli.conftest import CommandLine
from ..test_structure import config_classes
from ..train.small import rows
from .conftest import TRAIN, Script
from .lab import Box, Pair, Retry, Round, Service, Square, Study

if TYPE_CHECKING:
    from ..conftest import SourceFile

ROOT = Path(__file__).parents[2]


def shown(cli: CommandLine, line: str) -> dict[str, Any]:
    """A resolved configuration in plain data."""
    answer = cli(f"show {line} --json")  # notes go to standard error
    assert answer.status == 0, answer
    return json.loads(answer.out)


# --- What a configuration system must do -------------------------------------------------------


def test_ng_01_02_the_record_alone_determines_the_run(cli: CommandLine, run: str) -> None:
    (cli.folder / "small.toml").unlink()
    assert cli(f"train {run}/config.toml --workspace again").status == 0
    (again,) = (cli.folder / "again").iterdir()
    assert again.name == Path(run).name  # the same fingerprint
    assert rows(again) == rows(cli.folder / run)  # and the same losses, to the last bit
    environment = json.loads((cli.folder / run / "environment.json").read_text())
    assert {"code", "packages"} <= environment.keys()


def test_ng_03_one_knob_alone(cli: CommandLine) -> None:
    found = json.loads(cli("diff small.toml small.toml --optimizer.lr 0.5 --json").out)
    assert [each["path"] for each in found] == ["optimizer.lr"]


def test_ng_04_complete_settings_of_an_earlier_run(cli: CommandLine, run: str) -> None:
    told = cli.ok(f"diff {run} small.toml {' '.join(TRAIN[2:])} --ignore tracking.progress")
    assert told.startswith("no differences ")
    fields = {each["path"] for each in json.loads(cli.ok("list fields --json"))["fields"]}
    recorded = json.loads((cli.folder / run / "config.json").read_text())
    assert set(Job.__setpoint__.fields) <= recorded.keys() & fields


def test_ng_05_a_typo_stops_the_launch(cli: CommandLine) -> None:
    for typo in ("optimizer.lrr=1", "optimzer.lr=1", "model.dimm=3", "user_=1"):
        assert "unknown key" in cli.refused(f"train small.toml {typo}")
    assert not (cli.folder / "runs").exists()


def test_ng_06_six_parts(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    # Definition: types, defaults, help.
    text = script.ok("list fields retry")
    assert "an int; >= 0, <= 20; default 3; identity\n    How often." in text
    # Construction: a whole configuration by a plain function.
    script.file("mine.py", "from tests.acceptance.lab import *\n\n\ndef two():\n"
                "    return Study(services=[Service(name='a'), Service(name='b')])\n")  # fmt: skip
    assert len(shown(script, "mine:two")["services"]) == 2
    # Override: file, environment, command line, program.
    file = script.file("f.toml", "retry.count = 4\n")
    assert shown(script, f"mine:two --file {file}")["retry"]["count"] == 4
    monkeypatch.setenv("SETPOINT__RETRY__COUNT", "5")
    assert shown(script, f"mine:two --file {file}")["retry"]["count"] == 5
    assert shown(script, f"mine:two --file {file} --retry.count 6")["retry"]["count"] == 6
    composed = sp.compose(Study, flags=["--retry.count=6"], program={"retry.count": 7})
    assert composed.resolve().retry.count == 7
    # Validation: before anything runs.
    assert "11 do not fit into 10 slots" in script.refused(
        "--services '[" + "{name: a}, " * 11 + "]'"
    )
    # Composition: shared fragments.
    script.file("often.toml", "count = 20\n")
    assert shown(script, "--retry.extends often.toml")["retry"]["count"] == 20
    monkeypatch.delenv("SETPOINT__RETRY__COUNT")
    # Serialization: saved and restored.
    saved = script.file("saved.toml", script.ok("show mine:two"))
    assert script.ok(f"diff mine:two {saved}").startswith("no differences ")


# --- Complaints about other systems --------------------------------------------------------------


def test_ng_08_21_25_41_the_command_line_is_made_from_the_classes(
    cli: CommandLine, source_files: dict[str, SourceFile]
) -> None:
    for file in source_files.values():  # no option is written by hand, no parser is global
        assert not re.search(r"add_argument|\bget_args\(\)|import argparse", file.text), file.path
    found = json.loads(cli.ok("fingerprint small.toml --explain --json"))
    values = {path: found["identity"].get(path, "9 steps") for path in found["origins"]}
    assert len(values) > 30
    for path, value in values.items():  # every field has its dotted flag, which reads its value
        written = value if isinstance(value, str) else json.dumps(value)
        answer = sp.compose(Job, "small.toml", flags=[f"--{path}={written}"])
        assert answer.problems == [], path
    # One table of a file for each section.
    tables = tomllib.loads(cli.ok("show small.toml"))
    assert {name for name, value in tables.items() if isinstance(value, dict)} >= {
        "model", "data", "batch", "optimizer", "schedule", "checkpoint", "tracking",
    }  # fmt: skip


def test_ng_09_17_no_misspelt_assignment_and_no_implicit_schema() -> None:
    job = tiny()
    with pytest.raises(sp.ConfigError, match=r"Did you mean lr\?"):
        job.optimizer.lrr = 1e-3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(sp.ConfigError, match="is not an int: got 2.5"):
        job.model.layers = 2.5  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"Did you mean layers\?"):
        print(job.model.layer)  # pyright: ignore[reportAttributeAccessIssue]
    # A field's type is declared: the first value does not make it.
    with pytest.raises(TypeError, match="width"):

        class Untyped(sp.Config):  # pyright: ignore[reportUnusedClass]
            """A section."""

            width = sp.field(default=3)


def test_ng_09_28_completion_and_help(cli: CommandLine) -> None:
    assert "--optimizer.lr" in cli.ok("__complete 3 check small.toml --optimizer.l")
    assert "bf16" in cli.ok("__complete 3 check small.toml --precision.compute=b")
    text = cli.ok("list fields optimizer.lr")
    assert "a float; > 0, finite; default 0.0003; identity" in text
    assert "Peak learning rate" in text


def test_ng_10_five_sizes_and_three_data_sets_are_eight_small_files(cli: CommandLine) -> None:
    cli.file("base.toml", 'extends = "small.toml"\noptimizer.lr = 0.1\n')
    sizes = [cli.file(f"size{n}.toml", f"model.dim = {16 * n}\n") for n in range(1, 6)]
    data = [
        cli.file(f"data{n}.toml", f"data.sources = [{{type = 'random', seed = {n}}}]\n")
        for n in range(3)
    ]

    def all_of_them() -> list[Job]:
        pairs = itertools.product(sizes, data)
        return [sp.compose(Job, "base.toml", files=pair).resolve() for pair in pairs]

    assert len({sp.fingerprint(job) for job in all_of_them()}) == 15
    cli.file("base.toml", 'extends = "small.toml"\noptimizer.lr = 0.2\n')  # a default of all
    assert {job.optimizer.lr for job in all_of_them()} == {0.2}
    line = f"fingerprint base.toml --file {sizes[1]} --file {data[2]}"
    assert cli.ok(line).strip() == sp.fingerprint(all_of_them()[5])


def test_ng_11_34_dependent_values_are_computed(cli: CommandLine) -> None:
    sizes = "--batch.sequence_length 64 --batch.global_size 24 --batch.micro_size 4"
    line = f"small.toml --duration 99 {sizes}"
    found = shown(cli, line)
    assert (found["batch"]["accumulation"], found["model"]["max_sequence_length"]) == (6, 64)
    tokens = "--schedule.warmup '${batch.sequence_length // batch.micro_size}'"
    assert shown(cli, f"{line} {tokens}")["schedule"]["warmup"] == "16 steps"
    assert sp.resolve(Study(retry=Retry(count=4, wait=0.5))).retry.longest == 2.0  # plain Python


def test_ng_12_24_32_a_callable_is_checked_against_its_signature(cli: CommandLine) -> None:
    component = "--optimizer '{type: import, target: torch.optim.SGD, %s}'"
    line = f"train small.toml {component}"
    assert "torch.optim.SGD has no parameter 'momentun'" in (
        text := cli.refused(line % "momentun: 0.9")
    )
    assert "Did you mean momentum?" in text and "dampening" in text  # the valid ones are listed
    assert "is not a float: got 'much'" in cli.refused(line % "momentum: much")
    assert "Did you mean" in cli.refused(line.replace("SGD", "Adagard") % "lr_decay: 0.1")
    assert "may not be imported" in cli.refused(line.replace("torch.optim.SGD", "os.system") % "")
    assert not (cli.folder / "runs").exists()
    swapped = shown(cli, f"small.toml {component} optimizer.momentum=0.8" % "momentum: 0.9")
    assert (swapped["optimizer"]["target"], swapped["optimizer"]["momentum"]) == (
        "torch.optim.SGD", 0.8,
    )  # fmt: skip
    with pytest.raises(sp.ConfigError, match="has no parameter"):
        sp.partial(Fraction, numerater=1)  # pyright: ignore[reportCallIssue]
    assert sp.partial(Fraction, numerator=3, denominator=6).build() == Fraction(1, 2)


def test_ng_13_30_39_checks_stand_beside_the_fields_and_span_sections(cli: CommandLine) -> None:
    text = cli.refused(
        "check small.toml --model.max_sequence_length 8 --model.kv_heads 3 "
        "--precision.compute fp8 --batch.global_size 7"
    )
    assert "16 tokens exceed the model's maximum of 8" in text  # batch against model
    assert "2 heads cannot be shared evenly by 3 key-value heads" in text
    assert "is not one of the valid values: got fp8" in text  # a Literal
    assert "7 sequences cannot be divided by 2" in text
    for cls, name in (
        (TransformerConfig, "_check_shapes"),
        (Job, "setpoint.train.rules.data:sum_problems"),
    ):
        assert name in cls.__setpoint__.checks


def test_ng_14_main_belongs_to_the_user(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    where, seen = Path.cwd(), list[Study]()
    with pytest.raises(SystemExit) as end:
        sp.run(Study, seen.append, ["--retry.count", "7"])
    before = sorted(path.name for path in where.iterdir())
    assert (end.value.code, Path.cwd(), seen[0].retry.count) == (0, where, 7)
    assert sorted(path.name for path in where.iterdir()) == before  # no folders of outputs
    capsys.readouterr()
    for grammar in ("++retry.count=1", "+retry.count=1", "retry@x=1"):  # nothing private
        text = script.refused(grammar)
        assert len(text.splitlines()) < 12
    assert sp.compose(Study, flags=["--retry.count=7"]).resolve() == seen[0]  # or no entry point


def test_ng_15_35_few_levels_and_each_value_says_which_set_it(cli: CommandLine) -> None:
    fields = json.loads(cli.ok("list fields --json"))["fields"]
    depths = [each["path"].count(".") + 1 for each in fields if "sources" not in each["path"]]
    # Three levels of sections at most, with the field itself four names.
    assert max(depths) <= 4 and sum(depth <= 3 for depth in depths) > 0.95 * len(depths)
    text = cli.ok("why model.dim small.toml --model.dim 32")
    assert re.search(r"128 +preset tiny .*\n +16 +small.toml:6:1\n +> 32 +command line", text)


def test_ng_16_26_36_a_component_is_a_class_with_its_config_in_it() -> None:
    config = Box.Config(width=3, inside=Box.Config(width=2))  # no decorator, no registration
    box = config.build(paint="red")  # the owner is known; run-time arguments are handed over
    assert isinstance(box, Box) and box.inside is not None
    assert (box.width, box.inside.width, box.inside.paint) == (3, 2, "red")  # top down
    with pytest.raises(TypeError):
        Box.Config(3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(sp.SetpointError):
        config.height = 3  # pyright: ignore[reportAttributeAccessIssue]

    class Lid(Box.Config):
        """Nothing can be forgotten on a subclass: it is keyword-only and closed as well."""

        angle: float = 0.0
        """Degrees."""

    with pytest.raises(TypeError):
        Lid(3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(sp.SetpointError, match=r"Did you mean angle\?"):
        Lid(width=1).angel = 3.0  # pyright: ignore[reportAttributeAccessIssue]


def test_ng_18_27_presets_are_plain_functions_of_fresh_values() -> None:
    first, second = tiny(), tiny()
    first.model.dim = 256
    first.user.note = "mine"
    assert (second.model.dim, sp.resolve(second)) == (128, sp.resolve(tiny()))

    def variant() -> Job:  # calls the base and edits; the values are there to be read
        job = tiny()
        job.optimizer.lr = job.optimizer.lr / 2
        return job

    assert sp.resolve(variant()).optimizer.lr == 1.5e-3


def test_ng_19_functions_may_read_what_they_like_and_the_record_stays(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.file("moody.py", "import os\nfrom setpoint.train.config import Job\n\n\ndef job():\n"
             "    return Job(seed=int(os.environ['MOOD']))\n")  # fmt: skip
    monkeypatch.setenv("MOOD", "5")
    config = sp.compose(Job, "moody:job").resolve()
    for name, text in sp.record_files(config).items():  # what every run writes by itself
        cli.file(f"record/{name}", text)
    monkeypatch.setenv("MOOD", "6")
    assert shown(cli, "moody:job")["seed"] == 6
    assert shown(cli, "record")["seed"] == 5


def test_ng_20_43_files_are_data(cli: CommandLine) -> None:
    cli.file("a.toml", 'extends = "small.toml"\nseed = 5\noptimizer.lr = 1e-3\n')
    cli.file("b.yaml", "optimizer: {lr: 0.001}\nextends: small.toml\nseed: 5\n")
    assert cli.ok("fingerprint a.toml") == cli.ok("fingerprint b.yaml")
    assert cli.ok("diff a.toml b.yaml").startswith("no differences ")
    for code in ("seed: !!python/object/apply:os.getpid []", "seed: ${os.getpid()}"):
        cli.file("evil.yaml", f"extends: small.toml\n{code}\n")
        cli.refused("check evil.yaml")
    assert json.loads(cli.ok("schema"))["$schema"].endswith("draft/2020-12/schema")
    # Supported, but by no other configuration system underneath, and none is in the way.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w.-]", text)[0] for text in project["dependencies"]}
    assert names <= {"rich", "ruamel.yaml", "blake3"}  # and digests of files


# --- Good ideas, as requirements ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("optimizer.weight_decy=1", "optimizer.weight_decay"),
        ("schedule.warmup_step=1", "schedule.warmup"),
        ("data.sources.0.documnets=1", "data.sources.0.documents"),
        ("sequence_length=1", "batch.sequence_length"),
        ("learning_rate=1", "optimizer.lr"),
        ("optimizer.lerning_rate=1", "optimizer.lr"),
        ("parralel.world_size=1", "parallel.world_size"),
    ],
)
def test_ng_22_did_you_mean(cli: CommandLine, typo: str, meant: str) -> None:
    last = cli.refused(f"check small.toml {typo}").strip().splitlines()[-1]
    assert last.strip().startswith((f"Did you mean {meant}?", f"Setpoint calls it {meant}"))


def test_ng_23_required_values_chains_registries_products(cli: CommandLine) -> None:
    with pytest.raises(sp.ConfigError, match="is required and has no value"):
        sp.resolve(Study(services=[Service()]))  # pyright: ignore[reportCallIssue]
    with pytest.raises(sp.SetpointError, match="has no value yet: it is required"):
        Box.Config().build(paint="red")  # pyright: ignore[reportCallIssue]
    assert sp.resolve(Retry().evolve(count=4).evolve(wait=2.0)).longest == 8.0
    assert sp.resolve(Study()).retry.count == 3  # the defaults are a configuration
    assert "\ntiny " in cli.ok("list presets")
    jobs = [
        sp.resolve(make().evolve(seed=seed)) for make, seed in itertools.product((tiny,), (1, 2))
    ]
    assert len({sp.fingerprint(job) for job in jobs}) == 2
    torch_model = sp.compose(Job, "small.toml").resolve().model.build(vocab_size=8)
    assert {"embedding", "layers"} <= {name for name, _ in torch_model.named_children()}


def test_ng_28_flags_as_people_type_them(cli: CommandLine) -> None:
    for spelling in ("--batch.micro-size 4", "--batch.micro_size=4", "batch.micro_size=4"):
        assert shown(cli, f"small.toml {spelling}")["batch"]["micro_size"] == 4
    assert shown(cli, "small.toml --deterministic")["deterministic"] is True
    assert shown(cli, "small.toml --deterministic --no-deterministic")["deterministic"] is False
    assert shown(cli, "small.toml --optimizer.clip_norm null")["optimizer"]["clip_norm"] is None
    assert "valid: fp32, bf16, fp16" in cli.refused("check small.toml --precision.compute int8")


def test_ng_29_the_command_line_beats_the_preset_which_its_name_selects(cli: CommandLine) -> None:
    assert shown(cli, "tiny")["model"]["dim"] == 128
    assert shown(cli, "setpoint.presets.tiny:tiny --model.dim 64")["model"]["dim"] == 64


def test_ng_31_typed_locked_referring_frozen(cli: CommandLine) -> None:
    job = tiny()
    job.model.dim = sp.ref("model.heads * 32")
    job.model.heads = 4
    config = sp.resolve(job)
    assert config.model.dim == 128  # the change has reached whoever refers to it
    assert sp.resolve(config.evolve(model=config.model.evolve(heads=2))).model.dim == 64
    assert len({config, sp.resolve(config)}) == 1
    with pytest.raises(sp.SetpointError, match="immutable"):
        config.model.heads = 8
    cli.file("top.toml", "optimizer.lr = 0.1\n")
    assert shown(cli, "tiny --file top.toml --optimizer.lr 0.5")["optimizer"]["lr"] == 0.5


def test_ng_32_sharing_tags_and_ordered_directives(cli: CommandLine, script: Script) -> None:
    inside = sp.partial(Fraction, numerator=3)  # built before what holds it, and once if shared
    pair = sp.partial(Pair, left=inside, right=inside).build()
    assert pair.left == Fraction(3) and pair.left is pair.right
    square = Square(side=3.0)
    config = sp.resolve(Study(shape=square, more=[None, square]))
    written = script.file("s.toml", sp.record_files(config)["config.toml"])
    again = sp.compose(Study, written).resolve()
    assert again == config and again.shape is again.more[1]
    found = shown(script, "--tag.pace 9 --retry.wait 2")  # one mark reaches all; the later wins
    assert (found["pace"], found["retry"]["wait"]) == (9, 2)
    line = "tiny --with 'smoke(steps=7)' --with 'smoke(steps=8)'"
    assert shown(cli, line)["duration"] == "8 steps"
    assert shown(cli, f"{line} --duration '9 steps'")["duration"] == "9 steps"


def test_ng_07_33_38_a_new_dimension_is_one_function(cli: CommandLine) -> None:
    cli.file("mine.py", "import setpoint as sp\nfrom setpoint.train.config import Job\n"
             "from setpoint.presets.tiny import tiny\n\n\n@sp.preset\n"
             "def sized(width: int = 64) -> Job:\n"
             "    job = tiny()\n    job.model.dim = width\n    return job\n\n\n@sp.modifier\n"
             "def decayed(job: Job, factor: float = 0.5) -> Job:\n"
             "    job.optimizer.weight_decay *= factor\n    return job\n")  # fmt: skip
    line = "sweep sized(width=32),sized(width=64) --import mine --dry-run --json"
    line += " --with 'null,decayed(factor=0.1),reproducible'"  # no branch, no copy, no constant
    points = json.loads(cli.ok(line))["points"]
    assert len({point["fingerprint"] for point in points}) == 6
    assert "unknown parameter 'widht'" in cli.refused("check 'sized(widht=1)' --import mine")


def test_ng_35_40_definitions_lie_near_their_owners(source_files: dict[str, SourceFile]) -> None:
    for cls in config_classes(source_files):
        owner = cls.__setpoint__.owner
        if owner is not None:
            package = ".".join(cls.__module__.split(".")[:2])
            # What a run can do without is an add-on, whose section is where its users look.
            assert owner.startswith((package, "setpoint.ops")), cls


# --- What its author decided to build -----------------------------------------------------------


def test_ng_36_37_one_root_whose_parts_are_built(cli: CommandLine) -> None:
    job = sp.compose(Job, "small.toml").resolve()
    assert {"model", "data", "batch", "optimizer", "evaluation"} <= set(Job.__setpoint__.fields)
    model = job.model.build(vocab_size=257)
    optimizer = job.optimizer.build(parameters=list(model.named_parameters()))
    assert optimizer.param_groups[0]["lr"] == job.optimizer.lr
    for section in (job.tokenizer, job.schedule, job.loss, job.data, job.data.sources[0]):
        assert type(section).__setpoint__.owner is not None
    assert isinstance(job.optimizer, AdamWConfig)


def test_ng_42_plain_data_in_the_record_and_in_checkpoints(cli: CommandLine, run: str) -> None:
    shown_run = shown(cli, run)
    for folder in (run, f"{run}/checkpoints/step-00000004"):
        record = json.loads((cli.folder / folder / "config.json").read_text())
        assert {k: v for k, v in record.items() if k != "setpoint"} == shown_run


def test_ng_variants_keep_what_they_share(script: Script) -> None:
    """Not one of the 43, but what NG-24 needs to be of use: a swap does not lose the rest."""
    found = sp.compose(Study, flags=["--shape.color=blue", "--shape=square"]).resolve().shape
    assert found == Square(color="blue") != Round(color="blue")


def test_all_43_statements_occur() -> None:
    named = re.findall(r"^def test_ng_((?:\d\d_)+)", Path(__file__).read_text(), re.M)
    numbers = {int(number) for name in named for number in name.strip("_").split("_")}
    assert numbers == set(range(1, 44))
    assert ast.parse(Path(__file__).read_text())
