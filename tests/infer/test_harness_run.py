"""The harness itself, on a task of a local file, where it is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.infer.config import Harness, Inference, InferenceWeights
from setpoint.infer.harness import open_harness
from setpoint.infer.inference import infer
from setpoint.train.config import Job

TASK = """\
task: next_symbol
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


def test_without_the_package(trained: tuple[Job, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    job = Inference(
        weights=InferenceWeights(path=str(trained[1])), harness=Harness(tasks=("arc_easy",))
    )
    with pytest.raises(SetpointError, match=r"needs the package 'lm_eval.*install 'setpoint\[har"):
        infer(job)


@pytest.mark.filterwarnings("default")
def test_a_task_of_a_local_file(
    trained: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    symbols = " !\"#$%&'"
    rows = [
        {
            "context": symbols[start : start + 3],
            "choices": [symbols[(start + 5) % 8], symbols[(start + 3) % 8]],
            "answer": 1,
        }
        for start in range(5)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "next_symbol.yaml").write_text(TASK.format(file=file))
    found = infer(
        Inference(
            weights=InferenceWeights(path=str(trained[1])),
            harness=Harness(tasks=("next_symbol",), tasks_path=tmp_path / "tasks"),
        )
    )
    assert found.harness["next_symbol"]["acc"] == 1.0


@pytest.mark.filterwarnings("default")
def test_a_task_that_there_is_not() -> None:
    pytest.importorskip("lm_eval")
    with pytest.raises(SetpointError, match="the harness has no task 'arc_esy'.*arc_easy"):
        open_harness(Harness(tasks=("arc_esy",)))
