"""Models of the transformers library, trained as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError, did_you_mean
from setpoint.model.layers import evaluating
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.locate import CONFIG, locate
from setpoint.model.pretrained.read_tensor import Unread
from setpoint.model.pretrained.tensor_files import list_tensors, listed
from setpoint.shapes.outcome import Outcome

if TYPE_CHECKING:
    from setpoint.model.config import HuggingFaceModel as HuggingFaceConfig

CAUSAL = 1e-4
"""Share of the largest logit that rounding may change where the tokens behind differ."""

WORDS = {
    "colwise": "column",
    "rowwise": "row",
    "colwise_gather_output": "column_gathered",
    "embedding_rowwise": "vocabulary_rows",
    "replicated_with_grad_allreduce": "sum_gradients",
}
"""Words of transformers' tensor-parallel plans, and ours; see `setpoint.shapes.division`."""

COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
"""What transformers calls the weight of the loss that balances experts."""

_PACKAGE = "model.type = huggingface needs the package {}: install 'setpoint[huggingface]'"


class HuggingFaceModel(nn.Module):
    """A causal language model of transformers that maps tokens to logits.

    Where its keys say output_router_logits, it adds its balance loss in training.
    """

    def __init__(self, config: HuggingFaceConfig, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.balances = bool(getattr(self._keys, "output_router_logits", False))
        self.balance_weight = self._balance_weight() if self.balances else 0.0

    @property
    def vocab_size(self) -> int:
        """How many logits each position has."""
        return self._keys.vocab_size

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor | Outcome:
        """Compute the logits of every next token.

        Arguments:
            positions: (S,) or (B, S) integers; 0 .. S - 1 if None.

        Returns:
            the logits; in training, with a balance loss, an `Outcome` with them and its weighted
            value.

        Raises:
            RunError: no weight would learn from the balance loss.
        """
        if positions is not None and positions.ndim == 1:
            positions = positions.unsqueeze(0)
        found = self.model(input_ids=tokens, position_ids=positions, use_cache=False)
        if not (self.balances and self.training):
            return found.logits
        balance = found.aux_loss.float() * self.balance_weight
        if torch.is_grad_enabled() and not balance.requires_grad:
            raise RunError(
                "model.overrides.output_router_logits = true: the balance loss has no gradient, as "
                "reentrant checkpoints hide what routers compute, or no trained weight is before a "
                "router\nValid: false, or memory.activation_checkpointing.reentrant = false"
            )
        return Outcome(found.logits, balance)

    def _balance_weight(self) -> float:
        for holder in (self.model, self._keys):
            for name in COEFFICIENTS:
                if isinstance(weight := getattr(holder, name, None), int | float):
                    return float(weight)
        raise SetpointError(
            f"model.config = {self.config.config}: output_router_logits = true asks for a balance "
            f"loss, and {type(self.model).__name__} has none with a weight\nValid: false"
        )

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.division.TensorDivisible`: the plan that transformers has.

        Raises:
            SetpointError: it has none, or one with modules that are divided in other ways.
        """
        theirs: dict[str, str] = getattr(self.model, "_tp_plan", None) or {}
        kind = type(self.model).__name__
        if not theirs:
            raise SetpointError(
                f"parallel.tensor: transformers has no tensor-parallel plan for {kind}\nValid: 1"
            )
        unknown = sorted(set(theirs.values()) - WORDS.keys())
        if unknown:
            raise SetpointError(
                f"parallel.tensor: the plan of transformers for {kind} divides modules by "
                f"{', '.join(unknown)}, and what can be done is {', '.join(WORDS)}\nValid: 1"
            )
        plan: dict[str, str] = {}
        for pattern, word in theirs.items():
            matches = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
            for path, module in self.model.named_modules():
                if matches.fullmatch(path):
                    plan[f"model.{path}"] = WORDS[word] + self._heads_of(path, module)
        return plan

    def _heads_of(self, path: str, module: nn.Module) -> str:
        """How many heads the outputs of a projection are, as a `column` says it."""
        heads = getattr(self._keys, "num_attention_heads", None)
        key_heads = getattr(self._keys, "num_key_value_heads", None) or heads
        count = {"q_proj": heads, "k_proj": key_heads, "v_proj": key_heads}.get(path.split(".")[-1])
        if not count or not isinstance(module, nn.Linear):
            return ""
        return f" {count}*{module.out_features // count}"

    def load_from(self, directory: Path) -> None:
        """Take the weights of a directory in the format of Hugging Face.

        Raises:
            SetpointError: if it lacks weights of the model, or has others.
        """
        kind, keys, training = type(self.model), self._keys, self.model.training
        dtype = next(self.model.parameters()).dtype
        # The one model is gone before the other is made.
        self.model = nn.Identity()
        self.model = _with_weights(kind, directory, keys, dtype).train(training)

    def save_into(self, directory: Path, *, dtype: torch.dtype | None, max_shard_size: int) -> None:
        """Write the model as transformers does.

        Arguments:
            dtype: of the weights; None: as they are.
        """
        state = self.model.state_dict()
        if dtype is not None:
            # What is tied is one tensor under two names, and stays one.
            casts = {t.data_ptr(): _cast(t, dtype) for t in state.values()}
            state = {name: casts[t.data_ptr()] for name, t in state.items()}
        with _without_bars():
            self.model.save_pretrained(  # pyright: ignore[reportCallIssue]
                directory, state_dict=state, max_shard_size=max_shard_size
            )
        if dtype is not None:
            # It has written the type of the model's own parameters.
            file = directory / CONFIG
            keys = {**json.loads(file.read_bytes()), "dtype": str(dtype).removeprefix("torch.")}
            file.write_text(json.dumps(keys, indent=2) + "\n")

    @property
    def _keys(self) -> Any:
        return self.model.config


def build_huggingface(
    config: HuggingFaceConfig, vocab_size: int, keys: Mapping[str, Any] | None = None
) -> HuggingFaceModel:
    """Make a model of transformers, with random weights from torch's generator.

    Arguments:
        vocab_size: how many tokens the tokenizer has.
        keys: of the config.json; None: they are read from where `config.config` says.

    Returns:
        the model in training mode, its parameters in fp32.

    Raises:
        SetpointError: if transformers is missing or cannot make the model, its vocabulary does not
            hold the tokenizer's, it takes shorter sequences, it fails on tokens, or tokens see
            those behind them.
    """
    theirs = _config_of(config, keys)
    _require_fit(config, theirs, vocab_size)
    transformers = _transformers()
    if type(theirs) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SetpointError(
            f"model.config = {config.config}: {type(theirs).__name__} is of no language model that "
            f"transformers has"
        )
    try:
        # Not with torch's present default, and not with what config.json says the weights are in.
        model = transformers.AutoModelForCausalLM.from_config(
            theirs, attn_implementation=config.attention_backend, dtype=torch.float32
        )
    except Exception as error:  # of transformers' own kinds, and of those of what it is built on
        raise SetpointError(
            f"model.config = {config.config}: transformers makes no causal language model of it: "
            f"{_one_line(error)}"
        ) from error
    made = HuggingFaceModel(config, model.train())
    _require_causal(made)
    return made


def _require_causal(model: HuggingFaceModel) -> None:
    """Try a model on two texts that differ in the last token: the first must not know of it."""
    name = f"model.config = {model.config.config}"
    if torch.get_default_device().type == "meta":
        return  # there are no values to try it with
    tokens = torch.tensor([[1, 1], [1, 2]])  # not 0, which many pad with and embed as zero
    # Trying it must not change what random numbers come next.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(model):
        try:
            one, other = model(tokens)[:, 0]
        except Exception as error:  # whatever its layers raise, sizes do not fit
            raise SetpointError(
                f"{name}: the model that transformers makes of it cannot be called with tokens: "
                f"{_one_line(error)}"
            ) from error
    if (one - other).abs().max() > CAUSAL * one.abs().max():
        decoder = hasattr(model.model.config, "is_decoder")
        hint = "; set model.overrides.is_decoder = true" if decoder else ""
        raise SetpointError(
            f"{name}: what the model says of a token changes with the tokens behind it, so that it "
            f"would learn to copy them{hint}"
        )


def _config_of(config: HuggingFaceConfig, keys: Mapping[str, Any] | None) -> Any:
    """The config of transformers, with the overrides."""
    transformers = _transformers()
    overrides = config.overrides.dump()
    name = f"model.config = {config.config}"
    raw = dict(config_keys(config) if keys is None else keys)
    kind = str(raw.get("model_type"))
    if kind not in transformers.CONFIG_MAPPING:
        meant = did_you_mean(kind, list(transformers.CONFIG_MAPPING), " ")
        raise SetpointError(
            f"{name}: transformers {transformers.__version__} knows no kind of models {kind!r}."
            f"{meant} It is such a kind, a directory with a config.json, or an id of the hub."
        )
    try:
        # Of the class, so that no code that a directory brings is run.
        known = transformers.AutoConfig.for_model(kind)
        unknown = [key for key in overrides if key not in raw and not hasattr(known, key)]
        if unknown:
            meant = did_you_mean(unknown[0], [*known.to_dict(), *raw], " ")
            raise SetpointError(f"model.overrides.{unknown[0]}: {name} has no such key.{meant}")
        return type(known).from_dict({**raw, **overrides})
    except SetpointError:
        raise
    except Exception as error:  # whatever its classes raise, a value is wrong
        raise SetpointError(f"{name} cannot be read by transformers: {_one_line(error)}") from error


def config_keys(config: HuggingFaceConfig) -> dict[str, Any]:
    """Read the config.json that a section names, without its overrides.

    Returns:
        the keys; of a kind of models, which has no file, its name alone.

    Raises:
        SetpointError: if there is no such file.
    """
    if config.names_a_kind:
        return {"model_type": config.config}
    try:
        place = locate(config.config, weights=False)
    except SetpointError as error:
        raise type(error)(f"model.config = {error}") from error
    if place.kind == "checkpoint":
        raise SetpointError(
            f"model.config = {config.config} is a run or checkpoint of Setpoint, which holds "
            f"weights and no config.json of transformers; set it to what the run's own "
            f"model.config is"
        )
    return read_keys(place.directory)


def _require_fit(config: HuggingFaceConfig, keys: Any, vocab_size: int) -> None:
    held = getattr(keys, "vocab_size", None)
    if held is not None and held < vocab_size:
        raise SetpointError(
            f"model.config = {config.config}: its vocabulary of {held} does not hold the "
            f"{vocab_size} tokens of the tokenizer; for a model that is trained from nothing set "
            f"model.overrides.vocab_size = {vocab_size}"
        )
    longest = getattr(keys, "max_position_embeddings", None)
    if longest is not None and config.max_sequence_length > longest:
        raise SetpointError(
            f"model.max_sequence_length = {config.max_sequence_length}: model.config = "
            f"{config.config} takes {longest} positions; valid: {longest} or less"
        )


def _with_weights(kind: type[Any], directory: Path, keys: Any, dtype: torch.dtype) -> nn.Module:
    failed: list[SetpointError] = []
    held = {name: Unread(info, failed) for name, info in list_tensors(directory).items()}
    try:
        with _without_bars():
            model, loading = kind.from_pretrained(
                None,
                config=keys,
                dtype=dtype,
                state_dict=held,
                generation_config=_generation_of(kind, directory),
                output_loading_info=True,
            )
    except Exception as error:
        if failed:  # which transformers says in words of its own
            raise failed[0] from error
        if not isinstance(error, OSError | ValueError | RuntimeError):
            raise
        raise SetpointError(f"{directory} cannot be loaded: {_one_line(error)}") from error
    wrong = [
        f"{len(loading[key])} tensors {what}: {listed(sorted(map(str, loading[key])))}"
        for key, what in (
            ("missing_keys", "are missing"),
            ("unexpected_keys", "are not in the model"),
            ("mismatched_keys", "have another shape"),
        )
        if loading[key]
    ]
    if wrong:
        lines = "\n  ".join(wrong)
        raise SetpointError(f"{directory} does not fit the model:\n  {lines}")
    return model


def _generation_of(kind: type[Any], directory: Path) -> Any:
    """What a directory says of sampling, as transformers looks for it."""
    if not kind.can_generate():
        return None
    read = _transformers().GenerationConfig.from_pretrained
    try:
        return read(str(directory), local_files_only=True)
    except OSError:
        of_model = {"config_file_name": CONFIG, "_from_model_config": True}
        return read(str(directory), local_files_only=True, **of_model)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the progress bars of transformers away, which it draws into pipes, too."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _one_line(error: Exception) -> str:
    """What an error of transformers says, on one line and not too long."""
    text = " ".join(str(error).split())
    if not text or isinstance(error, LookupError):  # which says no more than a key
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise SetpointError(_PACKAGE.format(repr(error.name))) from None
    return transformers
