"""The functions that `import setpoint as sp` offers beside the kernel."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import setpoint as sp
from setpoint.cli.main import main

from .support.forks import Forks
from .support.snapshots import refused

SMALL = {
    "model.layers": 2, "model.dim": 32, "model.heads": 2, "model.kv_heads": 1,
    "batch.sequence_length": 32, "duration": 12, "evaluation.sequences": 4,
    "tracking.progress": "none", "checkpoint.every": "6 steps", "checkpoint.keep": 2,
    "precision.compute": "fp32",
}  # fmt: skip
TEXTS = [f"The square of {n} is {n * n}." for n in range(200)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> sp.RecordedRun:
    workspace = str(tmp_path_factory.mktemp("runs"))
    return sp.load_run(sp.train("tiny", data=TEXTS, overrides={**SMALL, "workspace": workspace}))


def test_check_loads_no_torch_and_reports_all_problems() -> None:
    program = (
        "import sys, setpoint as sp\n"
        "facts = sp.check('tiny', world_size=4).facts\n"
        "try: sp.check('tiny', {'optimizer.lr': -1, 'batch.global_size': 7}, world_size=4)\n"
        "except sp.ConfigError as error: paths = [problem.path for problem in error.problems]\n"
        "print(facts['batch'], paths, 'torch' in sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "8 = 2 (micro) * 1 (accumulation) * 4 (ranks)",
        "['batch.global_size', 'optimizer.lr']",
        "False",
    ], done.stderr


def test_the_function_remains_one_when_its_package_is_imported() -> None:
    import setpoint.infer.config
    import setpoint.plan.layouts
    import setpoint.sweep.run_sweep
    import setpoint.train.config  # noqa: F401

    assert callable(sp.train) and callable(sp.infer) and callable(sp.plan) and callable(sp.sweep)
    with refused():
        sp.train(7)  # pyright: ignore[reportArgumentType]
    with refused():
        sp.train("tiny", "duration=4")


def test_a_run_is_read_as_its_files_say(run: sp.RecordedRun) -> None:
    lines = (run.directory / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    frame = run.metrics("train")
    assert frame["loss"].tolist() == [row["loss"] for row in rows]
    assert (run.status, run.step, sorted(run.checkpoints)) == ("finished", 12, [6, 12])
    assert sp.load_run(run) == sp.load_run(str(run.directory)) == run
    assert (run.config.model.dim, run.config.batch.sequence_length) == (32, 32)
    assert run.directory.name.endswith(run.fingerprint[:8])
    with refused():
        run.metrics("trian")


def test_a_run_is_a_source(run: sp.RecordedRun) -> None:
    again = sp.train(run, data=TEXTS)
    assert (again.started.step, again.directory) == (12, run.directory)
    assert sp.check(again).facts == sp.check(run.directory).facts
    with refused():
        sp.train(run, data=TEXTS, overrides={"optimizer.lr": 0.5})


def test_greedy_text_and_scores_are_those_of_the_module(run: sp.RecordedRun) -> None:
    model = run.model(checkpoint="latest")
    (text,) = model.generate("The sq", max_tokens=8, temperature=0)
    module, tokens = model.module, list(b"The sq")
    encoded = [model.tokenizer.separator, *tokens]
    with torch.no_grad():
        for _ in range(8):
            logits = module(torch.tensor([encoded]))[0, -1]
            encoded.append(int(logits.argmax()))
        end = model.tokenizer.separator
        document = [end, *b"The square of 7 is 49.", end]
        logits = module(torch.tensor([document[:-1]]))[0].double()
    assert list(text.text.encode()) == encoded[7:]
    nats = torch.nn.functional.cross_entropy(logits, torch.tensor(document[1:]), reduction="sum")
    score = model.evaluate({"one": ["The square of 7 is 49."]})["one"]
    assert math.isclose(score.loss * score.tokens, nats.item(), rel_tol=1e-5)


def test_other_checkpoints_give_other_scores(run: sp.RecordedRun) -> None:
    first, last = (run.model(checkpoint=step).evaluate(TEXTS[:20])["text"].loss for step in (6, 12))
    assert first > last


def test_wrong_options_name_the_field(
    run: sp.RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = run.model()
    with refused(sp.ConfigError):
        model.generate("a", max_tokens=-4)
    for call in (model.evaluate, partial(sp.evaluate, run.directory)):
        with refused(sp.ConfigError):
            call("nowhere.txt")
    with refused():
        sp.load_run(tmp_path)
    with refused():
        sp.export("nowhere", tmp_path / "out")


WRONG: dict[str, Callable[[Any], object]] = {
    "no source": lambda run: sp.generate(None, "a"),  # pyright: ignore[reportArgumentType]
    "no run": lambda run: sp.load_run(7),  # pyright: ignore[reportArgumentType]
    "no path": lambda run: sp.export(run, 7),  # pyright: ignore[reportArgumentType]
    "no such family": lambda run: sp.export(run, "out", family="lama"),
    "no such kind of rule": lambda run: sp.check("tiny", needs=("file",)),  # pyright: ignore[reportArgumentType]
    "overrides in one str": lambda run: sp.evaluate(run, overrides="x=7"),
    "a checkpoint as overrides": lambda run: sp.load_model(run, 7),  # pyright: ignore[reportArgumentType]
    "no such checkpoint": lambda run: run.model(checkpoint="worst"),
    "an unknown override": lambda run: sp.generate(run, "a", overrides={"weights.dtyp": "bf16"}),
    "an unknown option": lambda run: run.model().generate("a", max_token=4),
    "a number as prompt": lambda run: run.model().generate(["a", 5]),
    "a template as chat": lambda run: run.model().generate("a", chat="chatml"),
    "a message without content": lambda run: run.model().generate(["a", [{"role": "user"}]]),
    "a set as content": lambda run: run.model().generate([[{"role": "user", "content": {1}}]]),
    "a number as text": lambda run: run.model().evaluate({"a": 5}),
    "one side": lambda run: run.model().evaluate(sides="train"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named_with_value_and_valid_ones(
    run: sp.RecordedRun, case: str
) -> None:
    with refused():
        WRONG[case](run)


def test_conversations_are_prompts(run: sp.RecordedRun) -> None:
    model = run.model()
    chat: dict[str, Any] = {"chat": {"template": "plain"}, "max_tokens": 4, "temperature": 0}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (one,) = model.generate("a", **chat)
    assert model.generate(turns[:1], **chat) == [one]
    # The answer at the end is generated.
    assert model.generate([turns, "a", {"prompt": "a", "completion": "b"}], **chat) == [one] * 3
    with refused():
        model.generate(turns, prompts_file="rows.jsonl")


def test_an_export_without_a_tokenizer_warns(run: sp.RecordedRun, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="has no tokenizer files"):
        assert (sp.export(run, tmp_path / "out") / "config.json").exists()
    with refused():
        sp.load_model(sp.resolve(sp.compose(type(run.config), "tiny", flags=["seed=77"]).draft))


def test_a_plan_is_that_of_the_command_and_loads_no_torch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "plan llama3-8b --gpu h100 --world-size 8 --top 2 --json"
    program = (
        "import sys, json, setpoint as sp\n"
        "plan = sp.plan('llama3-8b', gpu='h100', world_size=8, top=2)\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps(plan.to_json()))"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert main(command.split()) == 0
    assert json.loads(made.stdout) == json.loads(capsys.readouterr().out), made.stderr
    with refused():
        sp.plan("llama3-8b", gpu="h100", world_size=8, memory="much")


def test_a_sweep_trains_the_points_of_a_table(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", f"{forks.programs}/python")
    small = {**SMALL, "duration": 2, "workspace": str(tmp_path), "evaluation": None}
    grid = {"grid": {"optimizer.lr": [1e-3, 2e-3]}}
    planned = sp.sweep("tiny", small, points=grid, dry_run=True)
    assert [point.job.optimizer.lr for point in planned.points] == [1e-3, 2e-3]
    assert not planned.folder.exists()
    result = sp.sweep("tiny", small, points=grid, jobs=2)
    assert (result.status, [point.status for point in result.points]) == (0, ["finished"] * 2)
    assert all(math.isfinite(point.metrics["train.loss"]) for point in result.points)
    assert (result.folder / "sweep.json").is_file()
    again = sp.sweep("tiny", small, points=grid, dry_run=True)
    assert [point.plan() for point in again.points] == ["skip: finished"] * 2


def test_the_points_of_a_sweep_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "lr.toml"
    file.write_text(
        'extends = "tiny"\n[sweep.grid]\n"optimizer.lr" = [1e-3, -1]\nwith = ["null"]\n'
    )
    with refused(sp.ConfigError):
        sp.sweep(str(file))
    with refused():
        sp.sweep(str(file), points={"grid": {"seed": [1, 2]}})
    points: Any
    for points in (None, [{"seed": 1}, {"seed": 2}]):
        with refused():
            sp.sweep("tiny", points=points)
    run: Any = "runs/tiny"
    with refused():
        sp.infer(run)
    with refused():
        sp.sweep("tiny", points={"grid": {"workspace": ["a", "b"]}})
    grid = {"grid": {"source": ["tiny", "gpt2-tiny"]}}
    points = sp.sweep("tiny", {"experiment": "x"}, points=grid, dry_run=True).points
    assert [point.job.name for point in points] == ["tiny", "gpt2-tiny"]
