"""A training that PyTorch began, and that Setpoint continues from its checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from setpoint.cli.main import main

from ..conftest import Refuses
from . import written

BEFORE, AFTER, LENGTH, ROWS = 6, 5, 32, 4
PATTERN = bytes(range(65, 65 + LENGTH + 1))
"""As many bytes as a row has, so that all rows are the same."""
RATE, DECAY, BETAS, CLIP = 2e-3, 0.1, (0.9, 0.95), 1.0
VOCAB = 257

JOB = f"""
name = "continued"
duration = "{BEFORE + AFTER} steps"
evaluation = "null"
[batch]
global_size = {ROWS}
sequence_length = {LENGTH}
[optimizer]
type = "adamw"
lr = {RATE}
weight_decay = {DECAY}
betas = [{BETAS[0]}, {BETAS[1]}]
clip_norm = {CLIP}
[schedule]
type = "constant"
[precision]
compute = "fp32"
[checkpoint]
keep_best = false
[tracking]
every = 1
[[data.sources]]
type = "text"
paths = ["pattern.txt"]
"""
MODELS = {
    "gpt2": """
[model]
dim = 64
layers = 2
heads = 4
vocab_size = 257
max_sequence_length = 32
positions = "learned"
norm = {type = "layer_norm", bias = true}
activation = "gelu"
ffn_dim = 256
ffn_bias = true
qkv_bias = true
attention_output_bias = true
tie_embeddings = true
norm_eps = 1e-5
""",
    "llama": """
[model]
dim = 64
layers = 2
heads = 4
kv_heads = 2
head_dim = 16
ffn_dim = 96
vocab_size = 257
max_sequence_length = 64
tie_embeddings = false
norm_eps = 1e-6
""",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pattern.txt").write_bytes(PATTERN * 4096)
    return tmp_path


class Training:
    """PyTorch's training of the parameters of a model, in another system's layout and order.

    Arguments:
        parameters: of the system.
        to: makes the parameters of transformers of them.
        groups: of the optimizer, names and decay.
    """

    def __init__(self, model: Any, parameters: dict[str, Tensor], to: Any, groups: Any) -> None:
        self.model, self.to = model, to
        self.parameters = {n: p.detach().clone().requires_grad_() for n, p in parameters.items()}
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [self.parameters[name] for name in names], "weight_decay": decay}
                for names, decay in groups
            ],
            lr=RATE,
            betas=BETAS,
        )
        row = torch.tensor(list(PATTERN[-1:] + PATTERN[:-1]))  # the order in which rows begin
        self.inputs, self.targets = row[:-1].repeat(ROWS, 1), row[1:].repeat(ROWS, 1)

    def run(self, steps: int) -> list[float]:
        losses: list[float] = []
        for _ in range(steps):
            output = functional_call(self.model, self.to(self.parameters), (self.inputs,))
            loss = cross_entropy(output.logits.flatten(0, 1), self.targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), CLIP)
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def continued(
    folder: Path, family: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of the steps that Setpoint takes, and its weights in the end, as transformers'."""
    (folder / "job.toml").write_text(JOB + MODELS[family])
    assert main(["data", "inspect", "job.toml", "--json", "--count", "9"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(bytes(row["ids"]) == PATTERN[-1:] + PATTERN[:-1] for row in shown)
    words = ["checkpoint", "import", str(checkpoint), "start", "--job", "job.toml"]
    assert main(words) == 0
    assert main(["checkpoint", "verify", "start"]) == 0
    assert main(["train", "job.toml", "--checkpoint.load", "start"]) == 0
    (run,) = (folder / "runs").glob("continued-*")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row.get("kind") == "train"]
    assert main(["export", str(run), "exported"]) == 0
    return losses, load_file(folder / "exported" / "model.safetensors")


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Weights agree to 1e-6 where they have moved by up to 1e-2."""
    for name, tensor in ours.items():
        other = theirs[name].detach()
        if name.endswith("c_attn.bias"):  # softmax is blind to a bias of keys: it moves by noise
            tensor, other = (torch.cat(each.chunk(3)[::2]) for each in (tensor, other))
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-6, msg=name)


def test_nanogpt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written.gpt2(activation_function="gelu", vocab=VOCAB, bos_token_id=0, eos_token_id=0)
    start = {n: t * 0.6 if t.ndim > 1 else t for n, t in written.nano(model).items()}
    start["lm_head.weight"] = start["transformer.wte.weight"]
    names = [name for name in start if name != "lm_head.weight"]

    def as_transformers(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        matrix = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
        found = {n: t.T if n.endswith(matrix) else t for n, t in parameters.items()}
        return {**found, "lm_head.weight": found["transformer.wte.weight"]}

    decayed = [name for name in names if start[name].ndim >= 2]
    others = [name for name in names if start[name].ndim < 2]
    training = Training(
        model,
        {name: start[name] for name in names},
        as_transformers,
        [(decayed, DECAY), (others, 0.0)],
    )
    training.run(BEFORE)
    tensors = {n: t.detach() for n, t in training.parameters.items()}
    content = {
        "model": {**tensors, "lm_head.weight": tensors["transformer.wte.weight"]},
        "optimizer": training.optimizer.state_dict(),
        "model_args": {**written.nano_args(), "vocab_size": VOCAB},
        "iter_num": BEFORE,
        "best_val_loss": 1e9,
        "config": {},
    }
    torch.save(content, folder / "ckpt.pt")
    losses, weights = continued(folder, "gpt2", folder / "ckpt.pt", capsys)
    assert losses == pytest.approx(training.run(AFTER), abs=1e-6)
    same(weights, as_transformers(training.parameters))


LLAMA = {"wq": "self_attn.q_proj", "wk": "self_attn.k_proj", "wv": "self_attn.v_proj",
         "wo": "self_attn.o_proj", "w1": "mlp.gate_proj", "w2": "mlp.down_proj",
         "w3": "mlp.up_proj", "attention_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm", "tok_embeddings": "embed_tokens"}  # fmt: skip
"""Modules of transformers by those of torchtitan."""


def titan_as_transformers(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in parameters.items():
        words = name.split(".")
        if words[-2] in ("wq", "wk"):  # rows in halves, of neighbours
            heads = tensor.view(-1, written.HEAD // 2, 2, written.WIDTH)
            tensor = heads.transpose(1, 2).reshape(tensor.shape)
        layer = f"layers.{words[1]}." if words[0] == "layers" else ""
        found[f"model.{layer}{LLAMA.get(words[-2], words[-2])}.weight"] = tensor
    return found | {"lm_head.weight": found.pop("model.output.weight")}


def llama_training() -> Training:
    model = written.decoder(vocab_size=VOCAB)
    start = {n: t * 0.2 if t.ndim > 1 else t for n, t in written.titan(model).items()}
    matrices = [name for name in start if start[name].ndim >= 2]
    vectors = [name for name in start if start[name].ndim < 2]
    groups = [(matrices, DECAY), (vectors, 0.0)]
    training = Training(model, start, titan_as_transformers, groups)
    training.run(BEFORE)
    return training


def test_torchtitan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = llama_training()
    state = training.optimizer.state
    flat: dict[str, Any] = {n: t.detach() for n, t in training.parameters.items()}
    for name, parameter in training.parameters.items():
        for key, value in state[parameter].items():
            flat[f"optimizer.state.{name}.{key}"] = value
        flat[f"optimizer.param_groups.{name}.lr"] = RATE
    checkpoint = written.save_distributed(flat, folder / f"step-{BEFORE}")
    losses, weights = continued(folder, "llama", checkpoint, capsys)
    assert losses == pytest.approx(training.run(AFTER), abs=1e-6)
    same(weights, titan_as_transformers(training.parameters))


TUNE = {"wq": "attn.q_proj", "wk": "attn.k_proj", "wv": "attn.v_proj", "wo": "attn.output_proj",
        "w1": "mlp.w1", "w2": "mlp.w2", "w3": "mlp.w3", "attention_norm": "sa_norm",
        "ffn_norm": "mlp_norm"}  # fmt: skip
"""Modules of torchtune by those of torchtitan."""


@pytest.mark.parametrize("numbered", [True, False])
def test_torchtune(folder: Path, capsys: pytest.CaptureFixture[str], numbered: bool) -> None:
    """One group in the order of parameters on one device, names where it is distributed."""
    training = llama_training()

    def tune_name(name: str) -> str:
        words = name.split(".")
        kind = "scale" if "norm" in words[-2] else "weight"
        layer = f"layers.{words[1]}." if words[0] == "layers" else ""
        return f"{layer}{TUNE.get(words[-2], words[-2])}.{kind}"

    mine = {tune_name(name): parameter for name, parameter in training.parameters.items()}
    order = list(written.tune(written.decoder(vocab_size=VOCAB)))
    keys: list[Any] = [*range(len(order))] if numbered else order
    states = {key: training.optimizer.state[mine[n]] for key, n in zip(keys, order, strict=True)}
    optimizer = {"state": states, "param_groups": [{"lr": RATE, "params": keys}]}
    epoch = folder / "out" / "epoch_0"
    (folder / "out" / "recipe_state").mkdir(parents=True)
    epoch.mkdir()
    torch.save({name: mine[name].detach() for name in order}, epoch / "torchtune_model.pt")
    recipe = {"optimizer": optimizer, "epochs_run": 1, "total_epochs": 3, "seed": 7}
    torch.save(recipe, folder / "out" / "recipe_state" / "recipe_state.pt")
    losses, weights = continued(folder, "llama", epoch, capsys)
    assert losses == pytest.approx(training.run(AFTER), abs=1e-6)
    same(weights, titan_as_transformers(training.parameters))


def test_megatron(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = llama_training()

    def layout(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        class Named:
            """What `written.megatron` asks a model of transformers for."""

            @staticmethod
            def state_dict() -> dict[str, Tensor]:
                return titan_as_transformers({n: t.detach() for n, t in tensors.items()})

        return written.megatron(Named())

    flat: dict[str, Any] = layout(training.parameters)
    for key in ("exp_avg", "exp_avg_sq"):
        states = {n: training.optimizer.state[p][key] for n, p in training.parameters.items()}
        flat |= {f"optimizer.state.{key}.{name}": t for name, t in layout(states).items()}
    checkpoint = written.save_distributed(flat, folder / f"iter_{BEFORE:07d}")
    losses, weights = continued(folder, "llama", checkpoint, capsys)
    assert losses == pytest.approx(training.run(AFTER), abs=1e-6)
    same(weights, titan_as_transformers(training.parameters))


def test_a_checkpoint_without_state_asks_for_a_new_one(
    folder: Path, capsys: pytest.CaptureFixture[str], refuses: Refuses
) -> None:
    model = written.decoder(vocab_size=VOCAB)
    (folder / "job.toml").write_text(JOB + MODELS["llama"])
    torch.save(written.tune(model), folder / "model.pt")
    assert main(["checkpoint", "import", "model.pt", "start", "--job", "job.toml"]) == 0
    assert "step 0, weights of 21 tensors, no optimizer state" in capsys.readouterr().out
    refuses("train", "job.toml", "--checkpoint.load", "start")
    words = ["--checkpoint.load", "start", "--checkpoint.exclude", '["optimizer"]']
    words += ["--duration", "1", "--seed", "5"]  # other rows: there is no place among them
    assert main(["train", "job.toml", *words]) == 0
    assert main(["checkpoint", "convert", "start", "out", "--to", "huggingface"]) == 0
    weights = load_file(folder / "out" / "model.safetensors")
    assert all(torch.equal(weights[name], p) for name, p in model.state_dict().items())
