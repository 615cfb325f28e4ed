"""Mixed precision: autocast, loss scaling, master weights, dtypes of gradients and state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from setpoint.config import RunError
from setpoint.shapes.outcome import supports_head
from setpoint.shapes.placed import Named, ShardDtypes, ShardedWeight, local_part, put
from setpoint.shapes.protocols import Adapted, HasProducts
from setpoint.shapes.stored import stored_parts
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.precision.config import LossScale, Precision


LEAST = 2.0**-14
"""Smallest normal number of fp16: gradients that overflow under such a scale are not numbers."""


class LossScaler(torch.amp.GradScaler):
    """PyTorch's loss scaler (Micikevicius et al., 2018), which also counts skipped steps.

    If disabled, it does nothing, and no step is skipped.

    Arguments:
        device: the type of the device, such as `"cuda"`.
        config: the section; None: PyTorch's defaults.
    """

    def __init__(
        self, device: str, config: LossScale | None = None, *, enabled: bool = True
    ) -> None:
        given: dict[str, Any] = {}
        if config is not None:
            given = {
                "init_scale": config.initial,
                "growth_factor": config.growth,
                "backoff_factor": config.backoff,
                "growth_interval": config.growth_interval,
            }
        super().__init__(device, enabled=enabled, **given)
        self.skipped = 0

    def overflows(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Flags for non-finite unscaled gradients, without waiting for the device.

        Returns:
            fp32 scalars, one per device that has gradients, above 0 if any is not finite; empty if
            disabled.
        """
        if not self.is_enabled():
            return []
        per_device: dict[Any, torch.Tensor]
        per_device = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return list(per_device.values())

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adjust the scale after each step with unscaled gradients, taken or skipped."""
        if self.is_enabled():
            super().update(new_scale)

    def skip(self, scale: float) -> None:
        """Count a step that was skipped because of non-finite gradients.

        Arguments:
            scale: scale of the step's loss.

        Raises:
            RunError: the scale is too small to be the cause of infinite gradients.
        """
        self.skipped += 1
        if scale * self.get_backoff_factor() < LEAST:
            raise RunError(
                f"fp16 gradients are not finite even with the loss scaled by {scale:g}; "
                f"{self.skipped} steps were skipped. Lower optimizer.lr, or compute in bf16"
            )

    def metrics(self) -> dict[str, float]:
        """Values for a metrics row.

        Returns:
            the scale and the number of skipped steps of the run; empty if disabled.
        """
        if not self.is_enabled():
            return {}
        return {"loss_scale": self.get_scale(), "skipped_steps": self.skipped}

    def state_dict(self) -> dict[str, Any]:
        """See `torch.amp.GradScaler.state_dict`."""
        state = super().state_dict()
        return {**state, "skipped": self.skipped} if state else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the scale and the counts; growth, backoff and interval stay as configured.

        Arguments:
            state_dict: result of `state_dict`; empty if the loss was not scaled.
        """
        if not self.is_enabled() or not state_dict:
            return
        # torch grows the scale when the count equals the interval, which may be shorter now.
        counted = {
            "scale": state_dict["scale"],
            "_growth_tracker": min(state_dict["_growth_tracker"], self.get_growth_interval() - 1),
        }
        super().load_state_dict({**super().state_dict(), **counted})
        self.skipped = state_dict.get("skipped", 0)


@contextmanager
def fp32_products(tf32: bool) -> Iterator[None]:
    """Compute fp32 matrix products and convolutions on GPUs in TF32, or exactly.

    Libraries, containers and TORCH_ALLOW_TF32_CUBLAS_OVERRIDE may also enable TF32, so it is set
    explicitly in both cases, with the older of PyTorch's two APIs, which all versions and their
    compilers read without a warning.

    Returns:
        a context that restores the previous settings.
    """
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions


def compute_in(compute: str, stored: str, device: torch.device) -> AbstractContextManager[object]:
    """Compute matrix products in a dtype; weights and gradients keep their own.

    Autocast converts inputs of another dtype at each product. It is not used if weights are stored
    in the compute dtype, since there is nothing to convert, nor for fp32, to which it cannot
    convert.

    A pass reads each weight once, so autocast's cache of cast weights saves no casts, but would
    keep a copy of all weights until the forward pass ends, including those that FSDP2 has freed.
    """
    if compute in ("fp32", stored):
        return nullcontext()
    return torch.autocast(device.type, DType(compute).torch(), cache_enabled=False)


def is_emulated(compute: str, device: torch.device) -> bool:
    """True if matrix products in a dtype run without native instructions, and are far slower.

    Without AVX-512, bf16 takes about 40 times as long as fp32.
    """
    return (
        device.type == "cpu"
        and compute == "bf16"
        and torch.backends.cpu.get_cpu_capability() == "AVX2"
    )


def cast_parameters(model: nn.Module, dtype: torch.dtype, excluded: Collection[int] = ()) -> None:
    """Store a model's parameters in a dtype; buffers keep their own.

    Buffers contain values that are counted or computed once, such as angles and biases of routers,
    and would lose digits permanently.

    Arguments:
        model: its floating point parameters are changed in place; tied parameters stay tied, and
            scales of quantized weights are unchanged.
        excluded: ids of parameters that keep their dtype.
    """
    keep = {id(part) for part in stored_parts(model).values()} | set(excluded)
    params = [param for param in model.parameters() if id(param) not in keep]
    if all(param.dtype == dtype for param in params if param.is_floating_point()):
        return

    def cast(tensor: Tensor) -> Tensor:
        is_float = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
        return tensor.to(dtype) if is_float and id(tensor) not in keep else tensor

    model._apply(cast)


class OptimizerParams:
    """Parameters that the optimizer updates: by default the model's own.

    If gradients accumulate in a dtype other than that of the weights, the optimizer gets parameters
    that share the same memory, with gradients in the weights' dtype, as optimizers require.

    Arguments:
        model: in the state to be trained; frozen parameters are unchanged.
        reduce: dtype of gradient accumulation; None: as each weight.
    """

    def __init__(self, model: nn.Module, reduce: torch.dtype | None = None) -> None:
        self.model = model
        self.by_name: dict[str, nn.Parameter] = {}
        # (of the model, of the optimizer), if they are different.
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for name, weight in model.named_parameters():
            param = weight
            if weight.requires_grad and weight.is_floating_point():
                param = self._optimizer_parameter(name, weight, reduce or weight.dtype)
                if reduce not in (None, weight.dtype):
                    weight.grad_dtype = reduce
            if param is not weight:
                self.pairs.append((weight, param))
            self.by_name[name] = param

    def _optimizer_parameter(
        self, name: str, weight: nn.Parameter, reduce: torch.dtype
    ) -> nn.Parameter:
        """The parameter passed to the optimizer for a trained weight."""
        del name
        return weight if reduce == weight.dtype else nn.Parameter(weight.detach())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The optimizer's parameters, by their names in the model."""
        return iter(self.by_name.items())

    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters, which are updated and clipped."""
        return [param for param in self.by_name.values() if param.requires_grad]

    def grads_to_master(self) -> None:
        """Move the gradients to the optimizer's parameters, in their dtype.

        Call it after the last backward pass of a step. The model's own gradients are freed one by
        one, so that there are never two full copies.
        """
        for weight, master in self.pairs:
            master.grad = None if weight.grad is None else weight.grad.to(master.dtype)
            weight.grad = None

    def master_to_params(self) -> None:
        """Update the model's weights from those of the optimizer."""

    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint needs in addition to the model's weights.

        Returns:
            tensors by parameter name; not copies.
        """
        return {}

    def model_state(self) -> dict[str, Tensor]:
        """The tensors of the model, as used in computation.

        Returns:
            as from `state_dict`; not copies, unless they are rounded from sharded masters.
        """
        return self.model.state_dict()

    @torch.no_grad()
    def load(self, tensors: Named, partial: bool = False) -> None:
        """Load tensors from a checkpoint.

        Whether or not the previous run had masters, its most precise weights are used: masters are
        filled from the fp32 weights of a model, and a model in fp32 from masters.

        Arguments:
            tensors: tensors by parameter name: those of the model, overridden by those from
                `state`.
            partial: whether missing weights stay unchanged.

        Raises:
            RunError: a weight is missing.
        """
        trained = {name: param for name, param in self.by_name.items() if param.requires_grad}
        missing = [name for name in trained if name not in tensors]
        if missing and not partial:
            more = f", nor {len(missing) - 1} others" if len(missing) > 1 else ""
            raise RunError(f"the checkpoint does not contain the weight {missing[0]}{more}")
        for name, param in trained.items():
            if name in tensors:
                put(param, tensors[name])
        self.master_to_params()


class MasterWeights(OptimizerParams):
    """fp32 weights that the optimizer updates, from which the model's weights are rounded.

    An update smaller than half the distance between two bf16 numbers, 1/256 to 1/512 of a weight,
    would be rounded away; here updates add up (Micikevicius et al., 2018).

    Weights in another dtype are their own masters: shards that are rounded when they are gathered.

    Arguments:
        model: in the state to be trained, in the short dtype.
        full: weights before the cast, by name; missing ones are taken from the model. They become
            the masters, without a copy if they are already in place.
        reduce: dtype of gradient accumulation; None: as each weight.
        params: the short dtype.
    """

    def __init__(
        self,
        model: nn.Module,
        full: Mapping[str, Tensor] | None = None,
        reduce: torch.dtype | None = None,
        params: torch.dtype = torch.bfloat16,
    ) -> None:
        self._full, self.params = full or {}, params
        super().__init__(model, reduce)
        del self._full

    def _optimizer_parameter(
        self, name: str, weight: nn.Parameter, reduce: torch.dtype
    ) -> nn.Parameter:
        del reduce
        if weight.dtype != self.params:
            return weight
        full = self._full.get(name, weight).detach()
        return nn.Parameter(full.to(device=weight.device, dtype=torch.float32))

    @torch.no_grad()
    def master_to_params(self) -> None:
        """Round the model's weights from the masters."""
        weights = [local_part(weight) for weight, _ in self.pairs]
        masters = [local_part(master) for _, master in self.pairs]
        if weights:
            torch._foreach_copy_(weights, masters)  # pyright: ignore[reportPrivateImportUsage]

    def state(self) -> dict[str, Tensor]:
        return {name: param.detach() for name, param in self.by_name.items() if param.requires_grad}

    def model_state(self) -> dict[str, Tensor]:
        trained = {name for name, param in self.by_name.items() if param.requires_grad}
        state = super().model_state()
        return {n: t.to(self.params) if n in trained else t for n, t in state.items()}


def store_in(
    config: Precision, model: nn.Module, sharded: Collection[Tensor] = ()
) -> dict[str, Tensor]:
    """Store a model's parameters in the dtype given by the section.

    Arguments:
        model: with its initial weights, in fp32; changed in place.
        sharded: parameters that FSDP2 shards; trained ones stay the masters, if any.

    Returns:
        the weights that become the masters of the model's weights, by name.
    """
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not config.copies_master:
        trained = {}
    kept = {id(weight) for weight in sharded} & {id(weight) for weight in trained.values()}
    # No copies: the model gets new memory, and these are its previous tensors.
    full = {name: weight.detach() for name, weight in trained.items() if id(weight) not in kept}
    cast_parameters(model, DType(config.params).torch(), kept)
    return full


def build_weights(
    config: Precision, model: nn.Module, full: dict[str, Tensor], is_sharded: bool = False
) -> OptimizerParams:
    """Build the parameters for the optimizer.

    Arguments:
        is_sharded: whether FSDP2 shards weights.
        full: result of `store_in`; it is emptied to avoid two copies.
    """
    reduce = _dtype(config.reduce)
    if is_sharded and config.params == "fp32":
        reduce = None  # for messages only: FSDP2 gives gradients in the dtype of its shards
    if not config.copies_master:
        return OptimizerParams(model, reduce)
    weights = MasterWeights(model, full, reduce, DType(config.params).torch())
    full.clear()
    return weights


def state_dtype(config: Precision) -> torch.dtype | None:
    """Configured dtype of the optimizer state.

    Returns:
        the dtype; None: as the updated weights.
    """
    return _dtype(config.optimizer_state)


def convert_state(
    config: Precision,
    optimizer: torch.optim.Optimizer,
    saved_dtypes: Mapping[Tensor, torch.dtype] | None = None,
) -> None:
    """Convert the optimizer state of a checkpoint to the configured dtypes.

    Arguments:
        optimizer: with the state of a checkpoint; step counts are unchanged.
        saved_dtypes: dtype of each weight in the checkpoint, for an optimizer that chooses its own
            dtypes; only state with the weight's shape and dtype is converted.
    """
    dtype = state_dtype(config)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if not isinstance(value, Tensor) or not value.ndim or not value.is_floating_point():
                continue
            if saved_dtypes is not None and (
                value.shape != parameter.shape or value.dtype != saved_dtypes[parameter]
            ):
                continue
            state[name] = value.to(dtype or parameter.dtype)


def sharding_policy(config: Precision) -> MixedPrecisionPolicy:
    """FSDP2's policy, under which sharded weights compute like full ones.

    Autocast still handles computation in another dtype: outputs of modules are not cast, and
    `shard_dtypes` selects the weights to cast. Gradients are reduced in the dtype of the section.
    """
    # Imported here: it takes a large part of a second, and a single process does not need it.
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(reduce_dtype=_dtype(config.reduce), cast_forward_inputs=False)


def shard_dtypes(config: Precision, model: nn.Module) -> Callable[[ShardedWeight], ShardDtypes]:
    """Build the function that chooses the dtypes of FSDP2-sharded weights.

    The dtypes of a full weight and of its accumulated gradient are the same as on one rank, but
    weights that only products read are cast before they are gathered, not by autocast.
    """
    products = _product_weights(model)
    params, of_products = (
        DType(name).torch() for name in (config.params, config.gathered(is_sharded=True))
    )
    grad = _dtype(config.reduce) or params

    def choose(weight: ShardedWeight) -> ShardDtypes:
        shard = weight.shard
        gathered = of_products if products.issuperset(weight.modules) else params
        if not shard.requires_grad and shard.dtype != params:
            gathered = shard.dtype  # scales of quantized weights
        return ShardDtypes(gathered, grad, torch.promote_types(shard.dtype, grad))

    return choose


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else DType(name).torch()


def build_scaler(config: Precision, device: torch.device) -> LossScaler:
    """Build the loss scaler.

    Returns:
        the scaler, which does nothing unless the compute dtype is fp16.
    """
    return LossScaler(device.type, config.loss_scale, enabled=config.compute == "fp16")


def _product_weights(model: nn.Module) -> set[tuple[nn.Module, str]]:
    """Find the parameters used only in matrix products.

    These belong to linear layers, and to modules that declare it. A model that disables autocast
    (`torch.autocast(enabled=False)`) reads the weights of its linear layers differently.

    Returns:
        modules, and names of their own parameters.
    """
    products: set[tuple[nn.Module, str]] = set()
    for module in model.modules():
        if isinstance(module, HasProducts):
            products |= {(module, name) for name in module.product_weights()}
        elif isinstance(module, nn.Linear):
            products |= {(module, name) for name in ("weight", "bias")}
    # The loss adds an adapter's update to the output matrix before it multiplies.
    outputs = [getattr(m, "output", None) for m in model.modules() if supports_head(m)]
    adapted = [m for m in outputs if isinstance(m, nn.Module) and isinstance(m, Adapted)]
    return {(module, name) for module, name in products if module not in adapted}
