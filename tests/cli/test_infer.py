"""`setpoint infer`, its short forms, and the other commands on an inference job."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import CommandLine

JOB = """\
[weights]
path = "{run}"

[generation]
prompts = ["!", "a"]
temperature = 0
max_tokens = 4

[evaluation]
sequences = 3
"""


TWO = "--prompt a --prompt b --samples 20 --max-tokens 2"


@pytest.fixture(autouse=True)
def job(cli: CommandLine, run: str) -> None:
    cli.file("job.toml", JOB.format(run=run))


def test_a_job_from_a_file(cli: CommandLine, run: str) -> None:
    shown = cli.ok("infer job.toml")
    assert "held_out  " in shown
    assert "--- length, 4 tokens\n!" in shown
    answer = json.loads(cli.ok("infer job.toml --json --output results"))
    held_out = answer["evaluation"]["held_out"]
    assert held_out["tokens"] == 96
    assert f"{held_out['sequences']:,} of {held_out['total_sequences']:,}" in shown
    assert [text["prompt"] for text in answer["texts"]] == ["!", "a"]
    # Results are a source, too: the job that made them.
    assert json.loads(cli.ok("infer results --json")) == answer


def test_prompts_of_another_machine_are_not_checked(cli: CommandLine) -> None:
    line = "check job.toml --generation.prompts [] --generation.prompts_file /mnt/none/p.jsonl"
    cli.refused(line)
    text = cli.ok(f"{line} --world-size 2")
    assert "not checked: generation.prompts_file = '/mnt/none/p.jsonl'" in text


def test_a_profile_of_a_job(cli: CommandLine, run: str) -> None:
    answer = cli("infer job.toml --output results --profiling.active 2")
    assert answer.status == 0 and "held_out  " in answer.out
    assert "2 passes, " in answer.err and "aten::" in answer.err
    assert "profile of passes 3 to 4: results/traces/rank-0/steps-3-4.json.gz" in answer.err
    assert (cli.folder / "results/traces/rank-0/steps-3-4.json.gz").is_file()
    shown = json.loads(cli.ok("infer results --json"))
    assert shown["profiling"]["cycles"][0]["trace"] == "traces/rank-0/steps-3-4.json.gz"
    cli.refused("infer job.toml --profiling.active 2")


def test_the_other_commands_know_such_a_job(cli: CommandLine, run: str) -> None:
    assert cli.ok("check job.toml").startswith("job.toml: ok\n  fingerprint")
    why = cli.ok("why model.dim job.toml")
    assert f"record {run}/checkpoints/step-" in why and "> 32" in why
    assert cli.ok("why generation.max_tokens job.toml").count("job.toml:7:1") == 1
    assert 'path = "' in cli.ok("show job.toml")
    cli.file("more.toml", 'extends = "job.toml"\n[generation]\nmax_tokens = 9\n')
    answer = cli("diff job.toml more.toml")
    assert (answer.status, answer.out.count("\n")) == (1, 3)
    assert "more.toml:3:1" in answer.out
    assert len(cli.ok("fingerprint job.toml").strip()) == 64
    assert "Inference" in cli.ok("schema --job inference")
    cli.refused(f"infer {run}")


def test_a_job_from_python(cli: CommandLine, run: str) -> None:
    cli.file(
        "mine.py",
        "from setpoint.infer.config import EvaluationTask, Inference, InferenceWeights\n\n\n"
        "def judge() -> Inference:\n"
        f"    weights = InferenceWeights(path={run!r})\n"
        "    return Inference(weights=weights, evaluation=EvaluationTask())\n\n\n"
        "def wrong():\n    return 3\n",
    )
    assert "held_out" in cli.ok("infer mine:judge --evaluation.sequences 2")
    assert cli.ok("check mine:judge").startswith("mine:judge: ok")
    cli.refused("infer mine:wrong")


def test_wrong_inference_jobs_are_refused(cli: CommandLine, run: str) -> None:
    cli.file("idle.toml", f'[weights]\npath = "{run}"\n')
    cli.file("other.toml", JOB.format(run="runs/none"))
    lines = [
        "infer", "infer small.toml", "infer idle.toml", "infer other.toml",
        "infer job.toml --model.dim 64 --tokenizer.type huggingface",
        "infer job.toml --weights.checkpoint 7", "infer job.toml --generation.top_k 5",
        "infer job.toml --optimizer.lr 1e-3", "check job.toml --batch.sequence_length 99",
        "generate job.toml", "train job.toml",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


def test_ranks_that_cannot_be(cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By --nproc, and as one of the ranks of another launcher."""
    lines = [
        f"evaluate {run} --nproc 3 --parallel.tensor 2",
        f"generate {run} --parallel.tensor 2 --prompt a",
        "infer job.toml --nproc 2 --parallel.pipeline 2",
        "infer job.toml --nproc 4 --parallel.ring 2",
        "infer job.toml --nproc 2 --batch.global_size 3",
        "infer job.toml --nproc 2 --parallel.bucket_size 4",
        "infer job.toml --nproc 2 --parallel.tensor 2 --parallel.sequence_parallel true",
        "infer job.toml --nproc 2 --config-from-stdin",
        "infer job.toml --parallel.world_size 2",
    ]
    for line in lines:
        cli.refused(line)
    rank = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}
    for name, value in rank.items():
        monkeypatch.setenv(name, value)
    for line in (
        f"evaluate {run} --nproc 2",
        f"generate {run} --prompt -",
        "show small.toml",
        "data prepare small.toml",
        "tokenizer train small.toml --vocab-size 300 -o tokenizer",
    ):
        cli.refused(line)


def test_training_and_inference_have_layouts_of_their_own(cli: CommandLine, run: str) -> None:
    """What is typed of `parallel` is about inference; a file says how the training was divided."""
    text = (cli.folder / "small.toml").read_text()
    cli.file("small.toml", f"{text}\n[parallel]\nshard = 2\n")
    expected = cli.ok(f"evaluate {run}")
    assert cli.ok("evaluate small.toml --parallel.timeout 9 --parallel.replicate 1") == expected
    cli.refused("evaluate small.toml --nproc 2 --parallel.shard 3")
    words = "evaluate small.toml --parallel.tensor 2 --parallel.timeout=9 --optimizer.lr 0.3"
    cli.refused(words)


@pytest.mark.slow
def test_ranks_print_and_write_once(cli: CommandLine, run: str, executable: str) -> None:
    """Those of --nproc and of torchrun; where one is killed, nothing is written."""

    def call(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, cwd=cli.folder, text=True, check=True)
        return done.stdout

    alone = cli.ok("infer job.toml --output alone").replace("alone", "OUT")
    kinds = {
        "started": (executable, "infer", "job.toml", "--nproc", "2", "--parallel.tensor", "2"),
        "launched": (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m",
                     "setpoint", "infer", "job.toml"),
    }  # fmt: skip
    for name, words in kinds.items():
        assert call(*words, "--output", name).replace(name, "OUT") == alone
        texts = [cli.folder / each / "generations.jsonl" for each in ("alone", name)]
        assert texts[0].read_bytes() == texts[1].read_bytes()
    job = (cli.folder / "job.toml").read_text()
    cli.file("long.toml", job.replace("max_tokens = 4", "max_tokens = 1000000"))
    words = [executable, "infer", "long.toml", "--nproc", "2", "--output", "killed"]
    ranks = subprocess.Popen(words, cwd=cli.folder, stderr=subprocess.PIPE, text=True)
    ends = time.monotonic() + 60
    while not (found := [pid for pid in ranks_of(ranks.pid) if pid]) and time.monotonic() < ends:
        time.sleep(0.1)
    time.sleep(5)
    os.kill(found[0], signal.SIGKILL)
    said = ranks.communicate(timeout=60)[1]
    assert ranks.returncode == 1 and "rank 1 ended by signal SIGKILL" in said
    assert not (cli.folder / "killed" / "results.json").exists()


def ranks_of(launcher: int) -> list[int]:
    """The processes that are rank 1 of a launcher."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                is_child = f"PPid:\t{launcher}\n" in (entry / "status").read_text()
                if is_child and b"\0RANK=1\0" in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended
    return found


def test_evaluate_scores_sides_and_texts(cli: CommandLine, run: str) -> None:
    (row,) = [
        json.loads(line)
        for line in (cli.folder / run / "metrics.jsonl").read_text().splitlines()
        if "held_out_loss" in line
    ]
    found = json.loads(cli.ok(f"evaluate {run} --json"))
    assert found["evaluation"]["held_out"]["loss"] == pytest.approx(row["held_out_loss"])
    cli.file("a b.txt", "!" * 100)
    shown = cli.ok("evaluate small.toml --side train --text 'a b.txt' --text 'a b.txt'")
    assert [line.split()[0] for line in shown.splitlines()] == ["text", "train", "a-b", "a-b-2"]
    cli.refused(f"evaluate {run} --side both")
    cli.refused(f"evaluate {run} --text")
    cli.refused(f"evaluate {run} --text none.txt")


def test_evaluate_scores_the_answers_of_conversations(cli: CommandLine, run: str) -> None:
    """Files of conversations are known by their first row; their answers are what counts."""
    rows = [{"prompt": "say a", "completion": "a"}, {"prompt": "b?", "completion": "bb"}]
    cli.file("chats.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    cli.file("mixed.jsonl", json.dumps({"text": "!" * 9, "messages": []}) + "\n")
    texts = "--text chats.jsonl --text mixed.jsonl --template plain"
    found = json.loads(cli.ok(f"evaluate {run} {texts} --json"))["evaluation"]
    assert [(each["tokens"], each["bytes"]) for each in found.values()] == [(5, 3), (10, 9)]
    cli.refused(f"evaluate {run} --text chats.jsonl")
    cli.file("a.txt", "!" * 9)
    for texts in ("--text a.txt", "--text none.jsonl"):
        cli.refused(f"evaluate {run} {texts} --template plain")
    cli.refused(f"evaluate {run} --side train --template plain")
    cli.file("other.jsonl", json.dumps({"body": "!"}) + "\n")
    cli.refused(f"evaluate {run} --text other.jsonl")


def test_long_work_is_shown_beside_the_results(
    cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {line: cli(line).out for line in (f"evaluate {run} --json", f"generate {run} {TWO}")}
    for name in ("SECONDS_BEFORE_LINES", "SECONDS_BETWEEN_LINES"):
        monkeypatch.setattr(f"setpoint.track.progress.{name}", 0.0)
    words = ("evaluating held_out, sequences: ", "generating, texts: ")
    for (line, out), what in zip(quiet.items(), words, strict=True):
        answer = cli(line)
        assert answer.out == out
        assert what in answer.err


def test_an_export_scores_and_writes_the_same(cli: CommandLine, run: str) -> None:
    done = cli(f"export {run} hf")
    assert done.out.endswith("is written to hf\n")
    assert "caution: hf has no tokenizer files, as tokenizer.type = bytes has none" in done.err
    ours, theirs = (
        json.loads(cli.ok(f"evaluate {source} --text small.toml --json"))["evaluation"]["small"]
        for source in (run, "hf --tokenizer bytes --batch.sequence_length 32")
    )
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-5)
    one, two = (
        cli.ok(f"generate {source} --prompt '!' --temperature 0")
        for source in (run, "hf --tokenizer bytes")
    )
    assert one == two
    cli.refused("generate hf")
    cli.refused("generate hf --checkpoint best")
    cli.refused(f"generate {run} hf")
    cli.refused(f"export {run} hf")
    cli.refused(f"export {run} new --dtype int8")


def test_cautions_of_an_export_are_printed(
    cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("setpoint.infer.exporting.tokenizer_caution", lambda _: "read otherwise")
    assert "caution: read otherwise" in cli(f"export {run} hf").err
    (cli.folder / "job.toml").write_text(
        f'weights = {{ path = "{run}" }}\nexport = {{ path = "other" }}\noutput = "out"\n'
    )
    assert "caution: read otherwise" in cli("infer job.toml").err
    results = json.loads((cli.folder / "out" / "results.json").read_text())
    assert results["cautions"][0] == "read otherwise" and len(results["cautions"]) == 2


def test_generate_takes_several_prompts_and_samples(cli: CommandLine, run: str) -> None:
    (cli.folder / "prompts.jsonl").write_text('{"prompt": "#"}\n')
    shown = cli.ok(
        f"generate {run} --prompt ! --prompt a --samples 2 --prompts-file prompts.jsonl "
        f"--max-tokens 3 --top-p 0.9 --min-p 0.01 --repetition-penalty 1.1 --output out"
    )
    texts = shown.removesuffix("\n").split("\n---\n")
    assert [text[0] for text in texts] == ["!", "!", "a", "a", "#", "#"]
    rows = (cli.folder / "out" / "generations.jsonl").read_text().splitlines()
    assert [json.loads(row)["prompt"] + json.loads(row)["text"] for row in rows] == texts


def test_generate_stops_and_needs_no_cache(cli: CommandLine, run: str) -> None:
    line = f"generate {run} --prompt '!' --temperature 0 --max-tokens 20"
    whole = cli.ok(line)
    assert cli.ok(f"{line} --no-cache") == whole
    stop = whole[3:5]
    cut = whole[: 1 + whole[1:].index(stop)] + "\n"
    assert cli.ok(f"{line} --stop='{stop}'") == cut
    assert cli.ok(f"{line} --model.attention_backend eager") == whole


def test_a_variable_that_sounds_like_an_option_is_refused(
    cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETPOINT__EVALUATION__SEQUENCES", "3")
    cli.refused(f"evaluate {run}")
    monkeypatch.delenv("SETPOINT__EVALUATION__SEQUENCES")
    monkeypatch.setenv("SETPOINT__TRACKING__EVERY", "3")
    assert cli(f"evaluate {run}").status == 0
