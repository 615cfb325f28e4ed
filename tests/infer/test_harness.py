"""What the harness asks, against the model called by hand."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from setpoint.infer.config import Harness
from setpoint.infer.harness import Answers, open_harness, section_of
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import LoadedModel
from setpoint.train.config import Job

from ..support.snapshots import refused
from .small import inference

END = 256  # the separator of bytes


@pytest.fixture(params=[1, 3])
def answers(request: pytest.FixtureRequest, loaded: LoadedModel) -> Answers:
    return Answers(loaded, micro_size=request.param, seed=0)


def by_hand(loaded: LoadedModel, before: list[int], after: list[int]) -> tuple[float, bool]:
    """One token at a time, with all that the model can see before it."""
    total, greedy, seen = 0.0, True, list(before)
    for token in after:
        with torch.no_grad():
            logits = loaded.model(torch.tensor([seen[-loaded.context :]]))[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
        greedy = greedy and int(logits.argmax()) == token
        seen.append(token)
    return total, greedy


def test_likelihoods(answers: Answers, loaded: LoadedModel) -> None:
    # Spaces at the end of a context belong to what follows.
    pairs = [('!"#', "$%&"), ("", '!"'), ("abc", "!"), (' !"#$%', "&'"), ("!  ", "x")]
    found = answers.loglikelihood(pairs)
    assert len({each.is_greedy for each in found}) == 2
    for (context, continuation), each in zip(pairs, found, strict=True):
        before = context.rstrip() if context.endswith("  ") else context
        after = context.removeprefix(before) + continuation
        expected = by_hand(loaded, [END, *before.encode()], list(after.encode()))
        assert each.log_probability == pytest.approx(expected[0], abs=1e-4)
        assert each.is_greedy == expected[1]


def test_a_context_that_is_too_long_is_cut_from_the_left(
    answers: Answers, loaded: LoadedModel
) -> None:
    context = " !\"#$%&'" * 8
    (found,) = answers.loglikelihood([(context, " ")])
    assert found.log_probability == pytest.approx(
        by_hand(loaded, list(context.encode()), [32])[0], abs=1e-4
    )
    with refused():
        answers.loglikelihood([("!", context)])
    with refused():
        answers.loglikelihood([("!", "")])


def test_rolling(answers: Answers, loaded: LoadedModel) -> None:
    """Each token once, in the windows of lm-evaluation-harness's `get_rolling_token_windows`."""
    context = loaded.context
    texts = ['!"#', "a" * 40, "", " !\"#$%&' !\"#$%&'", '!"#$%' * context + "&"]
    found = answers.loglikelihood_rolling(texts)
    for text, total in zip(texts, found, strict=True):
        tokens, expected = list(text.encode()), 0.0
        for first in range(0, len(tokens), context):
            last = min(first + context, len(tokens))
            # The last window sees as many tokens as the others, of which it predicts the end.
            before = [END, *tokens][: first + 1][last - first - context - 1 :]
            expected += by_hand(loaded, before, tokens[first:last])[0]
        assert total == pytest.approx(expected, abs=1e-3)


def test_generation(answers: Answers) -> None:
    requests = [
        ('!"#', {"until": ["'"], "max_gen_toks": 10}),
        ("!", {"until": "&", "max_gen_toks": 3, "do_sample": False}),
        ('!"#', {"until": [], "max_gen_toks": 2, "temperature": 0.0, "top_p": 0.9}),
    ]
    assert answers.generate_until(requests) == ["$%&", '"#$', "$%"]


def test_a_tokenizer_that_opens_with_nothing(loaded: LoadedModel) -> None:
    """The separator stands where there would be nothing to predict the first token from."""
    bare = Answers(replace(loaded, opening=()), 2, 0)
    (alone,) = bare.loglikelihood([("", "!")])
    assert alone.log_probability == pytest.approx(by_hand(loaded, [END], [33])[0], abs=1e-4)
    (after,) = bare.loglikelihood([('"', "!")])
    assert after.log_probability == pytest.approx(by_hand(loaded, [34], [33])[0], abs=1e-4)


def test_settings_of_tasks() -> None:
    section = section_of({"until": ["\n", ""], "temperature": 0.7, "top_p": 0.9, "do_sample": True})
    assert (section.stop, section.temperature, section.top_p) == (("\n",), 0.7, 0.9)
    assert section.max_tokens == 256
    # Greedy: what a draw would be limited to has no effect, and is left out.
    assert section_of({"do_sample": False, "temperature": 1.0, "top_k": 5}).top_k is None
    with refused():
        section_of({"num_beams": 4})


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
    job = inference(trained[1], harness=Harness(tasks=("arc_easy",)))
    with refused():
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
        inference(
            trained[1], harness=Harness(tasks=("next_symbol",), tasks_path=tmp_path / "tasks")
        )
    )
    assert found.harness["next_symbol"]["acc"] == 1.0


@pytest.mark.filterwarnings("default")
def test_a_task_that_there_is_not() -> None:
    pytest.importorskip("lm_eval")
    with refused():
        open_harness(Harness(tasks=("arc_esy",)))
