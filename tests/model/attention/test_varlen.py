"""Attention of sequences without a mask: their lengths, and what the kernels are handed."""

import inspect
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn.attention import varlen
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.model.attention import choose_backend as module
from setpoint.model.attention import selection
from setpoint.model.attention.attention import Attention
from setpoint.model.attention.backends import PLAIN, RowLayout, Scores, visible
from setpoint.model.attention.varlen import Flash, Packed, Varlen, find_sequences
from setpoint.model.initialize import initialize
from setpoint.shapes.batch import Batch, Lengths, SequenceParts

from ...support.snapshots import refused
from ..small import small_config
from . import kernels
from .layouts import CPU, DOCUMENTS, LAYOUTS, LENGTH, layout


@pytest.mark.parametrize(
    ("name", "queries", "keys"),
    [
        ("plain", [11, 11], [11, 11]),
        ("shifted", [11, 11], [11, 11]),
        ("documents", [3, 5, 3, 6, 5], [3, 5, 3, 6, 5]),
        ("left padding", [11, 3, 8], [11, 3, 8]),
        ("right padding", [7, 4, 11], [7, 4, 11]),
        ("padding and documents", [3, 4, 4, 6, 5], [3, 4, 4, 6, 5]),
        ("last one", [1, 1], [11, 11]),
        ("last four, left padding", [4, 0, 4], [11, 3, 8]),
        ("last four, documents", [0, 1, 3, 0, 4], [3, 5, 3, 6, 5]),
        ("last six, right padding", [2, 4, 6], [7, 4, 11]),
    ],
)
def test_lengths_that_are_read_off_the_device(name, queries, keys):
    packed = find_sequences(LAYOUTS[name], None)
    assert packed.query_starts.diff().tolist() == queries
    assert packed.key_starts.diff().tolist() == keys
    assert max(queries) <= packed.longest_query <= LENGTH
    assert max(keys) <= packed.longest_key <= LENGTH
    assert packed.query_starts[0] == packed.key_starts[0] == 0
    assert packed.query_starts.dtype == packed.key_starts.dtype == torch.int32
    assert find_sequences(LAYOUTS["plain"], 1).window == (0, 0)


def test_documents_in_pieces_are_refused():
    torn = DOCUMENTS.clone()
    torn[0, -1] = 0
    with refused():
        find_sequences(layout(documents=torn), None)


@pytest.mark.parametrize("padded", [False, True])
def test_windows_over_gaps_are_refused(padded):
    positions = torch.arange(LENGTH)[None] * 2
    places = layout(positions=positions, padded=padded)
    assert find_sequences(places, None).window == (-1, 0)
    with refused():
        find_sequences(places, 3)


class Reads(TorchDispatchMode):
    """Counts what would hold the host on a GPU: reads, and shapes that depend on numbers."""

    NAMES = ("_local_scalar_dense", "nonzero", "unique", "bincount", "is_nonzero", "_to_copy")

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).split(".")[1]
        if any(name.startswith(each) for each in self.NAMES):
            self.found[name] += 1
        return function(*args, **(kwargs or {}))


def packed_rows(seed: int, rows: int = 3, width: int = 24) -> Batch:
    """Documents of random lengths, with padding at the end of some rows."""
    draw = np.random.default_rng(seed)
    documents, positions = (np.full((rows, width), -1) for _ in range(2))
    for row in range(rows):
        used = width if row == 0 else int(draw.integers(1, width + 1))
        begins = np.unique(np.append(0, draw.integers(0, used, 3)))
        for number, (first, end) in enumerate(
            zip(begins, np.append(begins[1:], used), strict=True)
        ):
            documents[row, first:end] = number
            positions[row, first:end] = np.arange(end - first)
    inputs = torch.from_numpy(draw.integers(0, 50, (rows, width)))
    places, numbers = torch.from_numpy(positions), torch.from_numpy(documents)
    return Batch(
        inputs, inputs, 1, 1, 1, positions=places, documents=numbers,
        lengths=Lengths.of_places(places, numbers),
    )  # fmt: skip


def layout_of(batch: Batch) -> RowLayout:
    rows, width = batch.positions.shape
    return RowLayout(
        width, width, rows, CPU, batch.positions, True, batch.documents, lengths=batch.lengths
    )


def seen_by(packed: Packed, rows: int, width: int) -> torch.Tensor:
    """(B, S, S) of what the sequences show to the queries."""
    size = rows * width
    starts = packed.query_starts.tolist()
    sequence = torch.repeat_interleave(torch.arange(len(starts) - 1), packed.query_starts.diff())
    place = torch.arange(size)
    back = place[:, None] - place
    seen = (sequence[:, None] == sequence) & (back >= 0)
    if packed.window[0] >= 0:
        seen &= back <= packed.window[0]
    whole = seen.view(rows, width, rows, width)
    return torch.stack([whole[row, :, row] for row in range(rows)])


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("missing", [0, 5])
def test_lengths_of_the_data_show_what_the_mask_shows_and_read_nothing(window, missing):
    for seed in range(5):
        batch = packed_rows(seed).padded(missing)
        places = layout_of(batch)
        with Reads() as reads:
            packed = find_sequences(places, window)
        assert not reads.found
        counting = batch.positions >= 0
        masked, shown = visible(places, window)[:, 0], seen_by(packed, *batch.positions.shape)
        assert torch.equal(masked[counting], shown[counting])
        assert packed.query_starts.diff().max() <= packed.longest_query
        assert batch.lengths.longest == packed.query_starts.diff().max()


def test_sequences_that_ranks_divide_keep_the_lengths_of_whole_rows():
    batch = packed_rows(0, width=22)
    part = SequenceParts(4, 1, 1, 0, "zigzag").cut(batch)
    rows, width = part.positions.shape
    assert width == 24
    assert part.lengths.starts.tolist() == part.lengths.cumulative.tolist()
    assert torch.equal(part.positions, batch.padded(2).positions)
    counting = part.positions >= 0
    masked = visible(layout_of(part), None)[:, 0]
    assert torch.equal(
        masked[counting], seen_by(find_sequences(layout_of(part), None), rows, width)[counting]
    )
    plain = Batch(batch.inputs, batch.inputs, 1, 1, 1)
    assert SequenceParts(4, 1, 1, 0, "zigzag").cut(plain).lengths.starts.tolist() == [
        0, 22, 24, 46, 48, 70, 72,
    ]  # fmt: skip


@pytest.fixture
def emulated(monkeypatch):
    """The kernel in plain mathematics, and a configuration that takes it on a CPU."""
    monkeypatch.setattr(varlen, "varlen_attn", kernels.varlen_attn)
    monkeypatch.setitem(selection.LIMITS, "varlen", selection.LIMITS["varlen"]._replace(half=False))
    monkeypatch.setattr(module, "unavailable_reason", lambda *_: None)
    kernels.DTYPES.clear()


def test_one_dtype_of_two_bytes_reaches_the_kernel(emulated):
    batch = packed_rows(1)
    model = small_config(attention_backend="varlen", head_dim=8, qk_norm=True).build(vocab_size=50)
    initialize(model, 1)
    for part in model.modules():
        if isinstance(part, Attention):
            # As norms do under a GPU's autocast.
            part.query_norm.register_forward_hook(lambda *given: given[-1].float())
            part.key_norm.register_forward_hook(lambda *given: given[-1].float())
    with torch.autocast("cpu", torch.bfloat16):
        model(batch.inputs, batch.positions, documents=batch.documents, lengths=batch.lengths)
    assert set(kernels.DTYPES) == {(torch.bfloat16,) * 3}


@pytest.mark.parametrize("sliding", [False, True])
def test_a_model_over_an_emulated_kernel_is_that_of_eager(sliding, emulated):
    """Forward and backward, with the lengths of the data."""
    changes = {"attention_pattern": ("sliding", "full"), "sliding_window": 3} if sliding else {}
    batch = packed_rows(1)
    counting = (batch.positions >= 0).unsqueeze(-1)
    results = []
    for name in ("eager", "varlen"):
        config = small_config(attention_backend=name, head_dim=8, qk_norm=True, **changes)
        model = config.build(vocab_size=50)
        initialize(model, 1)
        model.double()
        given = {} if name == "eager" else {"lengths": batch.lengths}
        logits = model(batch.inputs, batch.positions, documents=batch.documents, **given)
        logits = logits * counting
        logits.square().sum().backward()
        results.append([logits, *(weight.grad for weight in model.parameters())])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_groups_are_asked_for_where_there_is_a_question(kv_heads):
    options = []

    def new(*tensors, scale=None, window_size=(-1, -1), enable_gqa=False):
        options.append(enable_gqa)
        return tensors[0]

    def old(*tensors, scale=None, window_size=(-1, -1)):
        options.append(None)
        return tensors[0]

    query, key = torch.randn(2, 11, 4, 8), torch.randn(2, 11, kv_heads, 8)
    for function in (new, old):
        backend = Varlen(function, function is new)
        backend.attend(query, key, key, backend.prepare_mask(LAYOUTS["plain"], None))
    assert options == [kv_heads == 1, None]
    assert Varlen().function is varlen.varlen_attn
    assert Varlen().asks_for_groups == ("enable_gqa" in kernels.VARLEN.parameters)


def two(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None): ...  # fmt: skip
def three(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
          seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None,
          k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
          num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0,
          return_attn_probs=False): ...  # fmt: skip
def four(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
         seqused_q=None, seqused_k=None, page_table=None, softmax_scale=None, causal=False,
         window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
         deterministic=False, return_lse=False): ...  # fmt: skip


@pytest.mark.parametrize(("version", "signature"), [(2, two), (3, three), (4, four)])
def test_options_by_the_names_of_each_version(version, signature, monkeypatch):
    seen = {}

    def look(*args, **options):
        inspect.signature(signature).bind(*args, **options)
        seen.clear()
        seen.update({name: each for name, each in options.items() if "seqlen" not in name})
        return args[0] if version < 4 else (args[0], None)

    look.__signature__ = inspect.signature(signature)
    package = types.ModuleType("package")
    package.flash_attn_varlen_func = look
    monkeypatch.setitem(sys.modules, module.PACKAGES[version][0].split(".")[0], package)
    monkeypatch.setitem(sys.modules, module.PACKAGES[version][0], package)
    backend = Flash(version)
    x = torch.randn(2, 11, 2, 8)
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            backend.attend(x, x, x, backend.prepare_mask(LAYOUTS["documents"], None), PLAIN)
        finally:
            torch.use_deterministic_algorithms(False)
        assert seen == {
            "softmax_scale": None,
            "causal": True,
            "window_size": (None, 0) if version == 4 else (-1, 0),
            "deterministic": deterministic,
        }
    scores = {2: Scores(0.5, 30.0, 0.1), 3: Scores(0.5, 30.0), 4: Scores(0.5)}[version]
    backend.attend(x, x, x, backend.prepare_mask(LAYOUTS["documents"], 4), scores)
    assert (seen["softmax_scale"], seen["window_size"]) == (0.5, (3, 0))
    assert seen.get("softcap") == scores.soft_cap
    assert seen.get("dropout_p", 0.0) == scores.dropout


def test_the_version_that_pytorch_s_operators_compute_by(monkeypatch):
    now = [None]
    attention = torch.nn.attention
    monkeypatch.setattr(attention, "list_flash_attention_impls", lambda: ["FA3", "FA4"])
    monkeypatch.setattr(attention, "current_flash_attention_impl", lambda: now[-1])
    monkeypatch.setattr(attention, "activate_flash_attention_impl", now.append)
    monkeypatch.setattr(attention, "restore_flash_attention_impl", lambda: now.append(None))
    monkeypatch.setattr(module, "has_package", lambda version: True)
    cases = (
        ("auto", 8, 64, 0.0, None),
        ("varlen", 9, 256, 0.0, "FA3"),
        ("sdpa", 9, 256, 0.0, "FA3"),
        ("sdpa", 9, 64, 0.1, None),
        ("varlen", 10, 128, 0.0, "FA4"),
        ("varlen", 10, 192, 0.0, None),
        ("flash_attention_3", 9, 64, 0.0, "FA3"),
        ("flash_attention_2", 9, 64, 0.0, None),
    )
    for number, (name, major, head, dropout, expected) in enumerate(cases):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, major=major: (major, 0))
        module.use_flash(name, torch.device("cuda", number), head, dropout)
        assert now[-1] == expected, name
    assert now == [None, "FA3", None, "FA4", None, "FA3", None]
    monkeypatch.setattr(module, "has_package", lambda version: False)
    module.use_flash("varlen", torch.device("cuda", 20), 64, 0.0)
    assert now[-1] is None
