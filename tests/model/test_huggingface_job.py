"""Whole jobs of transformers' families: train, resume, evaluate, export, use by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.cli.main import main
from setpoint.infer.adopt import complete
from setpoint.infer.config import EvaluationTask, Inference, InferenceWeights
from setpoint.infer.inference import infer
from setpoint.model.config import HuggingFaceConfig
from setpoint.train.run import train

from ..train.small import assert_same_run
from .huggingface_families import family_job

ENDS = (
    "evaluation={every: 3 steps, sequences: 4}",
    "checkpoint.every=3 steps",
    "data.held_out=0.1",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt_oss", "qwen3_next"])
def test_a_job_from_data_to_text(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    whole = train(family_job(tmp_path / "whole", kind, *ENDS, "duration=6 steps")).directory
    train(family_job(tmp_path, kind, *ENDS, "duration=3 steps"))
    outcome = train(family_job(tmp_path, kind, *ENDS, "duration=6 steps"))
    assert outcome.started.step == 3
    run = outcome.directory
    assert_same_run(run, whole)

    assert main(["evaluate", str(run), "--side", "held_out", "--json"]) == 0
    of_run = json.loads(capsys.readouterr().out)["evaluation"]["held_out"]
    exported = tmp_path / "exported"
    assert main(["export", str(run), str(exported)]) == 0
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(exported)
    assert theirs.config._attn_implementation != "setpoint"
    capsys.readouterr()
    words = ["--prompt", "abc", "--max-tokens", "8", "--temperature", "0"]
    assert main(["generate", str(run), *words]) == 0
    said = capsys.readouterr().out
    # As an export it is a model like others.
    by_bytes = ["--tokenizer", "bytes"]
    assert main(["generate", str(exported), *by_bytes, *words]) == 0
    assert capsys.readouterr().out == said
    job = complete(Inference(weights=InferenceWeights(path=str(run)), evaluation=EvaluationTask()))
    again = job.evolve(
        weights=InferenceWeights(path=str(exported)), model=HuggingFaceConfig(), output=None
    )
    found = infer(again).scores["held_out"]
    assert found.loss == pytest.approx(of_run["loss"], rel=1e-6)
    prompt = torch.tensor([list(b"abc")])
    with torch.no_grad():
        texts = theirs.generate(prompt, max_new_tokens=8, do_sample=False)
    assert (
        bytes(token for token in texts[0].tolist() if token < 256).decode(errors="replace") in said
    )
