"""Files that are not whole, or not those of the model: nothing is loaded, and it is said why."""

import json
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.adapter.config import FP8, LoRA
from setpoint.config import RunError, SetpointError, resolve
from setpoint.infer.loaded_model import add_adapter
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.build import skeleton
from setpoint.model.moe.config import MoE
from setpoint.model.parameters import count_parameters_of
from setpoint.model.pretrained import fill, load
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.families import FAMILIES
from setpoint.model.pretrained.fill import Weights
from setpoint.model.pretrained.load import start_from

from ...support.snapshots import compare, refusals, refused
from .ours import change_config, directory, rewrite
from .quantized_files import KEPT, quantize_files
from .theirs import CASES, VOCAB, fp64_angles, logits, make, tokens

EMBEDDING = "model.embed_tokens.weight"
UP = "model.layers.1.mlp.up_proj.weight"


def cut(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:keep] if keep < 0 or keep < len(data) else data + b"\0" * 3)


def edit_header(folder: Path, change: Callable[[dict], None]) -> None:
    """Change the JSON at the beginning of the file."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def shift(header: dict) -> None:
    first = header[EMBEDDING]["data_offsets"]
    header[EMBEDDING]["data_offsets"] = [first[0] + 4, first[1] + 4]


def drop_shard(folder: Path) -> None:
    sorted(folder.glob("model-*"))[1].unlink()


def edit_index(folder: Path, change: Callable[[dict], None]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def names(count: int) -> dict[str, torch.Tensor]:
    return {f"model.layers.0.adapter.{index}": torch.zeros(2, 3) for index in range(count)}


WHOLE: dict[str, Callable[[Path], object]] = {
    "a depth beyond all files": lambda f: change_config(f, num_hidden_layers=10**4),
    "cut in a tensor": lambda f: cut(f, -100),
    "cut in the header": lambda f: cut(f, 300),
    "hardly begun": lambda f: cut(f, 5),
    "empty": lambda f: (f / "model.safetensors").write_bytes(b""),
    "too long": lambda f: cut(f, 10**9),
    "another file": lambda f: (f / "model.safetensors").write_bytes(b"GGUF" * 50),
    "no JSON": lambda f: (f / "model.safetensors").write_bytes(b"\x10" + b"\0" * 7 + b"?" * 16),
    "tensors that overlap": lambda f: edit_header(f, shift),
    "a size that is wrong": lambda f: edit_header(f, lambda h: h[UP].update(shape=[24, 17])),
    "a missing tensor": lambda f: rewrite(f, {UP: None}),
    "many missing tensors": lambda f: change_config(f, num_hidden_layers=4),
    "a tensor more": lambda f: rewrite(f, names(1)),
    "many tensors more": lambda f: rewrite(f, names(5)),
    "other shapes": lambda f: change_config(f, intermediate_size=32),
    "another vocabulary": lambda f: change_config(f, vocab_size=21),
    "numbers that are not floats": lambda f: rewrite(f, {UP: torch.zeros(24, 16).to(torch.int8)}),
    "a type that nobody knows": lambda f: edit_header(f, lambda h: h[UP].update(dtype="F6_E2M3")),
    "a head beside a tied embedding": lambda f: change_config(f, tie_word_embeddings=True),
    "a pickle": pickle,
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "weights by another name": lambda f: (f / "model.safetensors").rename(f / "w.safetensors"),
}
SHARDED: dict[str, Callable[[Path], object]] = {
    "a missing shard": drop_shard,
    "an index of names that are not there": lambda f: edit_index(
        f, lambda i: i["weight_map"].update({"model.more": "model-00001-of-00007.safetensors"})
    ),
    "an index of files elsewhere": lambda f: edit_index(
        f, lambda i: i["weight_map"].update({EMBEDDING: "../other.safetensors"})
    ),
    "an index without a map": lambda f: edit_index(f, lambda i: i.pop("weight_map")),
}


def test_nothing_is_loaded_of_what_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("parameters were made")

    monkeypatch.setattr(Weights, "fill", refuse)
    for case, damage in {**WHOLE, **SHARDED}.items():
        damage(directory(tmp_path / case, 4000 if case in SHARDED else 10**9))
    cases = {case: partial(load_pretrained, tmp_path / case) for case in (*WHOLE, *SHARDED)}
    compare("model/pretrained_damaged", refusals(cases, tmp_path))


def test_a_file_that_shrinks_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = directory(tmp_path / "model")
    real = load.weights_of

    def then_cut(*arguments: object) -> Weights:
        found = real(*arguments)  # type: ignore[arg-type]
        cut(folder, -4)
        return found

    monkeypatch.setattr(load, "weights_of", then_cut)
    with refused(RunError):
        load_pretrained(folder)


def test_a_head_that_is_the_tied_embedding_is_no_surplus(tmp_path: Path) -> None:
    folder = directory(tmp_path / "model", tie_embeddings=True)
    plain = load_pretrained(folder)
    rewrite(folder, {"lm_head.weight": plain.get_parameter("embedding.weight").detach().clone()})
    again = load_pretrained(folder)
    assert again.state_dict().keys() == plain.state_dict().keys()


def test_what_old_files_hold_and_is_computed_is_no_surplus(tmp_path: Path) -> None:
    folder = directory(tmp_path / "model")
    rewrite(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    load_pretrained(folder)


def test_files_without_the_prefix_of_the_class_with_a_head(tmp_path: Path) -> None:
    """As openai-community/gpt2 is."""
    from safetensors.torch import load_file, save_file

    from setpoint.model.config import LayerNormConfig

    fields = {"positions": "learned", "norm": LayerNormConfig(), "activation": "gelu_tanh"}
    biases = {"ffn_bias": True, "qkv_bias": True, "attention_output_bias": True}
    folder = directory(tmp_path / "model", tie_embeddings=True, **fields, **biases)
    plain = load_pretrained(folder)
    held = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("transformer."): tensor for name, tensor in held.items()}
    renamed |= {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32) for i in range(2)}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    again = load_pretrained(folder)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


class Meter(TorchDispatchMode):
    """Bytes of the storages that operations have made and that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                self.count(tensor.untyped_storage())
        return made

    def count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.gone, key, size)

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_peak_memory(tmp_path: Path, dtype: str | None) -> None:
    fields = {"dim": 64, "ffn_dim": 128, "layers": 6, "vocab_size": 500}
    folder = directory(
        tmp_path / "model",
        qk_norm=True,
        merge_qkv=True,
        moe=MoE(experts=4, expert_dim=64, first_dense=2),
        **fields,
    )
    with Meter() as meter:
        model = load_pretrained(folder, dtype=dtype)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    largest = 4 * max(p.numel() for p in model.parameters())
    assert size > 8 * largest / 4
    # A transposed or cast block is copied once on its way.
    assert size <= meter.peak <= size + 2 * largest


@pytest.mark.parametrize("keeps", [False, True])
def test_quantized_files_are_never_dense_as_a_whole(
    tmp_path: Path, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = directory(tmp_path, dim=128, heads=4, ffn_dim=256, layers=6, vocab_size=500)
    quantize_files(folder, KEPT["fp8"])
    monkeypatch.setattr(fill, "AT_ONCE", 2**12)
    config = resolve(read_config(folder)[0].evolve(pretrained=str(folder)))
    model: Any = skeleton(config, 500)
    if keeps:
        quantize = resolve(FP8(group_size=16))
        add_adapter(resolve(LoRA(rank=2, quantize=quantize)), config, model)
    with Meter() as meter:
        start_from(config, model, "cpu", torch.bfloat16, skeleton(config, 500))
    held = [each for each in model.parameters() if not each.is_meta]
    size = sum(each.nbytes for each in held)
    # Beside the model: a tensor of a file, or a few rows in fp32.
    assert size <= meter.peak <= size + 2 * max(each.nbytes for each in held) + 2**16


@pytest.mark.parametrize("case", CASES)
def test_logits_and_weights_both_ways(case: str, tmp_path: Path) -> None:
    import transformers

    kind, keys = CASES[case]
    theirs = make(kind, keys)
    theirs.save_pretrained(tmp_path / "theirs")
    wanted = logits(theirs)
    assert wanted.std() > 0.05
    ours = load_pretrained(tmp_path / "theirs")
    assert not ours.training
    counts = count_parameters_of(cast(Any, ours).config, VOCAB)
    assert counts.parameters == theirs.num_parameters()
    exact = wanted
    if case == "llama 3.1":  # whose scaling shows the rounding of angles most, on some CPUs more
        with fp64_angles():
            exact = logits(make(kind, keys))
        assert not torch.equal(exact, wanted)
    torch.testing.assert_close(logits(ours), exact, rtol=1e-5, atol=1e-5)

    save_pretrained(ours, tmp_path / "back", family=kind)
    back = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", attn_implementation="eager"
    )
    assert type(back) is type(theirs)
    assert torch.equal(logits(back.eval()), wanted)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    # Of what the configuration says, only how it is written may differ.
    again = load_pretrained(tmp_path / "back")
    assert again.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_gradients_and_cached_logits_of_llama_4(tmp_path: Path) -> None:
    kind, keys = CASES["llama4"]
    theirs = make(kind, {**keys, "pad_token_id": None})  # whose embedding has no gradient
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    whole = ours(tokens())
    for result in (whole, theirs(tokens()).logits):
        result.square().mean().backward()
    names = {
        "embedding": "model.embed_tokens",
        "layers.0.feed_forward.router": "model.layers.0.feed_forward.router",
        "layers.2.attention.value": "model.layers.2.self_attn.v_proj",
    }
    for name, hf_name in names.items():
        grads = [m.get_submodule(n).weight.grad for m, n in ((ours, name), (theirs, hf_name))]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)
    cache = ours.make_cache()
    with torch.inference_mode():
        parts = [ours(part, cache=cache) for part in tokens().split([30, *[1] * 18], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)


def test_every_family_is_compared() -> None:
    assert {kind for kind, _ in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("case", ["llama 3.1", "qwen3 moe", "gpt2"])
def test_merged_and_unpacked_parameters_hold_the_same(case: str, tmp_path: Path) -> None:
    from setpoint.config import resolve
    from setpoint.model.pretrained.load import start_from

    kind, keys = CASES[case]
    make(kind, keys).save_pretrained(tmp_path / "theirs")
    plain = load_pretrained(tmp_path / "theirs")
    draft: Any = cast(Any, plain).config.evolve()
    draft.pretrained, draft.merge_qkv = str(tmp_path / "theirs"), True
    if draft.moe is not None:
        draft.moe.packed = False
    config = resolve(draft)
    other = config.build(vocab_size=config.vocab_size)
    start_from(config, other)
    assert "layers.0.attention.query_key_value.weight" in other.state_dict()
    torch.testing.assert_close(logits(other.eval()), logits(plain), rtol=0, atol=1e-5)
    for name, model in (("a", plain), ("b", other)):
        save_pretrained(model, tmp_path / name)
    first, second = (tmp_path / name / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("device", ["cuda", "nowhere"])
def test_a_device_that_is_not_there(device: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    folder = directory(tmp_path / "model")
    with pytest.raises(SetpointError, match=f"device = {device}: .*Valid: cpu"):
        load_pretrained(folder, device=device)
