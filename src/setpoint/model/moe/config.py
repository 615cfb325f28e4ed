"""The configuration of a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Literal

from setpoint.config import RUNTIME, Caution, Config, Problem, dead, derive, derived, field, rule
from setpoint.config.words.names import nearest_divisors

ROUTER_WITHOUT_GRADIENT = "router-without-gradient"
CAUTIONS = {ROUTER_WITHOUT_GRADIENT: "the model's loss has no gradient for the routers"}


class RouterConfig(Config):
    """Router that chooses the experts for each token."""

    normalize: bool = True
    """Normalize top-k probabilities (norm_topk_prob): scale the weights of a token's experts to sum
    to 1."""


class SoftmaxTopK(
    RouterConfig, type="softmax_top_k", owner="setpoint.model.moe.layer:SoftmaxRouter"
):
    """Scores are a softmax over all experts; the highest top_k are chosen."""


class SigmoidTopK(
    RouterConfig, type="sigmoid_top_k", owner="setpoint.model.moe.layer:SigmoidRouter"
):
    """Sigmoid scores, with an expert bias for selection only (auxiliary-loss-free load balancing).

    The bias is updated once per step from the load over all ranks, without a loss
    (Wang et al., 2024; DeepSeek-V3).
    """

    bias_rate: float | None = field(default=0.001, ge=0, lt=inf)
    """Bias update speed (gamma of auxiliary-loss-free balancing, DeepSeek-V3): change in an
    expert's bias per step; 0: the biases stay; null: no bias (Llama 4)."""

    bias_schedule: Literal["constant", "cosine_decay", "linear_warmup"] = "constant"
    """Schedule of bias_rate. cosine_decay: to zero at the end of training; linear_warmup: from
    zero, over the first tenth."""

    @dead("bias_schedule")
    def _bias_schedule_is_dead(self) -> str | None:
        if self.bias_rate:
            return None
        return "bias_rate is 0" if self.bias_rate == 0 else "bias_rate is null"


class MoE(Config):
    """Mixture of experts (MoE) instead of the feed-forward network."""

    experts: int = field(ge=1)
    """Number of routed experts."""

    top_k: int = field(default=2, ge=1)
    """Experts per token (top-k routing)."""

    expert_dim: int | None = field(default=None, ge=1)
    """Intermediate size of each expert (moe_intermediate_size); null: the model's ffn_dim."""

    every: int = field(default=1, ge=1)
    """MoE layer frequency (decoder_sparse_step): layer i, from 0, is MoE if i + 1 is a multiple of
    this."""

    first_dense: int = field(default=0, ge=0)
    """Number of dense layers at the start (first_k_dense_replace), regardless of `every`."""

    shared_experts: int = field(default=0, ge=0)
    """Shared experts, which process every token with weight 1; built as one network of
    shared_experts times the width."""

    shared_gate: bool = False
    """Shared-expert gate (Qwen 1.5 and 2): multiply the shared experts' output by the sigmoid of a
    learned score of the token."""

    bias: bool = False
    """Expert and router biases (GPT-OSS): biases in the projections of routed experts and in the
    router's logits."""

    router: RouterConfig = field(factory=SoftmaxTopK)
    """Router: chooses the experts of each token."""

    scale_inputs: bool = False
    """Scale the inputs of experts by their weights (score_before_experts, Llama 4) instead of the
    outputs."""

    route_scale: float = field(default=1.0, gt=0, lt=inf)
    """Routed scaling factor (routed_scaling_factor): factor of the experts' weights."""

    groups: int = field(default=1, ge=1)
    """Number of expert groups (n_group, group-limited routing): top_groups groups are chosen first,
    then experts within them."""

    top_groups: int = field(default=1, ge=1)
    """Groups per token (topk_group) from which its experts are chosen."""

    balance_loss: float = field(default=0.01, ge=0, lt=inf)
    """Load-balancing loss coefficient (router_aux_loss_coef, Switch Transformer): weight of the
    loss of each layer, experts * sum(f * P), f being an expert's share of assignments and P its
    mean score."""

    sequence_balance_loss: float = field(default=0.0, ge=0, lt=inf)
    """Sequence-wise load-balancing loss coefficient (DeepSeek-V3): the same loss, computed for each
    sequence."""

    router_z_loss: float = field(default=0.0, ge=0, lt=inf)
    """Router z-loss coefficient (ST-MoE, Zoph et al., 2022): weight of the mean of
    log(sum(exp(router logits)))^2."""

    capacity_factor: float | None = field(default=None, gt=0, lt=inf)
    """Expert capacity factor: in training an expert drops all but its first ceil(tokens * top_k /
    experts * capacity_factor) tokens; null: dropless."""

    gradient_scale: bool = False
    """Scale each expert's gradient by mean load / its load; outputs and the router's gradient are
    unchanged."""

    load_sequences: int | None = derived(ge=1)
    """Sequences over which expert load is counted for balance_loss, capacity_factor and
    gradient_scale; batch.micro_size must be a multiple of it. Default: batch.micro_size if one
    of these is used; null: a micro-batch."""

    packed: bool = True
    """Store each projection of all experts as one tensor instead of one module per expert."""

    implementation: Literal["auto", "grouped", "loop"] = field(default="auto", role=RUNTIME)
    """Expert implementation. grouped: one matrix product of packed experts, faster; loop: expert by
    expert; auto: grouped where PyTorch supports the device and dtype."""

    @property
    def counts_load(self) -> bool:
        """True if training depends on the number of sequences over which load is counted."""
        return bool(self.balance_loss) or self.capacity_factor is not None or self.gradient_scale

    @derive("load_sequences")
    def _derive_load_sequences(self) -> int | None:
        return None

    def has_experts(self, layer: int) -> bool:
        """True if a layer has experts."""
        return layer >= self.first_dense and (layer + 1) % self.every == 0

    def layers_with_experts(self, layers: int) -> int:
        """Count the layers that have experts."""
        first = min(self.first_dense, layers)
        return layers // self.every - first // self.every

    def width(self, ffn_dim: int) -> int:
        """Inner width of an expert; ffn_dim is the model's."""
        return ffn_dim if self.expert_dim is None else self.expert_dim

    @rule
    def _check_choice(self) -> Iterator[Problem]:
        if self.top_k > self.experts:
            yield Problem(
                "top_k",
                f"a token cannot be routed to {self.top_k} of {self.experts} experts",
                valid=(str(self.experts),),
                also=("experts",),
            )
        elif self.experts % self.groups:
            yield Problem(
                "groups",
                f"{self.experts} experts cannot be divided into {self.groups} equal groups",
                valid=[str(count) for count in nearest_divisors(self.experts, self.groups)],
                also=("experts",),
            )
        elif self.groups > 1:
            yield from self._wrong_top_groups()

    def _wrong_top_groups(self) -> Iterator[Problem]:
        size = self.experts // self.groups
        fewest, most = -(-self.top_k // size), self.groups - 1
        # If one expert represents its group, the best k experts are in the best k groups.
        if isinstance(self.router, SoftmaxTopK) or size == 1:
            most = min(most, self.top_k - 1)
        if fewest <= self.top_groups <= most:
            return
        also: tuple[str, ...] = ("groups", "experts", "top_k")
        if self.top_groups < fewest:
            wrong = (
                f"{self.top_groups} of {self.groups} groups have {self.top_groups * size} experts, "
                f"fewer than top_k = {self.top_k}"
            )
        elif self.top_groups >= self.groups:
            choice = "choose all" if self.top_groups == self.groups else "choose more than the"
            wrong = f"a token would {choice} {self.groups} groups, so groups would have no effect"
            also = ("groups",)
        else:
            wrong = (
                f"the {self.top_k} best experts (top_k) of a token are always in its {self.top_k} "
                f"best groups, so groups would have no effect"
            )
            also = ("top_k", "router")
        nearest = fewest if self.top_groups < fewest else most
        yield Problem(
            "top_groups",
            wrong,
            valid=[str(nearest)] if fewest <= most else (),
            also=also,
            hint="Or remove groups and top_groups.",
        )

    @rule(cautions=CAUTIONS)
    def _check_router_gradient(self) -> Iterator[Problem]:
        if self.top_k == 1 < self.experts and self.router.normalize:
            yield Caution(
                ROUTER_WITHOUT_GRADIENT,
                "router.normalize",
                "the weight of a single expert is always 1, so routers learn only from their own "
                "losses",
                valid=("false",),
                also=("top_k",),
            )

    @dead("shared_gate")
    def _shared_gate_is_dead(self) -> str | None:
        return None if self.shared_experts else "shared_experts is 0"

    @dead("implementation", holds=("loop",))
    def _implementation_is_dead(self) -> str | None:
        return None if self.packed else "unpacked experts are computed one by one"

    @dead("capacity_factor")
    def _capacity_factor_is_dead(self) -> str | None:
        most = self.experts / self.top_k
        if self.capacity_factor is None or self.capacity_factor < most:
            return None
        return f"from {most:g} = experts / top_k on, an expert never drops tokens"

    @dead("load_sequences")
    def _load_sequences_is_dead(self) -> str | None:
        if self.counts_load:
            return None
        return "balance_loss is 0, and capacity_factor and gradient_scale are not used"

    @dead("top_groups")
    def _top_groups_is_dead(self) -> str | None:
        return "groups is 1" if self.groups == 1 else None


GROUPED_MULTIPLE = 4
"""Widths that a grouped matrix product takes in fp32; in bf16 it takes multiples of 8."""


def expert_problems(c: Any) -> Iterator[Problem]:
    """Problems of a `TransformerConfig` with its experts section."""
    moe: MoE = c.moe
    if not moe.layers_with_experts(c.layers):
        late = moe.first_dense if moe.first_dense >= c.layers else 0
        yield Problem(
            "moe.first_dense" if late else "moe.every",
            f"none of the {c.layers} layers has experts",
            valid=(str(c.layers - 1),) if late else (str(c.layers), "1"),
            also=("layers", "moe.every" if late else "moe.first_dense"),
            hint="Or set moe to null.",
        )
    if moe.implementation == "grouped":
        width = "ffn_dim" if moe.expert_dim is None else "moe.expert_dim"
        for path, size in (("dim", c.dim), (width, moe.width(c.ffn_dim))):
            if size % GROUPED_MULTIPLE:
                nearest = dict.fromkeys((max(8, size // 8 * 8), size // 8 * 8 + 8))
                yield Problem(
                    "moe.implementation",
                    f"a grouped matrix product needs widths that are multiples of "
                    f"{GROUPED_MULTIPLE}, of 8 in bf16, but {path} is {size}",
                    valid=("auto", "loop"),
                    also=(path,),
                    hint=f"Or set {path} to {' or '.join(map(str, nearest))}.",
                )
