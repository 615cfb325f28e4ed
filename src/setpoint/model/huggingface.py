"""Models of the transformers library, trained as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError, did_you_mean
from setpoint.model.layers import evaluating
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.fill import mean_row
from setpoint.model.pretrained.locate import CONFIG, locate
from setpoint.model.pretrained.read_tensor import Unread
from setpoint.model.pretrained.tensor_files import list_tensors, listed
from setpoint.shapes.outcome import Outcome

if TYPE_CHECKING:
    from setpoint.model.config import HuggingFaceModel as HuggingFaceConfig

CAUSAL = 1e-4
"""Share of the largest logit that rounding may change where the tokens behind differ."""
ISOLATED = 1e-5
"""Share of the largest logit that rounding may change where documents share a row."""

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

    Padding is masked, and documents that share a row are isolated: by position ids that restart,
    which most attention of transformers takes for a block-diagonal mask, or else in rows of their
    own. `find_isolation` chooses.
    """

    # See `setpoint.shapes.outcome.takes_documents`.
    takes_documents = True

    def __init__(self, config: HuggingFaceConfig, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.isolates_by_positions = False
        self._take(model)
        self.balances = bool(getattr(self._keys, "output_router_logits", False))
        self.balance_weight = self._balance_weight() if self.balances else 0.0

    @property
    def vocab_size(self) -> int:
        """How many logits each position has."""
        return self._keys.vocab_size

    def _take(self, model: nn.Module) -> None:
        self.model = model
        # The balance loss of the whole model reads the padding mask; attention gets position ids.
        decoder = getattr(model, "base_model", model)
        decoder.register_forward_pre_hook(_without_mask, with_kwargs=True)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor | Outcome:
        """Compute the logits of every next token; those of padding mean nothing.

        Arguments:
            positions: (S,) or (B, S) integers, negative for padding; of a document in a row of its
                own, they only say where padding is. None: they restart in each document.
            documents: (B, S) integers, negative for padding; a token sees those of its own document
                only. None: all of the row.

        Returns:
            the logits; in training, with a balance loss, an `Outcome` with them and its weighted
            value.

        Raises:
            RunError: no weight would learn from the balance loss.
        """
        if positions is None and documents is not None:
            positions = _positions_in(documents)
        logits, balance = self._call(tokens, positions, documents, self.isolates_by_positions)
        if not (self.balances and self.training):
            return logits
        balance = balance.float() * self.balance_weight
        if torch.is_grad_enabled() and not balance.requires_grad:
            raise RunError(
                "model.overrides.output_router_logits = true: the balance loss has no gradient, as "
                "reentrant checkpoints hide what routers compute, or no trained weight is before a "
                "router\nValid: false, or memory.activation_checkpointing.reentrant = false"
            )
        return Outcome(logits, balance)

    def _call(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        documents: Tensor | None,
        by_positions: bool,
    ) -> tuple[Tensor, Any]:
        """The logits, and the balance loss without its weight; None where there is none."""
        if positions is None:
            found = self.model(input_ids=tokens, use_cache=False)
            return found.logits, getattr(found, "aux_loss", None)
        positions = positions.expand(tokens.shape)
        mask, rows = positions >= 0, None
        if by_positions:
            # Of padding each token is a document of its own.
            ids = {"position_ids": positions.clamp(min=0)}
        else:
            ids = {}
            if documents is not None:
                rows = _rows_apart(documents, positions)
                tokens, mask = rows.put(tokens), rows.put(mask)
        found = self.model(input_ids=tokens, attention_mask=mask.long(), use_cache=False, **ids)
        logits = found.logits if rows is None else rows.take(found.logits)
        return logits, getattr(found, "aux_loss", None)

    def find_isolation(self) -> None:
        """Try whether position ids that restart isolate documents, as rows of their own do.

        Those of models with recurrent layers, or that count positions by themselves, do not.

        Raises:
            SetpointError: a balance loss is asked for, and there is none.
        """
        tokens = torch.tensor([[1, 2, 2, 1], [2, 1, 2, 0]])
        documents = torch.tensor([[0, 0, 1, 1], [0, 1, 1, -1]])
        positions = torch.tensor([[0, 1, 0, 1], [0, 0, 1, -1]])
        with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(self):
            apart, wanted = self._call(tokens, positions, documents, False)
            if self.balances and wanted is None:
                raise self._no_balance()
            try:
                packed, found = self._call(tokens, positions, documents, True)
            except Exception:  # whatever its layers raise, they cannot
                self.isolates_by_positions = False
                return
        off = (packed - apart)[documents >= 0].abs().max()
        self.isolates_by_positions = bool(off <= ISOLATED * apart.abs().max()) and (
            not self.balances or bool((found - wanted).abs() <= ISOLATED * wanted.abs())
        )

    def _balance_weight(self) -> float:
        for holder in (self.model, self._keys):
            for name in COEFFICIENTS:
                if isinstance(weight := getattr(holder, name, None), int | float):
                    return float(weight)
        raise self._no_balance()

    def _no_balance(self) -> SetpointError:
        return SetpointError(
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

    def fill(self, load: Callable[[], None], tokens: int | None) -> None:
        """Fill it from weights; rows for tokens that these do not have are the mean of theirs.

        Arguments:
            load: fills a model of the size of the weights.
            tokens: for which the weights have rows; None: for as many as the model.
        """
        model: Any = self.model
        wanted = self.vocab_size
        if tokens is None or tokens >= wanted:
            return load()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            self._resize(tokens)
            load()
            self._resize(wanted)
            model = self.model
            for module in (model.get_input_embeddings(), model.get_output_embeddings()):
                for matrix in () if module is None else module.parameters(recurse=False):
                    matrix[tokens:] = mean_row(matrix[:tokens]).to(matrix)

    def _resize(self, tokens: int) -> None:
        model: Any = self.model
        model.resize_token_embeddings(tokens, mean_resizing=False)

    def load_from(self, directory: Path) -> None:
        """Take the weights of a directory in the format of Hugging Face.

        Raises:
            SetpointError: if it lacks weights of the model, or has others.
        """
        kind, keys, training = type(self.model), self._keys, self.model.training
        dtype = next(self.model.parameters()).dtype
        # The one model is gone before the other is made.
        self.model = nn.Identity()
        self._take(_with_weights(kind, directory, keys, dtype).train(training))

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
    if torch.get_default_device().type != "meta":  # where there are no values to try it with
        _require_causal(made)
        made.find_isolation()
    return made


class _Rows(NamedTuple):
    """Places of the tokens of packed rows where each document has a row.

    Arguments:
        valid: (B, S) which tokens are no padding.
        row, column: (tokens,) the place of each of these.
    """

    valid: Tensor
    row: Tensor
    column: Tensor
    shape: tuple[int, int]

    def put(self, packed: Tensor) -> Tensor:
        """Lay (B, S) values into rows of documents, with zeros as padding."""
        apart = packed.new_zeros(self.shape)
        apart[self.row, self.column] = packed[self.valid]
        return apart

    def take(self, apart: Tensor) -> Tensor:
        """Lay values of documents back into packed rows."""
        packed = apart.new_zeros(*self.valid.shape, *apart.shape[2:])
        packed[self.valid] = apart[self.row, self.column]
        return packed


def _rows_apart(documents: Tensor, positions: Tensor) -> _Rows:
    valid = documents >= 0
    row, column = (positions == 0).flatten().cumsum(0)[valid.flatten()] - 1, positions[valid]
    return _Rows(valid, row, column, (int(row.max()) + 1, int(column.max()) + 1))


def _positions_in(documents: Tensor) -> Tensor:
    """(B, S) positions that restart in each document; -1 for padding."""
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = documents != documents.roll(1, dims=1)
    begins[:, 0] = True
    starts = places.where(begins, 0).cummax(dim=1).values
    return (places - starts).where(documents >= 0, -1)


def _without_mask(
    _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Leave out the padding mask where position ids are given, which transformers reads then."""
    if named.get("position_ids") is not None:
        named = {**named, "attention_mask": None}
    return arguments, named


def _require_causal(model: HuggingFaceModel) -> None:
    """Try a model on two texts that differ in the last token: the first must not know of it."""
    name = f"model.config = {model.config.config}"
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


def default_vocabulary(config: HuggingFaceConfig) -> int | None:
    """The vocabulary of a kind of models of transformers, with the overrides.

    Raises:
        SetpointError: transformers is missing, or has no such kind.
    """
    return getattr(_config_of(config, None), "vocab_size", None)


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
            f"{vocab_size} tokens of the tokenizer\nValid: model.overrides.vocab_size = "
            f"{vocab_size}; rows of new tokens begin as the mean of those of pretrained weights"
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
