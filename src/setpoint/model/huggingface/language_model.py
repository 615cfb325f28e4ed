"""A causal language model from transformers: forward pass, documents in rows, logits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from setpoint.config import Problem, RunError, SetpointError
from setpoint.model.attention.backends import RowLayout
from setpoint.model.build import evaluating, layers_of
from setpoint.model.huggingface import model_parallel
from setpoint.model.huggingface.architecture import Unfit
from setpoint.model.huggingface.attention_interface import (
    ATTENDING,
    NAME,
    AttentionInputs,
    TextCache,
    attending,
    demands_of,
    positions_in,
    unpack_rows,
)
from setpoint.model.huggingface.model_parallel import decoder_of
from setpoint.model.pretrained.fill import mean_row
from setpoint.model.transformer import Head, Output
from setpoint.shapes.outcome import Outcome, Projection, VocabularyPart, weight_in_use
from setpoint.shapes.peers import Peers, sum_gradients

if TYPE_CHECKING:
    from setpoint.model.config import HuggingFaceConfig
    from setpoint.model.moe.dispatch import TokenDispatcher
    from setpoint.shapes.batch import ContextGroups, Lengths
    from setpoint.shapes.protocols import ExpertPart
    from setpoint.shapes.stored import Coded, HasCoded

Isolation = Literal["mask", "positions", "rows"]
"""Method of isolating documents of a row; see `HuggingFaceModel`."""

ISOLATED = 1e-4
"""Relative tolerance of logits for documents that share a row."""

LEAK = 0.01
"""Tolerated effect of a token on other documents, relative to that in its own."""

COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
"""Keys of the coefficient of the load-balancing loss."""


class HuggingFaceModel(nn.Module):
    """A causal language model from transformers that maps tokens to logits.

    With output_router_logits, it adds its load-balancing loss in training.

    Padding is masked, and documents that share a row are isolated by the first method that works:

    - `mask`: Setpoint's attention knows the documents;
    - `positions`: position ids restart, which most attention of transformers turns into a
      block-diagonal mask;
    - `rows`: each document is computed in a separate row.
    """

    # See `setpoint.shapes.outcome.takes_documents`.
    takes_documents = True
    # See `setpoint.shapes.outcome.position_arguments`.
    takes_lengths = True

    def __init__(self, config: HuggingFaceConfig, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.isolation: Isolation = "rows"
        self.logits: Logits | None = None
        self.vocabulary_part: VocabularyPart | None = None
        self.groups: ContextGroups | None = None
        """Ranks that divide sequences with this one; None: sequences are whole."""
        self.is_part = False
        """True for a pipeline stage."""
        self.sources: HasCoded | None = None
        """Files of its weights; None without."""
        self.set_model(model)
        self.balances = bool(getattr(self._hf_config, "output_router_logits", False))
        self.balance_weight = self._balance_weight() if self.balances else 0.0

    @property
    def supports_head(self) -> bool:
        """See `setpoint.shapes.outcome.supports_head`; True if the projection is known."""
        if self.logits is None or self.output is None:
            return self.is_part
        # Ranks that divide the matrix without declaring it give the logits of all tokens.
        return self.vocabulary_part is not None or (
            weight_in_use(self.output).shape[0] == self.logits.rows
        )

    @property
    def why_no_head(self) -> str:
        """Reason why the model supports no head, to follow "gives logits only"."""
        return f", as {type(self.model).__name__} of transformers computes them in its own way"

    @property
    def output(self) -> Any:
        """The output layer; None in stages without it."""
        model: Any = self.model
        return model.get_output_embeddings()

    @property
    def token_embedding(self) -> Any:
        """See `setpoint.shapes.protocols.Embeds`."""
        model: Any = self.model
        return model.get_input_embeddings()

    @property
    def vocab_size(self) -> int:
        """Number of logits per position."""
        return self._hf_config.vocab_size

    @property
    def attention(self) -> str:
        """Name of the attention implementation in transformers."""
        return self._hf_config._attn_implementation

    def set_model(self, model: nn.Module) -> None:
        """Replace the model by another of its class."""
        self.model = model
        if self.logits is not None:
            self.logits = read_logits(model)
        self.demands = demands_of(self._hf_config.get_text_config(), model)
        # The balance loss of the whole model reads the padding mask; attention gets position ids.
        decoder_of(model).register_forward_pre_hook(_without_mask, with_kwargs=True)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        lengths: Lengths | None = None,
        *,
        cache: TextCache | None = None,
        head: Head | None = None,
    ) -> Tensor | Outcome:
        """Compute next-token logits; logits of padding are arbitrary.

        Arguments:
            positions: (S,) or (B, S) integers, negative for padding; with documents in separate
                rows, they only mark padding. None: positions restart in each document.
            documents: (B, S) integers, negative for padding; tokens attend within their document.
                None: tokens attend to the whole row.
            lengths: lengths of the documents, or of rows without padding, if the host knows them.
            cache: cache of earlier tokens, to which the new ones are appended; one document per
                row.
            head: see `setpoint.model.transformer.Transformer.forward`.

        Returns:
            the logits; with a head, or in training with a balance loss, an `Outcome` with the
            logits or the head's result, and the weighted balance loss.

        Raises:
            RunError: the balance loss has no gradient.
        """
        if cache is not None:
            return self._call_cached(tokens, positions, cache, head)
        if positions is None and documents is not None:
            positions = positions_in(documents)
        result, balance = self._call(tokens, positions, documents, lengths, head)
        if not (self.balances and self.training):
            return result if head is None else Outcome(result)
        balance = balance.float() * self.balance_weight
        if torch.is_grad_enabled() and not balance.requires_grad:
            raise RunError(
                "model.overrides.output_router_logits = true: the balance loss has no gradient, "
                "because reentrant checkpointing hides the routers' outputs, or no trained weight "
                "precedes a router\nValid: false, or memory.activation_checkpointing.reentrant = "
                "false"
            )
        return Outcome(result, balance)

    def _call(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        documents: Tensor | None,
        lengths: Lengths | None = None,
        head: Head | None = None,
        used: list[AttentionInputs] | None = None,
    ) -> tuple[Any, Any]:
        """Compute the logits, and the unweighted balance loss or None.

        Arguments:
            head: computes the result to return in place of the logits.
            used: receives the inputs of Setpoint's attention, for trial runs.
        """
        given: dict[str, Any] = {"use_cache": False}
        rows, groups = None, self.groups
        batch, count = self._shape(tokens)
        if positions is not None:
            positions = positions.expand(batch, count)
            if self.isolation == "rows" and documents is not None:
                rows = unpack_rows(documents, positions)
                tokens, positions = rows.put(tokens), rows.put(positions + 1) - 1
                documents = lengths = None
        known = positions
        if groups is not None:
            known = torch.arange(count, device=tokens.device) if positions is None else positions
            known = groups.parts.take(known.expand(batch, count))
        if known is not None:
            # Without a mask, transformers would look for documents in the position ids.
            given["attention_mask"] = (known >= 0).long()
            if self.isolation != "rows":
                given["position_ids"] = known.clamp(min=0)
        with self._provide_documents(tokens, positions, documents, lengths, used):
            if self.is_part:
                name = "input_ids" if tokens.dim() == 2 else "inputs_embeds"
                hidden = decoder_of(self.model)(**{name: tokens}, **given)[0]
                hidden = hidden if rows is None else rows.take(hidden)
                if self.output is None:
                    return hidden, None
                return self.finish(hidden, head or _logits_of), None
            if head is None and self.vocabulary_part is not None:
                head = _logits_of
            if head is None:
                outputs = self.model(input_ids=tokens, **given)
                logits = outputs.logits if rows is None else rows.take(outputs.logits)
                return logits, getattr(outputs, "aux_loss", None)
            balances = self.balances and self.training
            more = {"output_router_logits": True} if balances else {}
            outputs = decoder_of(self.model)(input_ids=tokens, **given, **more)
            balance = None
            if balances:
                balance = balance_loss(
                    self.model, outputs.router_logits, given.get("attention_mask")
                )
        hidden = outputs[0] if rows is None else rows.take(outputs[0])
        return self.finish(hidden, head), balance

    def make_cache(self) -> TextCache | None:
        """Make a cache for generation; None if the model supports none."""
        model: Any = self.model
        can_keep = model.can_generate() and model._supports_default_dynamic_cache()
        is_divided = self.is_part or self.groups is not None
        return TextCache(model) if can_keep and not is_divided else None

    def _call_cached(
        self, tokens: Tensor, positions: Tensor | None, cache: TextCache, head: Head | None
    ) -> Tensor | Outcome:
        """Compute the logits of tokens that follow those of a cache."""
        given = {
            **cache.extend(tokens, positions),
            "past_key_values": cache.dynamic,
            "use_cache": True,
        }
        with attending(AttentionInputs(None, self.demands)):
            if head is None and self.vocabulary_part is None:
                return self.model(input_ids=tokens, **given).logits
            hidden = decoder_of(self.model)(input_ids=tokens, **given)[0]
        if head is None:
            return self.finish(hidden, _logits_of)
        return Outcome(self.finish(hidden, head))

    @property
    def pads_left(self) -> bool:
        """True if rows may begin with padding, which negative positions mark."""
        return self.isolation == "mask"

    def _shape(self, tokens: Tensor) -> tuple[int, int]:
        """(B, S) of whole sequences, of which this rank may have only a part."""
        batch, count = tokens.shape[:2]
        return batch, count if self.groups is None else count * self.groups.parts.size

    def finish(self, hidden: Tensor, head: Head) -> Any:
        """Call a head with the (B, S, dim) states after the last norm."""
        assert self.logits is not None
        output, logits, part = self.output, self.logits, self.vocabulary_part
        if part is not None:
            hidden = sum_gradients(hidden, part.peers)
        # By the module, so that a sharding engine gathers its weight.
        return output(hidden, lambda states: head(states, logits.projection(output, part)))

    @contextmanager
    def _provide_documents(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        documents: Tensor | None,
        lengths: Lengths | None,
        used: list[AttentionInputs] | None,
    ) -> Iterator[None]:
        """Pass the documents of the tokens to Setpoint's attention."""
        if self.attention != NAME:
            yield
            return
        batch, count = self._shape(tokens)
        layout = RowLayout(
            count, count, batch, tokens.device, positions, positions is not None, documents, lengths
        )
        inputs = AttentionInputs(layout, self.demands, self.groups)
        if used is not None:
            inputs.agreed = []
            used.append(inputs)
        with attending(inputs):
            yield

    def assume_defaults(self) -> None:
        """Assume the usual results of trial runs, for a model on the meta device."""
        self.logits = read_logits(self.model)
        self.isolation = "mask" if self.attention == NAME else "positions"

    def choose_head(self) -> None:
        """Find the projection from hidden states to logits, verified with the model's logits."""
        model: Any = self.model
        tokens = torch.tensor([[1, 2, 2, 1], [2, 1, 2, 3]])
        logits = read_logits(model)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(self):
            if logits is None or not is_right(logits, model, tokens):
                return
            self.logits = logits
            if self.balances and not self._balances_with_head(tokens):
                self.logits = None

    def _balances_with_head(self, tokens: Tensor) -> bool:
        """True if the balance loss can be computed without the model's own head."""
        model: Any = self.model
        mask = torch.ones_like(tokens)
        mask[1, -1] = 0
        try:
            routers = decoder_of(model)(
                input_ids=tokens, attention_mask=mask, use_cache=False, output_router_logits=True
            ).router_logits
            balance = balance_loss(model, routers, mask)
        except (AttributeError, TypeError):
            return False
        expected = model(input_ids=tokens, attention_mask=mask, use_cache=False).aux_loss
        return torch.equal(balance, expected)

    def choose_attention(self, try_setpoint: bool) -> bool:
        """Choose how to isolate documents; use Setpoint's attention where results agree.

        Arguments:
            try_setpoint: whether to try Setpoint's attention, and to use it if it agrees with the
                current one.

        Returns:
            True if Setpoint's attention is used.

        Raises:
            Unfit: a balance loss is requested, but the model has none.
        """
        tokens = torch.tensor([[1, 2, 2, 1], [2, 1, 2, 0]])
        changed_tokens = torch.tensor([[2, 2, 2, 1], [1, 1, 2, 0]])  # differs in the first token
        documents = torch.tensor([[0, 0, 1, 1], [0, 1, 1, -1]])
        positions = torch.tensor([[0, 1, 0, 1], [0, 0, 1, -1]])

        used: list[AttentionInputs] = []

        def run(isolation: Isolation, tokens: Tensor) -> tuple[Tensor, Any]:
            self.isolation = isolation
            return self._call(tokens, positions, documents, used=used)

        def agrees(isolation: Isolation) -> bool:
            types = getattr(self._hf_config.get_text_config(), "layer_types", None) or ()
            if isolation != "rows" and not ATTENDING.issuperset(types):
                return False
            used.clear()
            try:
                logits, balance = run(isolation, tokens)
                changed, _ = run(isolation, changed_tokens)
            except Exception:  # any error of its layers means that they cannot
                return False
            off = (logits - expected)[documents >= 0].abs().max()
            # Initial weights are so small that little would leak between documents: an earlier
            # token must not change later documents where it changes its own.
            moved = (logits - changed).abs()
            leak, within = moved[documents > 0].max(), moved[0, 1].max()
            return (
                all(agreed for inputs in used for agreed in inputs.agreed or ())
                and bool(off <= ISOLATED * expected.abs().max())
                and bool(leak <= LEAK * within)
                and (not self.balances or bool((balance - target).abs() <= ISOLATED * target.abs()))
            )

        with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(self):
            self.isolation = "rows"
            expected, target = self._call(tokens, positions, documents)
            if self.balances and target is None:
                raise self._no_balance()
            if try_setpoint:
                self.set_attention(NAME)
                if (agrees("mask") or agrees("rows")) and used[-1].masks:
                    return True
                self.set_attention(None)
            if not agrees("positions"):
                self.isolation = "rows"
        return False

    def set_attention(self, name: str | None) -> None:
        """Set the attention implementation; None: transformers' default."""
        model: Any = self.model
        model.set_attn_implementation(name or model.get_correct_attn_implementation(None))

    def _balance_weight(self) -> float:
        for holder in (self.model, self._hf_config):
            for name in COEFFICIENTS:
                if isinstance(weight := getattr(holder, name, None), int | float):
                    return float(weight)
        raise self._no_balance()

    def _no_balance(self) -> Unfit:
        problem = Problem(
            "overrides.output_router_logits",
            f"true requests a balance loss, but {type(self.model).__name__} has none with a weight",
            valid=("false",),
            also=("config",),
        )
        return Unfit(self.config, problem)

    def units_around_layers(self) -> list[list[nn.Module]]:
        """See `setpoint.shapes.protocols.HasUnits`; empty for unusual module structures."""
        model: Any = self.model
        if self.is_part:
            return []
        decoder, output, embedding = decoder_of(model), self.output, model.get_input_embeddings()
        layers = {layer for _, layer in layers_of(model)}
        around = [
            module
            for part in (decoder, model)
            for module in part.children()
            if module is not decoder
            and any(True for _ in module.parameters())
            and layers.isdisjoint(module.modules())
        ]
        is_tied = output is None or output.weight is embedding.weight
        if is_tied or len(around) != 3 or (around[0], around[2]) != (embedding, output):
            return []
        return [[embedding], around[1:]]

    def use_context(self, groups: ContextGroups) -> None:
        """See `setpoint.shapes.protocols.SequenceDivisible`.

        Raises:
            SetpointError: the layers need whole sequences.
        """
        axis = "ring" if groups.ring is not None else "ulysses"
        if self.attention != NAME or self.isolation != "mask":
            why = (
                f"attention is computed by {self.attention} of transformers"
                if self.attention != NAME
                else "its layers carry a state from token to token"
            )
            raise SetpointError(
                f"parallel.{axis}: {type(self.model).__name__} needs whole sequences, as {why}\n"
                f"Valid: 1"
            )
        if self.balances:
            raise SetpointError(
                f"parallel.{axis}: model.overrides.output_router_logits = true requests a balance "
                f"loss over whole sequences, but each rank has only a part of each\n"
                f"Valid: 1, or output_router_logits = false"
            )
        self.groups = groups

    def use_experts(self, exchange: TokenDispatcher) -> list[ExpertPart]:
        """See `setpoint.shapes.protocols.HasExperts`."""
        return model_parallel.use_experts(self.model, exchange)

    @property
    def stream_width(self) -> int:
        """See `setpoint.shapes.protocols.Staged`."""
        return self._hf_config.get_text_config().hidden_size

    def stage_parts(self) -> list[str]:
        """See `setpoint.shapes.protocols.Staged`; `output` includes the norm before it."""
        return model_parallel.parts_of(self.model)

    def part_modules(self, part: str) -> list[nn.Module]:
        """Modules of a part; stages are balanced by their sizes."""
        return model_parallel.modules_of(self.model, part)

    def keep_parts(self, parts: Sequence[str]) -> None:
        """See `setpoint.shapes.protocols.Staged`."""
        self.is_part = True
        self.model = model_parallel.keep_parts(self.model, parts)

    def divide_vocabulary(self, peers: Peers, gathers: bool) -> None:
        """See `setpoint.shapes.protocols.VocabularyDivisible`."""
        logits, output = self.logits, self.output
        if logits is None or output is None or weight_in_use(output).shape[0] == logits.rows:
            return  # it gives the logits of all tokens, or is tied to an undivided embedding
        self.vocabulary_part = VocabularyPart(peers, -(-logits.rows // peers.size), gathers)

    def tensor_plan(self) -> dict[str, str]:
        """See `setpoint.shapes.protocols.TensorDivisible`; the plan comes from transformers."""
        plan = {
            f"model.{path}": word for path, word in model_parallel.tensor_plan(self.model).items()
        }
        if self.logits is not None and self.output is not None:
            output = next(f"model.{n}" for n, m in self.model.named_modules() if m is self.output)
            plan = {path: word for path, word in plan.items() if path != output}
            plan[output] = "vocabulary_columns"
        return plan

    def fill(self, load: Callable[[], None], tokens: int | None) -> None:
        """Load weights; rows for new tokens are the mean of the others.

        Arguments:
            load: fills a model of the size of the weights.
            tokens: number of rows in the weights; None: as many as in the model.
        """
        model: Any = self.model
        size = self.vocab_size
        if tokens is None or tokens >= size:
            return load()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            self._resize(tokens)
            load()
            self._resize(size)
            model = self.model
            for module in (model.get_input_embeddings(), model.get_output_embeddings()):
                for matrix in () if module is None else module.parameters(recurse=False):
                    matrix[tokens:] = mean_row(matrix[:tokens]).to(matrix)

    def _resize(self, tokens: int) -> None:
        model: Any = self.model
        model.resize_token_embeddings(tokens, mean_resizing=False)

    def coded(self, weight: str) -> Iterator[Sequence[Coded]] | None:
        """See `setpoint.shapes.stored.HasCoded`."""
        return None if self.sources is None else self.sources.coded(weight.removeprefix("model."))

    @property
    def _hf_config(self) -> Any:
        return self.model.config


def _logits_of(hidden: Tensor, projection: Projection) -> Tensor:
    """A head that returns the logits of the whole vocabulary."""
    if projection.part is not None:
        projection = projection._replace(part=projection.part._replace(gathers=True))
    return projection.logits(hidden)


def _without_mask(
    decoder: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Drop the padding mask if transformers' own attention reads position ids instead."""
    keys: Any = decoder.config
    packed = named.get("position_ids") is not None and named.get("past_key_values") is None
    if packed and keys._attn_implementation != NAME:
        named = {**named, "attention_mask": None}
    return arguments, named


LARGE = 50.0
"""Size of logits in trial runs, large enough to reveal soft caps."""
SAME = 1e-5
"""Relative tolerance of logits."""


class Logits(NamedTuple):
    """Scale and soft cap applied after the output matrix.

    Arguments:
        scale, soft_cap: see `Projection`.
        rows: number of rows of the whole matrix.
    """

    scale: float
    soft_cap: float | None
    rows: int

    def projection(self, output: nn.Module, part: VocabularyPart | None) -> Projection:
        """The projection of an output layer, or of this rank's part of it."""
        return Projection(weight_in_use(output), self.rows, self.scale, self.soft_cap, part)


def read_logits(model: Any) -> Logits | None:
    """Read the scale and soft cap of a model's logits, and let its output layer call a head.

    Returns:
        None if there is no output matrix, or it has a bias.
    """
    output = model.get_output_embeddings()
    if type(output) not in (nn.Linear, Output) or output.bias is not None:
        return None
    output.__class__ = Output
    keys = model.config.get_text_config()
    # Cohere, Falcon H1 and Granite; the cap is Gemma's.
    names = ("logit_scale", "lm_head_multiplier", "logits_scaling")
    scale, multiplier, divisor = (getattr(keys, name, None) or 1.0 for name in names)
    cap = getattr(keys, "final_logit_softcapping", None) or None
    return Logits(scale * multiplier / divisor, cap, output.weight.shape[0])


def is_right(logits: Logits, model: Any, tokens: Tensor) -> bool:
    """True if the model itself computes the same logits."""
    output = model.get_output_embeddings()
    projection = logits.projection(output, None)
    hidden = decoder_of(model)(input_ids=tokens, use_cache=False)[0]
    if hidden.shape[-1] != projection.weight.shape[1]:
        return False
    size = functional.linear(hidden, projection.weight).abs().max() * abs(logits.scale)
    factor = float(LARGE / size) if size > 0 else 1.0
    hook = output.register_forward_pre_hook(lambda _, given: (given[0] * factor,))
    try:
        expected = model(input_ids=tokens, use_cache=False).logits
    finally:
        hook.remove()
    result = projection.logits(hidden * factor)
    return result.shape == expected.shape and bool(
        (result - expected).abs().max() <= SAME * expected.abs().max()
    )


def balance_loss(model: Any, routers: Any, mask: Tensor | None) -> Tensor:
    """Unweighted load-balancing loss, computed with the model's own function.

    Arguments:
        routers: router logits of each layer.
        mask: (B, S), 0 for padding; None without padding.
    """
    compute = sys.modules[type(model).__module__].load_balancing_loss_func
    return compute(routers, model.num_experts, model.num_experts_per_tok, mask)
