"""`setpoint check` and `setpoint plan`."""

import json
import os
import re
import tempfile
from pathlib import Path

import pytest

from ..support.snapshots import compare
from ..train.small import snapshot
from .conftest import SMALL, CommandLine


def test_check_shows_the_run(cli: CommandLine) -> None:
    compare("cli/check", cli.ok("check small.toml"))


def test_the_valid_values_offered_are_valid(cli: CommandLine) -> None:
    for size in ("100", "9", "1023"):
        text = cli.refused(f"check small.toml --batch.global_size {size} --world-size 3")
        offered = re.search(r"Valid: (.*)", text)
        assert offered is not None
        for value in offered[1].split(", "):
            cli.ok(f"check small.toml --batch.global_size {value} --world-size 3")


def test_check_has_a_json_form(cli: CommandLine) -> None:
    line = "check small.toml --compile.scope block --world-size 1 --json"
    found = json.loads(cli.ok(line))
    assert found["ok"] is True
    assert found["fingerprint"] == cli.ok("fingerprint small.toml").strip()
    assert found["facts"] and found["skipped"]


def test_torch_is_asked_where_a_value_calls_for_it(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from setpoint.cli import check

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = "check small.toml --parallel.device cuda"
    cli.refused(line)
    named = "the device is there (needs torch: --using torch)\n"
    for elsewhere in ("--world-size 1", "--parallel.world_size 2"):
        assert named in cli.ok(f"{line} {elsewhere}")
    # Building a model imports what it names, which is done where that is asked for.
    own = "--model huggingface --model.config gpt2 --optimizer.no_decay_patterns '[\"bias\"]'"
    text = cli.ok(f"check tiny {own}")
    assert "of the built model (needs import and torch: --using import,torch)\n" in text
    monkeypatch.setattr(check, "has_torch", lambda: False)
    assert "the device is there (needs torch, which is not installed)\n" in cli.ok(line)


def test_files_without_text_are_refused(cli: CommandLine) -> None:
    line = "check tiny --data.sources text --data.sources.0.paths"
    cli.refused(f"{line} {cli.file('e.txt', '')} --data.held_out 1")
    (cli.folder / "b.txt").write_bytes(bytes(range(256)))
    cli.refused(f"{line} b.txt")
    assert "not UTF-8" not in cli.ok(f"{line} {cli.file('u.txt', 'é' * 4000)}")


def test_paths_of_another_machine_are_not_checked(cli: CommandLine) -> None:
    (cli.folder / "weights").mkdir()
    line = (
        f"check tiny --data.sources text --data.sources.0.paths '[/mnt/none/*.txt]' "
        f"--model.pretrained {tempfile.gettempdir()}/llama-none --tokenizer.type huggingface "
        "--tokenizer.path ./assets/hf/none"
    )
    here = cli(line).err  # which lists what is in /mnt
    text = cli.ok(f"{line} --world-size 8")
    for path in ("data.sources.0.paths.0", "model.pretrained", "tokenizer.path"):
        assert f"  {path} = " in here
        assert f"  not checked: {path} = " in text
    assert "3 problems" in cli(f"{line} --parallel.world_size 8").err
    cli.file("infer.toml", '[weights]\npath = "/mnt/none/llama"\n[generation]\nprompts = ["a"]\n')
    cli.refused("check infer.toml --world-size 2 --plan")
    assert "not checked: weights.path = '/mnt/none/llama'" in cli.ok(
        "check infer.toml --world-size 2"
    )
    cli.refused("check infer.toml --world-size 2 --weights.paht x")
    for name in ("./none", "$DATA/none", "$NONE"):
        assert f"tokenizer.path = '{name}'" in cli.ok(
            f"{line} --tokenizer.path {name} --world-size 8"
        )
    # A misspelt name in a folder of this machine.
    line = "check tiny --world-size 8 --tokenizer huggingface --tokenizer.path"
    for name in (f"{cli.folder}/none", "none", "assets/hf/none"):
        cli.refused(f"{line} {name}")
    line = "check tiny --world-size 8 --data.sources text --data.sources.0.paths"
    cli.file("train.txt", "a b c")
    cli.refused(f"{line} '[./trian.txt]'")
    cli.file("texts/a.txt", "a b c")
    cli.refused(f"{line} '[./txets/a.txt]'")
    assert "matches no file" in cli(f"{line} '[{cli.folder}/*/a.jsonl]'").err
    text = cli.ok(f"{line} '[./*.jsonl,./*/a.jsonl,$DATA/a.txt]'")
    assert text.count("this path does not exist on this machine") == 2
    assert "'$DATA/a.txt': it has a variable, which Setpoint does not expand" in text
    line = "check tiny --world-size 2 --data.sources huggingface --data.sources.0.path"
    cli.refused(f"{line} not/a/hub/id")
    assert "not checked: data.sources.0.path = " in cli.ok(f"{line} /mnt/none/of/these")


def test_what_a_later_layer_took_from_a_modifier(cli: CommandLine) -> None:
    line = "duration = '10 steps' of --with smoke, by command line --duration"
    words = "check small.toml --with smoke --duration '7 steps'"
    assert f"  overridden: {line}\n" in cli.ok(words)
    assert json.loads(cli.ok(f"{words} --json"))["overridden"] == [line]
    assert json.loads(cli.ok("check small.toml --json"))["overridden"] == []


def test_the_plan_shows_groups(cli: CommandLine) -> None:
    group = "{pattern = norm, lr_multiplier = 0.5, options = {betas = [0.8, 0.9]}}"
    words = f"check small.toml --plan --optimizer muon --optimizer.groups '[{group}]'"
    compare("cli/check_plan", cli.ok(words).partition("parameter groups")[2])
    found = json.loads(cli.ok(f"{words} --json"))["plan"]["groups"]
    assert found[-1]["options"] == {"algorithm": "adamw", "betas": [0.8, 0.9]}
    assert "plan" not in json.loads(cli.ok("check small.toml --json"))


def test_the_plan_of_any_rank(cli: CommandLine) -> None:
    flags = "--world-size 8 --parallel.shard 4 --parallel.tensor 2 --batch.global_size 8 --plan"
    words = f"check tiny {flags} --rank 5"
    text = cli.ok(words)
    assert "rank 5 of 8 (shard 2, tensor 1)" in text
    assert "  shard   4       2   1 3 [5] 7" in text and "reduce_scatter" in text
    plan = json.loads(cli.ok(f"{words} --json"))["plan"]
    assert plan["flops_per_token"] and "causal mask" in plan["flops_formula"]
    assert plan["mesh"]["at"] == {
        "pipeline": 0, "replicate": 0, "shard": 2, "ring": 0, "ulysses": 0, "tensor": 1
    }  # fmt: skip
    memory = plan["memory"]
    assert memory["total"] == sum(
        memory[part]
        for part in ("weights", "masters", "optimizer", "buffers", "gradients", "activations",
                     "recomputed", "logits", "gathered")
    )  # fmt: skip
    cli.refused(f"check tiny {flags} --rank 8")
    cli.refused("check tiny --rank 1")


def test_what_is_held_out(cli: CommandLine) -> None:
    cli.file("val.txt", "a line of text\n" * 99)
    validation = "--data.validation text --data.validation.0.paths val.txt"
    cli.file("none.toml", SMALL.replace("held_out = 0.2\n", ""))
    cli.ok(f"check none.toml {validation}")
    cli.ok(f"check none.toml --data.held_out 0 {validation}")  # which is what holds anyway
    cli.refused("check small.toml --data.held_out 0")
    cli.ok("check small.toml --data.held_out 0 --evaluation null")
    cli.refused(f"check none.toml --data.held_out 0.1 {validation}")


def test_the_expected_time_and_cost_of_a_step(cli: CommandLine) -> None:
    words = "check small.toml --world-size 2 --parallel.shard 2 --plan --gpu h100 --price 2"
    text = cli.ok(f"{words} --timeline page.html")
    compare("cli/check_expected", text.partition("\nexpected on ")[2])
    page = (cli.folder / "page.html").read_text()
    assert "small.toml on 2 x NVIDIA H100 SXM5 80 GB" in page
    assert "<rect" in page
    found = json.loads(cli.ok(f"{words} --json"))["expected"]
    assert found["seconds"] == pytest.approx(sum(found["parts"].values()))
    assert found["cost"]["money"] == pytest.approx(2 * found["cost"]["gpu_hours"])


def test_a_run_whose_batch_grows_costs_its_sequences(cli: CommandLine) -> None:
    words = "check small.toml --plan --gpu h100 --batch.global_size 8 --batch.micro_size 2 --json"
    ramp = "--duration 10 --batch.ramp '{start: 2, increment: 6, over: 5 steps}'"
    whole, grown = (json.loads(cli.ok(f"{words} {more}"))["expected"] for more in ("", ramp))
    assert grown["seconds"] == whole["seconds"]  # of the full batch
    assert grown["cost"]["steps"] == 10
    # Five steps of a quarter, and five.
    assert grown["cost"]["seconds"] == pytest.approx(6.25 * whole["seconds"])


@pytest.mark.parametrize(
    "words",
    [
        "--price 2 --plan",
        "--gpu h100 --price 2",
        "--plan --gpu h10",
        "--plan --gpu h100 --gpu-file none.toml",
        "--plan --gpu h100 --timeline notes.html",
        "--plan --gpu h100 --duration '1e-9 s'",
        "--plan --gpu h100 --price -1",
    ],
)
def test_what_cannot_be_expected_is_refused(cli: CommandLine, words: str) -> None:
    cli.file("notes.html", "mine")
    cli.refused(f"check small.toml {words}")


def test_a_job_that_no_gpu_has_memory_for_is_cautioned(cli: CommandLine) -> None:
    line = "check llama3-1b --world-size 4 --gpu rtx4090 --parallel.shard 1 --loss cross_entropy"
    text = cli.ok(line)
    assert "llama3-1b: ok, but a rank needs more memory than the GPU has" in text
    found = re.search(r"It needs ([\d.]+) GiB with (--\S+=.*)\.\n", text)
    assert found is not None and float(found[1]) < 0.9 * 24
    assert "memory-exceeds-gpu" not in cli.ok(f"{line} {found[2]}")
    assert "memory-exceeds-gpu" not in cli.ok(f"{line} --silence.append memory-exceeds-gpu")
    many = cli.ok("check llama3-8b --gpu rtx4090")
    assert re.search(r"makes it fit here\. On (8|16|32) ranks it fits with --", many)


def test_a_gpu_that_is_named_is_the_device(cli: CommandLine) -> None:
    assert "fp32-without-tf32" in cli.ok("check small.toml --gpu h100")
    float8 = "small.toml --precision.compute bf16 --model.dim 64 --precision.float8 {}"
    assert "fp32-without-tf32" not in cli.ok(f"check {float8} --gpu h100")
    cli.refused(f"check {float8}")
    cli.refused(f"check {float8} --gpu h100 --parallel.device cpu")
    cli.ok(f"plan {float8} --gpu h100 --world-size 4 --batch.global_size 16 --top 1")
    cli.ok("check small.toml --gpu h100 --precision.compute bf16 --using torch")


@pytest.mark.parametrize(
    ("gpu", "flags", "path"),
    [
        ("v100", "--precision.compute bf16", "precision.compute"),
        ("a100", "--precision.float8 {} --compile {}", "precision.float8.recipe"),
        ("h100", "--precision.float8.recipe mxfp8 --compile {}", "precision.float8.recipe"),
        ("a100", "--model.attention_backend flash_attention_3", "model.attention_backend"),
    ],
)
def test_what_a_gpu_has_no_kernels_for_is_cautioned(
    cli: CommandLine, gpu: str, flags: str, path: str
) -> None:
    line = f"check tiny --parallel.device cuda --world-size 1 {flags} --gpu"
    text = cli.ok(f"{line} {gpu}")
    assert f"caution: {path}" in text and "gpu-lacks-kernels" in text
    able = "h100" if "flash" in flags else "b200"
    assert "gpu-lacks-kernels" not in cli.ok(f"{line} {able}")


@pytest.mark.parametrize(
    "line",
    [
        "train -3",
        "--seed 3 check tiny",
        "train small.toml --world-size=8",
        "replay small.toml -3",
        "generate small.toml --seed null --prompt a",
        # An imported model takes any argument, so that `model.experts` exists for it alone.
        "check tiny --moe.experts 8",
        "check small.toml --compile inductor",
    ],
)
def test_a_refusal_names_the_value(cli: CommandLine, line: str) -> None:
    cli.refused(line)


def test_what_training_cannot_read_is_refused(cli: CommandLine) -> None:
    """By the first row of each file, so that `check` says what `train` would."""
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    cli.file("rows.jsonl", '{"text": "a"}\n')
    cli.file("wide.txt", "text".encode("utf-16"))
    parquet.write_table(arrow.table({"text": arrow.array([], arrow.string())}), "empty.parquet")
    parquet.write_table(arrow.table({"body": ["a b"]}), "body.parquet")
    cli.file("cut.parquet", Path("body.parquet").read_bytes()[:40])
    cli.file("one.txt", "some text")
    for words in (
        "wide.txt", "empty.parquet", "body.parquet", "rows.jsonl --data.sources.0.field body",
        "one.txt --data.held_out 1", "one.txt --data.sources.0.streaming true",
    ):  # fmt: skip
        name, _, more = words.partition(" ")
        sources = f"""--data.sources '[{{"type": "text", "paths": ["{name}"]}}]' {more}"""
        for command in ("check", "train"):
            cli.refused(f"{command} small.toml {sources} --duration '1 steps'")
    cut = """--data.sources '[{"type": "text", "paths": ["cut.parquet"]}]'"""
    assert "cannot read" in cli(f"check small.toml {cut}").err  # in the words of pyarrow
    chats = """--data.sources '[{"type": "conversations", "paths": ["empty.parquet"]}]'"""
    cli.refused(f"check small.toml {chats} --evaluation null")


def test_a_run_that_could_not_go_on_is_refused(cli: CommandLine) -> None:
    cli.ok("train small.toml --duration '2 steps' --schedule cosine --tracking.progress none")
    cli.ok("check small.toml --duration '2 steps' --schedule cosine")
    cli.refused("check small.toml --duration '4 steps' --schedule cosine")
    folder = next(Path("runs").iterdir())
    cli.refused(f"check {folder} --optimizer.lr 0.5")
    assert f"run directory    {folder}\n" in cli.ok(f"check {folder}")


def test_a_file_whose_run_was_lengthened_is_still_valid(cli: CommandLine) -> None:
    train = "train small.toml --schedule constant --tracking.progress none"
    cli.ok(f"{train} --duration '2 steps'")
    cli.ok(f"{train} --duration '3 steps'")
    text = cli.ok("check small.toml --schedule constant --duration '2 steps'")
    assert "training         refused: the run is longer" in text
    assert cli.ok("check small.toml --schedule constant --duration '4 steps'")


# `setpoint plan`.

PLAN = "plan small.toml --gpu h100 --world-size 4 --batch.global_size 16"
FREE = "--batch.micro_size 1 --top 3"


def test_the_best_are_overrides_that_resolve(cli: CommandLine) -> None:
    found = json.loads(cli.ok(f"{PLAN} {FREE} --json"))
    assert found["fixed"] == {"micro_size": 1}
    assert len(found["best"]) == 3
    seconds = [each["seconds"] for each in found["best"]]
    assert seconds == sorted(seconds)
    flags = " ".join(f"'{each}'" for each in found["best"][0]["overrides"])
    line = f"check small.toml --world-size 4 --batch.global_size 16 --batch.micro_size 1 {flags}"
    checked = json.loads(cli.ok(f"{line} --plan --gpu h100 --json"))
    assert checked["expected"]["seconds"] == seconds[0]


def test_plan_shows_the_best_layouts(cli: CommandLine) -> None:
    out = cli.ok(f"{PLAN} {FREE} --price 2")
    assert "fixed: micro_size = 1" in out
    assert "topologies timed" in out and "GPU-hours" in out and "\n1: --" in out


@pytest.mark.parametrize(
    "line",
    [
        "plan small.toml --world-size 4",
        "plan small.toml --gpu h100",
        "plan small.toml --gpu h100 --world-size 1",
        f"{PLAN} --memory 0",
        "plan small.toml --gpu h10 --world-size 4",
        f"{PLAN} --memory 100GiB",
        f"{PLAN} --memory lots",
        f"{PLAN} --parallel.shard 3",
        f"{PLAN} --duration '1e-6 s'",
        "plan tiny --gpu h100 --world-size 6 --batch.global_size 7 --parallel.shard 6",
        f"{PLAN} --adapter lora",
    ],
)
def test_wrong_plans_are_refused(cli: CommandLine, line: str) -> None:
    cli.refused(line)


def test_where_nothing_fits_it_says_by_how_much_and_what_would(cli: CommandLine) -> None:
    cli.refused(f"{PLAN} --memory 100KiB")


def test_commands_that_train_nothing_change_no_file_and_no_variable(cli: CommandLine) -> None:
    before = snapshot(cli.folder), dict(os.environ)
    for line in ("check small.toml", "show small.toml", "sweep small.toml --seed 1,2 --dry-run"):
        cli.ok(line)
    assert (snapshot(cli.folder), dict(os.environ)) == before
