"""What a study of configuration systems asks of the next one: NG-01 to NG-43 of its list.

The numbers are in the names of the tests. Where the study complains about another system, the test
shows that the opposite holds here.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import setpoint as sp
from setpoint.presets.tiny import tiny
from setpoint.train.config import Job

from ..cli.conftest import CommandLine
from ..test_structure import config_classes
from ..train.small import rows
from .conftest import Script
from .lab import Box, Study

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


def test_ng_35_40_definitions_lie_near_their_owners(source_files: dict[str, SourceFile]) -> None:
    for cls in config_classes(source_files):
        owner = cls.__setpoint__.owner
        if owner is not None:
            package = ".".join(cls.__module__.split(".")[:2])
            # What a run can do without is an add-on, whose section is where its users look.
            assert owner.startswith((package, "setpoint.ops")), cls


# --- What its author decided to build -----------------------------------------------------------


# What other tests show. Together with those above these are all 43.
ELSEWHERE = {
    (3,): "acceptance/test_pains.py::test_pain_17_what_is_different_between_runs",
    (4,): "acceptance/test_sixteen.py::test_01_origins",
    (5, 22): "acceptance/test_pains.py::test_pain_01_misspelt_keys_are_not_accepted",
    (6,): "acceptance/test_sixteen.py::test_12_lossless_both_ways",
    (7, 33, 38): "cli/test_sweep.py::test_a_dry_run_shows_the_points_and_writes_nothing",
    (11, 34): "acceptance/test_pains.py::test_pain_21_values_derived_across_sections",
    (12, 24): "acceptance/test_pains.py::"
    "test_pain_20_import_paths_are_seldom_needed_and_always_checked",
    (13, 30, 39): "acceptance/test_sixteen.py::test_03_all_problems_at_once",
    (18, 27): "config/test_compose.py::test_two_presets_and_what_modifiers_put_in_share_nothing",
    (23,): "config/test_resolve.py::test_required_fields",
    (28,): "config/layers/test_flags.py::test_switches",
    (29,): "acceptance/test_sixteen.py::test_01_origins",
    (32,): "config/test_sharing.py::test_what_is_written_and_read_back",
    (37,): "config/test_building.py::test_the_owner_gets_the_config_and_the_run_time_arguments",
    (42,): "acceptance/test_sixteen.py::test_06_fingerprint",
}


def test_all_43_statements_are_shown() -> None:
    shown_here = re.findall(r"^def test_ng_((?:\d\d_)+)", Path(__file__).read_text(), re.M)
    numbers = {int(number) for name in shown_here for number in name.strip("_").split("_")}
    assert numbers | {number for several in ELSEWHERE for number in several} == set(range(1, 44))
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), place
