"""The score against a direct computation, and bits per byte against its formula."""

import json
import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from setpoint.config.values.user_code import allow_imports
from setpoint.data.corpus import Corpus
from setpoint.data.loader import EvaluationFeed
from setpoint.data.sources.config import Conversations
from setpoint.infer.adopt import complete
from setpoint.infer.config import EvaluationTask, Inference, InferenceWeights
from setpoint.infer.loaded_model import load
from setpoint.infer.score import score_texts
from setpoint.infer.tasks import DataSet
from setpoint.shapes.scoring import Score
from setpoint.train.build.components import build_components, data_line
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluate, measure_of
from setpoint.train.run import train

from ...support.cases import few
from ..small import rows, small_job, stepped

allow_imports(__name__)
LOSSES = ("loss=cross_entropy", "loss=chunked_cross_entropy")
WEB = (
    "evaluation.datasets=[{name=web, sequences=5, sources=[{type=random, documents=9, length=90, "
    "alphabet=8, seed=3}, {type=random, name=more, documents=2, length=300, alphabet=9}]}]"
)


def held_out(job: Job) -> Score:
    """The score of held-out text before training."""
    return evaluate(job, build_components(job))["held_out"]


def computed(
    model: torch.nn.Module, corpus: Corpus, length: int, sequences: int | None
) -> tuple[float, int, int, int]:
    """Nats, tokens, bytes and right guesses, window by window.

    Each token but the first is predicted once, from what precedes it in its own window.
    """
    tokens = torch.from_numpy(corpus.tokens.astype(np.int64))
    end = min(len(tokens) - 1, len(tokens) if sequences is None else sequences * length)
    nats, count, right = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, end, length):
            stop = min(start + length, end)
            logits = model(tokens[None, start:stop])[0].double()
            wanted = tokens[start + 1 : stop + 1]
            nats += float(F.cross_entropy(logits, wanted, reduction="sum"))
            right += int(np.sum(np.argmax(logits.numpy(), axis=1) == wanted.numpy()))
            count += stop - start
    return nats, count, int((tokens[1 : end + 1] != 256).sum()), right


@pytest.mark.parametrize(("sequences", "sequence_length"), [("null", 23), ("7", 16), ("9999", 23)])
def test_equal_to_a_direct_computation(
    tmp_path: Path, sequences: str, sequence_length: int
) -> None:
    job = small_job(
        tmp_path, f"evaluation.sequences={sequences}", f"batch.sequence_length={sequence_length}"
    )
    components = build_components(job)
    score = evaluate(job, components)["held_out"]
    limit = None if sequences == "null" else int(sequences)
    nats, count, size, _ = computed(
        components.model, components.held_out.corpus, sequence_length, limit
    )
    assert score.tokens == count
    assert score.loss == pytest.approx(nats / count, rel=1e-6)
    assert score.perplexity == pytest.approx(np.exp(nats / count), rel=1e-6)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-6)
    assert score.accuracy is None


@pytest.mark.parametrize("loss", LOSSES)
def test_named_data_sets_and_accuracy(tmp_path: Path, loss: str) -> None:
    job = small_job(tmp_path, WEB, "evaluation.accuracy=true", loss)
    components = stepped(job)
    scores = evaluate(job, components)
    assert list(scores) == ["held_out", "web"]
    assert len(components.eval_sets["web"].identity.files) == 11
    for name, corpus, sequences in (
        ("held_out", components.held_out.corpus, 12),
        ("web", components.eval_sets["web"].corpus, 5),
    ):
        nats, count, size, right = computed(components.model, corpus, 16, sequences)
        score = scores[name]
        assert score.tokens == count == 16 * sequences
        assert score.loss == pytest.approx(nats / count, rel=1e-6)
        assert score.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-6)
        assert score.accuracy == right / count and right > 0
    assert evaluate(job, components) == scores, "the same sequences each time"


def write_chats(path: Path, seed: int) -> list[tuple[str, str]]:
    """Conversations of one question; the answer is the question in capitals."""
    drawn = np.random.default_rng(seed)
    chats: list[tuple[str, str]] = []
    for length in drawn.integers(2, 9, 12).tolist():
        question = "".join(drawn.choice([*"abcde"], length))
        chats.append((question, question.upper()))
    rows = [{"prompt": question, "completion": answer} for question, answer in chats]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return chats


def of_answers(
    model: torch.nn.Module, chats: list[tuple[str, str]], front: list[int]
) -> tuple[float, int, int]:
    """Nats, targets and bytes of answers with their ends, conversation by conversation."""
    nats, count, size = 0.0, 0, 0
    model.eval()
    for question, answer in chats:
        prompt, wanted = [*front, *question.encode()], [*answer.encode(), 256]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *wanted]]))[0, len(prompt) - 1 : -1]
        nats += float(F.cross_entropy(logits.double(), torch.tensor(wanted), reduction="sum"))
        count, size = count + len(wanted), size + len(answer)
    return nats, count, size


def chat_flags(folder: Path, method: str) -> tuple[str, ...]:
    """Conversations to train and evaluate on, another set, and one with text in a stream."""
    source = "{{type=conversations, template=plain, paths=[{}]}}"
    train, held = (source.format(folder / name) for name in ("train.jsonl", "held.jsonl"))
    return (
        f"data.sources=[{train}]", f"data.validation=[{held}]", f"data.packing.method={method}",
        f"evaluation.datasets=[{{name=trained, sequences=null, sources=[{train}]}}, "
        "{name=text, sources=[{type=random, documents=9, length=90}]}]",
        "evaluation.sequences=null", "batch.sequence_length=32", "model.dropout=0",
    )  # fmt: skip


@pytest.mark.parametrize("method", ["none", "first_fit_decreasing"])
def test_conversations_as_they_are_trained(tmp_path: Path, method: str) -> None:
    """Answers given nothing but their own conversation; the best step is that of the loop."""
    train_chats = write_chats(tmp_path / "train.jsonl", 0)
    chats = write_chats(tmp_path / "held.jsonl", 1)
    job = small_job(
        tmp_path, *chat_flags(tmp_path, method), "optimizer.lr=3e-2", "duration=15 steps",
        "evaluation.every=5 steps", "checkpoint.every=5 steps", "checkpoint.keep=null",
    )  # fmt: skip
    components = build_components(job)
    # Whether training reads a token in front of a conversation.
    first = components.feed.take().batches[0].inputs[0, :1].tolist()
    front = first if first == [256] else []
    run = train(job).directory
    measured = {row["step"]: row for row in rows(run) if row["kind"] == "evaluation"}
    losses: dict[int, float] = {}
    for step, row in measured.items():
        weights = InferenceWeights(path=str(run), checkpoint=step)
        inference = complete(Inference(weights=weights, evaluation=evaluation_of(tmp_path)))
        loaded = load(inference)
        found = score_texts(loaded, inference)
        for name, of in (("held_out", chats), ("trained", train_chats)):
            nats, count, size = of_answers(loaded.model, of, front)
            assert row[f"{name}_tokens"] == found[name].tokens == count
            assert row[f"{name}_loss"] == pytest.approx(nats / count, abs=1e-5)
            assert found[name].loss == pytest.approx(nats / count, abs=1e-5)
            bits = nats / math.log(2) / size
            assert row[f"{name}_bits_per_byte"] == pytest.approx(bits, rel=1e-4)
            assert found[name].bits_per_byte == pytest.approx(bits, rel=1e-4)
        nats, count, _ = of_answers(loaded.model, chats, front)
        losses[step] = nats / count
        assert row["text_tokens"] == 9 * 91, "text beside it is one stream"
    best = min(losses, key=lambda step: losses[step])
    assert losses[best] < 0.9 * losses[5]
    assert (run / "checkpoints" / "best").read_text().strip() == f"step-{best:08d}"


def evaluation_of(folder: Path) -> EvaluationTask:
    """The held-out side and the training conversations, whose template is that of the run."""
    source = Conversations(paths=(str(folder / "train.jsonl"),))
    return EvaluationTask(sets=(DataSet(name="trained", sources=(source,)),))


@pytest.mark.parametrize(("method", "isolate"), [("none", "false"), ("next_fit", "true")])
def test_plain_documents_as_they_are_trained(tmp_path: Path, method: str, isolate: str) -> None:
    flags = (f"data.packing.method={method}", f"data.packing.isolate={isolate}")
    (tmp_path / "t.txt").write_text("abcab|hello|abcabcabcabcabcabcabcabc|x")
    source = f"[{{type=text, paths=[{tmp_path / 't.txt'}], separator='|'}}]"
    job = small_job(
        tmp_path, *flags, f"data.sources={source}", f"data.validation={source}",
        "data.packing.too_long=truncate", "evaluation.sequences=null",
    )  # fmt: skip
    components = stepped(job)
    nats, count = 0.0, 0
    for text in ("abcab", "hello", "abcabcabcabcabcabcabcabc", "x"):
        tokens = torch.tensor([256, *text.encode(), 256][:17])
        with torch.no_grad():
            logits = components.model.eval()(tokens[None, :-1])[0]
        nats += float(F.cross_entropy(logits.double(), tokens[1:], reduction="sum"))
        count += len(tokens) - 1
    score = evaluate(job, components)["held_out"]
    assert (score.tokens, score.loss) == (count, pytest.approx(nats / count, abs=1e-5))
    assert re.search(r"held-out: 1 .*\(9 tokens in no row\);", data_line(job, components))


def test_conversations_beside_a_stream_of_text(tmp_path: Path) -> None:
    """Training concatenates text; a set of conversations is read one by one all the same."""
    chats = write_chats(tmp_path / "train.jsonl", 0)
    source = f"{{type=conversations, template=plain, paths=[{tmp_path / 'train.jsonl'}]}}"
    flags = (f"evaluation.datasets=[{{name=chats, sources=[{source}]}}]", "model.dropout=0")
    job = small_job(tmp_path, *flags, "batch.sequence_length=32")
    components = stepped(job)
    score = evaluate(job, components)["chats"]
    batch = components.eval_sets["chats"].batch_of(np.array([0]))
    front = [256] if int(batch.inputs[0, 0]) == 256 else []
    nats, count, _ = of_answers(components.model, chats, front)
    assert (score.tokens, score.loss) == (count, pytest.approx(nats / count, abs=1e-5))
    measure = measure_of(job, components)
    assert measure["rows"] == "windows"


@pytest.mark.parametrize(
    ("loss", "flag"),
    few(product(LOSSES, ("loss.ignore_index=33", "loss.token_weights={33: 0, 34: 5}")), every=3),
)
def test_accuracy_of_what_counts(tmp_path: Path, loss: str, flag: str) -> None:
    job = small_job(tmp_path, loss, flag, "evaluation.accuracy=true", "evaluation.sequences=null")
    plain = small_job(tmp_path, "evaluation.accuracy=true", "evaluation.sequences=null")
    components = build_components(job)
    # A model that is right about what is left out as well, since it learned from it.
    components.model.load_state_dict(stepped(plain).model.state_dict())
    score = evaluate(job, components)["held_out"]
    right, tokens, size, left_out = 0, 0, 0, 0
    for batch in EvaluationFeed({"t": (components.held_out, None)}, micro_size=1).batches("t"):
        with torch.no_grad():
            guesses = components.model.eval()(batch.inputs).argmax(-1)
        counts = (batch.targets != -100) & (batch.targets != 33)
        right += int((guesses == batch.targets)[counts].sum())
        tokens += int(counts.sum())
        size += int((counts & (batch.targets != 256)).sum())
        left_out += int(((guesses == batch.targets) & ~counts).sum())
    assert left_out, "the test would not see them"
    assert (score.tokens, score.accuracy) == (tokens, right / tokens)
    bits = score.loss * tokens / math.log(2)
    assert score.bits_per_byte == pytest.approx(bits / size, rel=1e-6), "of what counts"
    # Of all targets, among them those that are left out, another share is right.
    assert evaluate(plain, components)["held_out"].tokens == tokens, (
        "the loss of these parts decides"
    )
    assert held_out(plain).tokens > tokens


def test_accuracy_of_a_model_without_a_head(tmp_path: Path) -> None:
    """It gives logits; a table of them that says what follows is always right."""
    flags = ("model=import", f"model.target={__name__}.Follows")
    source = "[{type=text, paths=[TMP/abc.txt]}]".replace("TMP", str(tmp_path))
    (tmp_path / "abc.txt").write_text("abc" * 40)
    job = small_job(
        tmp_path,
        *flags,
        "evaluation.accuracy=true",
        f"evaluation.datasets=[{{name=abc, sources={source}}}]",
    )
    score = evaluate(job, build_components(job))["abc"]
    # But for the first letter, which follows a separator, and the separator at the end.
    assert (score.tokens, score.accuracy) == (121, 119 / 121)
    assert score.loss > 5


class Follows(torch.nn.Module):
    """Logits of the letter after the one read, in a circle of three."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(vocab_size, vocab_size))
        with torch.no_grad():
            for before, after in ("ab", "bc", "ca"):
                self.table[ord(before), ord(after)] = 0.1

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]


def test_a_model_that_knows_nothing(tmp_path: Path) -> None:
    """Uniform over 257 tokens: log2(257) bits a token, and separators are not bytes."""
    job = small_job(tmp_path, "evaluation.sequences=null")
    components = build_components(job)
    for parameter in components.model.parameters():
        torch.nn.init.zeros_(parameter)
    score = evaluate(job, components)["held_out"]
    assert score.loss == pytest.approx(math.log(257), rel=1e-6)
    separators = score.tokens - components.held_out.identity.bytes
    assert separators == len(components.held_out.identity.files)
    expected = math.log2(257) * score.tokens / components.held_out.identity.bytes
    assert score.bits_per_byte == pytest.approx(expected, rel=1e-6)


def test_nothing_of_the_state_changes(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.dropout=0.5")
    components = build_components(job)
    components.model.train()
    noise, loader = torch.get_rng_state(), components.feed.state_dict()
    first = evaluate(job, components)
    assert evaluate(job, components) == first, "dropout is off"
    assert torch.equal(torch.get_rng_state(), noise)
    assert components.feed.state_dict() == loader
    assert all(module.training for module in components.model.modules())
    assert all(parameter.grad is None for parameter in components.model.parameters())


def test_how_far_an_evaluation_is(tmp_path: Path) -> None:
    job = small_job(tmp_path, "evaluation.sequences=5")
    told: list[tuple[str, int, int | None]] = []
    evaluate(job, build_components(job), show=lambda *each: told.append(each))
    what = "evaluating held_out, sequences"
    assert told == [(what, done, 5) for done in (0, 2, 4, 5)]
