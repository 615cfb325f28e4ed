"""Packed documents that are isolated train a model as documents that have rows for themselves."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from setpoint.compile.compile_model import compile_model
from setpoint.compile.config import Compile
from setpoint.config import resolve
from setpoint.data.config import Packing
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.packing import build_packed
from setpoint.data.rows import cut_rows
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy
from setpoint.model.attention.config import MLA
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE
from setpoint.shapes.batch import Batch
from setpoint.train.build.components import build_components
from setpoint.train.objective import Objective

from .small import small_job

Ints = npt.NDArray[np.int64]
LENGTHS = (9, 4, 20, 13, 7, 2, 30, 11, 3)
CUDA = pytest.mark.cuda
BACKENDS = [
    pytest.param("eager", "cpu", torch.float64),
    pytest.param("sdpa", "cpu", torch.float64),
    pytest.param("sdpa", "cpu", torch.float32),
    pytest.param("sdpa", "cuda", torch.float32, marks=CUDA),
    pytest.param("flex", "cuda", torch.float32, marks=CUDA),
    pytest.param("varlen", "cuda", torch.bfloat16, marks=CUDA),
    pytest.param("auto", "cuda", torch.bfloat16, marks=CUDA),
]
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(97, 123, 200).astype(np.uint8).tobytes()
    documents = [Document(f"t/{i}", text[:n][::-1]) for i, n in enumerate(LENGTHS)]
    return build_corpus(documents, ByteTokenizer(), side="train")


def objective(
    backend: Any, device: str, dtype: torch.dtype, loss: Any = CrossEntropy, **options: Any
) -> Objective:
    section = TransformerConfig(
        dim=32, layers=2, heads=2, max_sequence_length=48, attention_backend=backend, **options
    )
    model = resolve(section).build(vocab_size=257)
    initialize(model, seed=1)
    return Objective(model.to(device, dtype), resolve(loss()).build())


def gradients(run: Objective, batches: list[Batch]) -> tuple[float, dict[str, Tensor]]:
    """The sum of the loss over batches, and its gradients."""
    run.model.zero_grad()
    device = next(run.model.parameters()).device
    nats = sum(run(batch.to(device)).result.total.double() for batch in batches)
    assert isinstance(nats, Tensor)
    nats.backward()
    grads = {name: each.grad for name, each in run.model.named_parameters()}
    return nats.item(), {name: each for name, each in grads.items() if each is not None}


def alone(corpus: Corpus, lengths: Ints, starts: Ints) -> list[Batch]:
    """Each document as the only row of a batch, without padding."""
    found: list[Batch] = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        tokens = torch.from_numpy(corpus.tokens[start : start + length + 1].astype(np.int64))
        found.append(Batch(tokens[None, :-1], tokens[None, 1:], length, length, 0))
    return found


def compare(run: Objective, packed: list[Batch], unpacked: list[Batch], tolerance: float) -> None:
    assert sum(b.target_tokens for b in packed) == sum(b.target_tokens for b in unpacked)
    loss, grads = gradients(run, packed)
    expected, wanted = gradients(run, unpacked)
    assert loss == pytest.approx(expected, rel=tolerance)
    assert grads.keys() == wanted.keys()
    for name, grad in grads.items():
        size = wanted[name].abs().max().item()
        torch.testing.assert_close(grad, wanted[name], rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize(("backend", "device", "dtype"), BACKENDS)
def test_packed_equals_unpacked(backend: str, device: str, dtype: torch.dtype) -> None:
    run = objective(backend, device, dtype)
    for method in ("next_fit", "first_fit_decreasing", "none"):
        compare(run, *packed_and_alone(method), TOLERANCE[dtype])


def packed_and_alone(method: Any = "first_fit_decreasing") -> tuple[list[Batch], list[Batch]]:
    text = corpus()
    sequences, cursor = build_packed(
        text, resolve(Packing(method=method)), length=40, seed=0, bucket=1
    )
    rows = cursor.take(np.arange(len(sequences)), slice(None))
    together = [sequences.batch_of(rows[n : n + 2]) for n in range(0, len(rows), 2)]
    single = alone(text, rows.lengths, rows.starts)
    assert len(together) < len(single) == len(LENGTHS)
    return together, single


LATENT = MLA(kv_rank=8, rope_head_dim=4, nope_head_dim=8, value_head_dim=12)
SLIDING = {"attention_pattern": ("sliding", "full"), "sliding_window": 5}
MODELS: dict[str, dict[str, Any]] = {
    "sliding": {**SLIDING, "rope_base_sliding": 100.0},
    "latent": {"mla": LATENT},
    "learned positions": {"positions": "learned"},
    "soft cap": {"attention_soft_cap": 3.0, "attention_backend": "eager"},
    "experts": {"moe": MoE(experts=4, top_k=2, balance_loss=0.0)},
    "loss in chunks": {"loss": partial(ChunkedCrossEntropy, chunk_size=7)},
}


@pytest.mark.parametrize("name", MODELS)
def test_each_kind_of_model_sees_one_document(name: str) -> None:
    options = {"backend": "sdpa", **MODELS[name]}
    backend = options.pop("attention_backend", options.pop("backend"))
    run = objective(backend, "cpu", torch.float64, **options)
    compare(run, *packed_and_alone(), 1e-6)


@pytest.mark.parametrize(("name", "backend"), [("sliding", "sdpa"), ("latent", "eager")])
def test_in_bf16(name: str, backend: str) -> None:
    run = objective(backend, "cpu", torch.float32, **MODELS[name])
    with torch.autocast("cpu", torch.bfloat16):
        compare(run, *packed_and_alone(), TOLERANCE[torch.bfloat16])


@pytest.mark.slow
def test_compiled() -> None:
    run: Any = objective("sdpa", "cpu", torch.float32, **SLIDING)
    layers = [(f"layers.{name}", layer) for name, layer in run.model.layers.items()]
    compile_model(resolve(Compile(backend="aot_eager")), model=run.model, layers=layers)
    compare(run, *packed_and_alone(), TOLERANCE[torch.float32])


def test_flex_on_a_cpu() -> None:
    """It has no backward pass there."""
    run = objective("flex", "cpu", torch.float32, **MODELS["sliding"])
    together, single = packed_and_alone()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        packed, unpacked = (sum(run(b).result.total for b in each) for each in (together, single))
    assert float(packed) == pytest.approx(float(unpacked), rel=3e-3)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_windows_equal_their_documents(positions: Any) -> None:
    """The part of a document in an isolated window of concatenated text counts as if alone."""
    text = corpus()
    windows = cut_rows(text, 16, isolated=True)
    together = [windows.batch_of(np.arange(len(windows)))]
    # Windows cut documents, so a part begins where a document or a window does.
    last = len(text.tokens) - 1
    starts = np.unique([*(text.starts - 1).tolist(), *range(0, last, 16)])
    single = alone(text, np.diff(starts, append=last), starts)
    run = objective("sdpa", "cpu", torch.float64, positions=positions)
    compare(run, together, single, 1e-6)


def test_without_isolation_documents_see_those_before() -> None:
    text = corpus()
    section = resolve(Packing(method="next_fit", isolate=False))
    sequences, cursor = build_packed(text, section, length=40, seed=0, bucket=1)
    rows = cursor.take(np.arange(len(sequences)), slice(None))
    run = objective("sdpa", "cpu", torch.float64)
    together, _ = gradients(run, [sequences.batch_of(rows)])
    single, _ = gradients(run, alone(text, rows.lengths, rows.starts))
    assert together != pytest.approx(single, rel=1e-5)


@pytest.mark.parametrize("packing", ["method=none", "method=next_fit isolate=false"])
def test_experts_count_no_padding(packing: str, tmp_path: Path) -> None:
    flags = [f"data.packing.{flag}" for flag in packing.split()]
    source = "data.sources=[{type: random, length: 11}]"
    job = small_job(tmp_path, "model.moe={experts: 4, top_k: 2}", source, *flags)
    components = build_components(job)
    batch = components.feed.take().batches[0]
    assert batch.tokens < batch.inputs.numel()
    routing = components.objective(batch).routing
    assert routing is not None
    assert routing.counts.sum(-1).unique().tolist() == [2 * batch.tokens]
