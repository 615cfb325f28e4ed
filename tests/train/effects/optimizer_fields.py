"""Effects of the fields of `[optimizer]` and `[schedule]`."""

from collections.abc import Callable

from setpoint.config.record.record import fingerprint
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ..small import loop_of, train_rows
from .observations import Row, learned, rates


def logged_rates(job: Job) -> list[float]:
    """The learning rates of a whole run, which evaluations may move."""
    return [row["lr"] for row in train_rows(train(job).directory)]


def kernels(job: Job) -> set[tuple[bool | None, bool | None]]:
    """PyTorch's implementations that the groups select."""
    groups = build_components(job).optimizer.param_groups
    return {(group["fused"], group["foreach"]) for group in groups}


def algorithms(job: Job) -> dict[str, int]:
    """Number of parameters of each of Muon's algorithms."""
    groups = build_components(job).optimizer.param_groups
    return {
        name: sum(len(group["params"]) for group in groups if group["algorithm"] == name)
        for name in ("muon", "adamw")
    }


def largest_change(job: Job) -> float:
    """Largest first update of a weight that AdamW trains without decay."""
    components = build_components(job)
    before = {name: p.detach().clone() for name, p in components.model.named_parameters()}
    loop_of(job, components=components).step()
    name, after = next((n, p) for n, p in components.model.named_parameters() if p.ndim == 1)
    return round(float((after.detach() - before[name]).abs().max()), 4)


IMPORTED = "{type=import, target=torch.optim.Adagrad}"
DECAYS = "optimizer.weight_decay=0.5"
GROUPS = "optimizer.groups=[{pattern=embedding, lr_multiplier=0.5}]"
GROUP = "optimizer.groups.0"
# Frozen in the first updates, and after the fourth, where a run that is resumed changes them.
SPANS, SPAN = "optimizer.frozen_spans=[{pattern=query, stop=6}]", "optimizer.frozen_spans.0"
# By the name of a field: the change, and what is set on both sides.
SHARED = {
    "lr": ("optimizer.lr=0.02", ()),
    "weight_decay": ("optimizer.weight_decay=0.3", ()),
    "no_decay": ("optimizer.no_decay=[]", (DECAYS,)),
    "no_decay_patterns": ("optimizer.no_decay_patterns=[query]", (DECAYS,)),
    "groups": (GROUPS, ()),
    "frozen": ("optimizer.frozen=[query]", ()),
    "frozen_spans": (SPANS, ()),
    # Clipped to one norm at each update, gradients differ from others so clipped in scale alone.
    "clip_norm": ("optimizer.clip_norm=0.01", ("optimizer.clip_norm=null",)),
    "clip_value": ("optimizer.clip_value=0.001", ()),
}


# By its class, how an optimizer is chosen.
OPTIMIZERS = {
    "AdamWConfig": "adamw",
    "SGDConfig": "sgd",
    "LionConfig": "lion",
    "MuonConfig": "muon",
    "ScheduleFreeAdamWConfig": "schedule_free_adamw",
    "AnyPrecisionAdamWConfig": "anyprecision_adamw",
    "AdafactorConfig": "adafactor",
    "ImportedOptimizer": IMPORTED,
}


def shared(optimizer: str, field: str) -> Row:
    """The row of a field that all optimizers have."""
    change, base = SHARED[field]
    return change, learned, (f"optimizer={optimizer}", *base)


SGD = ("optimizer=sgd",)
LION = ("optimizer=lion",)
MUON = ("optimizer=muon", "schedule=constant")
FREE = ("optimizer=schedule_free_adamw", "optimizer.lr=0.01", "schedule=constant")
ANY = ("optimizer=anyprecision_adamw", "precision.params=bf16", "precision.compute=bf16")
CAUTIOUS = "optimizer.cautious_weight_decay=true"
FACTOR = ("optimizer=adafactor",)
SCHEDULES = {
    "warmup": "schedule.warmup=2",
    "warmup_from": "schedule.warmup_from=0.5",
    "warmup_at": "schedule.warmup_at=start",
    "horizon": "schedule.horizon=100",
    "floor": "schedule.floor=0.9",
    "by": "schedule.by=epoch",
}
WARM = ("schedule.warmup=3",)
PHASES = (
    "schedule.type=piecewise",
    "schedule.phases="
    "[{target: 1, length: 50%}, {target: 0.2, length: 1}, {target: 0.1, length: 1}]",
)
POLYNOMIAL = (
    "schedule.type=piecewise",
    "schedule.phases=[{target: 1, length: 4, curve: polynomial}]",
)
# With a threshold near 1 nothing is a gain, and each evaluation lowers the rate.
PLATEAU = (
    "schedule=plateau", "schedule.patience=0", "schedule.threshold=0.9", "evaluation.every=1 steps",
    "schedule.warmup=1", "duration=6 steps",
)  # fmt: skip
# By the name of a field: the change, where it is seen, and what is set on both sides.
SCHEDULE_ROWS: dict[str, tuple[str, Callable[[Job], object], tuple[str, ...]]] = {}


for cls in ("Cosine", "Linear", "Polynomial", "Rex", "Wsd"):
    late = ("schedule.decay_length=3",) if cls == "Wsd" else ()
    for field in SCHEDULES:
        warm = WARM if field in ("warmup_from", "warmup_at") else ()
        base = (f"schedule={cls.lower()}", *late, *warm)
        SCHEDULE_ROWS[f"{cls}.{field}"] = (SCHEDULES[field], rates, base)
    SCHEDULE_ROWS[f"{cls}.horizon_share"] = (
        "schedule.horizon_share=0.5",
        rates,
        (f"schedule={cls.lower()}",),
    )
for name in ("Constant", "InverseSqrt", "Plateau"):
    tag = {"InverseSqrt": "inverse_sqrt"}.get(name, name.lower())
    share = ("schedule.warmup=40 %", f"schedule={tag}", "evaluation.every=1 steps")
    see = logged_rates if name == "Plateau" else rates
    SCHEDULE_ROWS[f"{name}.horizon"] = ("schedule.horizon=12", see, share)
    SCHEDULE_ROWS[f"{name}.horizon_share"] = ("schedule.horizon_share=0.5", see, share)


WSD = ("schedule=wsd", "schedule.decay_length=3")
SCHEDULE_ROWS |= {
    "Constant.warmup": (SCHEDULES["warmup"], rates, ("schedule=constant",)),
    "Constant.warmup_from": (SCHEDULES["warmup_from"], rates, ("schedule=constant", *WARM)),
    "Constant.warmup_at": (SCHEDULES["warmup_at"], rates, ("schedule=constant", *WARM)),
    "Constant.by": (SCHEDULES["by"], rates, ("schedule=constant", *WARM)),
    "Polynomial.power": ("schedule.power=1", rates, ("schedule=polynomial",)),
    "Polynomial.hard_floor": ("schedule.hard_floor=true", rates, ("schedule=polynomial",)),
    "Wsd.decay_length": ("schedule.decay_length=3", rates, ("schedule=wsd",)),
    "Wsd.decay": ("schedule.decay=sqrt", rates, WSD),
    "Wsd.warmup": (SCHEDULES["warmup"], rates, (*WSD, "duration=6 steps")),
    "Wsd.warmup_from": (
        SCHEDULES["warmup_from"], rates, (*WSD, "duration=6 steps", "schedule.warmup=2")
    ),
    "Wsd.warmup_at": (
        SCHEDULES["warmup_at"], rates, (*WSD, "duration=6 steps", "schedule.warmup=2")
    ),
    "InverseSqrt.warmup_at": (SCHEDULES["warmup_at"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.warmup": (SCHEDULES["warmup"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.warmup_from": (SCHEDULES["warmup_from"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.by": (SCHEDULES["by"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.timescale": (
        "schedule.timescale=3", rates, ("schedule=inverse_sqrt", "schedule.warmup=1")
    ),
    "InverseSqrt.floor": (
        SCHEDULES["floor"], rates, ("schedule=inverse_sqrt", "schedule.warmup=1")
    ),
    "Piecewise.start": ("schedule.start=0.5", rates, PHASES),
    "Piecewise.phases": ("schedule.phases=[{target: 1, length: 100 %}]", rates, PHASES),
    "Piecewise.horizon": ("schedule.horizon=6", rates, PHASES),
    "Piecewise.horizon_share": ("schedule.horizon_share=0.5", rates, PHASES),
    "Piecewise.by": (SCHEDULES["by"], rates, PHASES),
    "SchedulePhase.target": ("schedule.phases.1.target=0.9", rates, PHASES),
    "SchedulePhase.length": ("schedule.phases.0={target: 1, length: 25 %}", rates, PHASES),
    "SchedulePhase.curve": ("schedule.phases.0.curve=cosine", rates, POLYNOMIAL),
    "SchedulePhase.power": ("schedule.phases.0.power=3", rates, POLYNOMIAL),
    "Plateau.warmup": (SCHEDULES["warmup"], logged_rates, PLATEAU),
    "Plateau.warmup_from": (
        SCHEDULES["warmup_from"], logged_rates, (*PLATEAU, "schedule.warmup=3")
    ),
    "Plateau.warmup_at": (SCHEDULES["warmup_at"], logged_rates, (*PLATEAU, "schedule.warmup=3")),
    # What gets better by the other measure: perplexity falls faster than its logarithm.
    "Plateau.monitor": (
        "schedule.monitor=held_out.perplexity", logged_rates, (*PLATEAU, "schedule.threshold=0.2")
    ),
    "Plateau.evaluated_on": ("evaluation.sequences=2", fingerprint, PLATEAU),
    "Plateau.factor": ("schedule.factor=0.7", logged_rates, PLATEAU),
    "Plateau.patience": ("schedule.patience=1", logged_rates, PLATEAU),
    "Plateau.threshold": ("schedule.threshold=0", logged_rates, PLATEAU),
    "Plateau.cooldown": ("schedule.cooldown=1", logged_rates, PLATEAU),
    "Plateau.floor": ("schedule.floor=0.4", logged_rates, PLATEAU),
}  # fmt: skip


ROWS: dict[str, Row] = {
    "ImportedOptimizer.target": ("optimizer.target=torch.optim.Adam", learned,
        (f"optimizer={IMPORTED}",)),
    **{f"{cls}.{field}": shared(optimizer, field) for cls, optimizer in OPTIMIZERS.items()
       for field in SHARED},
    "FrozenSpan.pattern": (f"{SPAN}.pattern=norm", learned, (SPANS,)),
    "FrozenSpan.start": (f"{SPAN}.start=5", learned, (SPANS,)),
    "FrozenSpan.stop": (f"{SPAN}.stop=1", learned, (SPANS,)),
    "Group.pattern": (f"{GROUP}.pattern=norm", learned, (GROUPS,)),
    "Group.lr_multiplier": (f"{GROUP}.lr_multiplier=2", learned, (GROUPS,)),
    "Group.weight_decay_multiplier": (f"{GROUP}.weight_decay_multiplier=9", learned, (GROUPS,)),
    "Group.options": (f"{GROUP}.options={{betas=[0.5, 0.6]}}", learned, (GROUPS,)),
    "AdamWConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned),
    "AdamWConfig.eps": ("optimizer.eps=1e-3", learned),
    "AdamWConfig.amsgrad": ("optimizer.amsgrad=true", learned, ("optimizer.betas=[0.1, 0.1]",)),
    "AdamWConfig.implementation": ("optimizer.implementation=foreach", kernels, (),
        {(False, True)}),
    "AdamWConfig.cautious_weight_decay": (CAUTIOUS, learned),
    "LionConfig.cautious_weight_decay": (CAUTIOUS, learned, LION),
    "MuonConfig.cautious_weight_decay": (CAUTIOUS, learned, MUON),
    "AnyPrecisionAdamWConfig.cautious_weight_decay": (CAUTIOUS, learned, ANY),
    "SGDConfig.momentum": ("optimizer.momentum=0.5", learned, SGD),
    "SGDConfig.dampening": ("optimizer.dampening=0.5", learned, SGD),
    "SGDConfig.nesterov": ("optimizer.nesterov=true", learned, SGD),
    "SGDConfig.implementation": ("optimizer.implementation=loop", kernels, SGD, {(False, False)}),
    "LionConfig.betas": ("optimizer.betas=[0.5, 0.6]", learned, LION),
    "MuonConfig.momentum": ("optimizer.momentum=0.5", learned, MUON),
    "MuonConfig.nesterov": ("optimizer.nesterov=false", learned, MUON),
    "MuonConfig.steps": ("optimizer.steps=3", learned, MUON),
    "MuonConfig.adjust_lr": ("optimizer.adjust_lr=match_rms_adamw", learned, MUON),
    "MuonConfig.adamw_lr": ("optimizer.adamw_lr=0.003", largest_change, MUON, 0.003),
    "MuonConfig.adamw_patterns": ("optimizer.adamw_patterns=[feed_forward]", algorithms, MUON,
        {"muon": 4, "adamw": 8}),
    "MuonConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned, MUON),
    "MuonConfig.eps": ("optimizer.eps=1e-3", learned, MUON),
    "ScheduleFreeAdamWConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned, FREE),
    "ScheduleFreeAdamWConfig.eps": ("optimizer.eps=1e-3", learned, FREE),
    # With a rate that does not rise any more all weigh the same, whatever the power.
    "ScheduleFreeAdamWConfig.lr_power": ("optimizer.lr_power=1", learned,
        (*FREE, "schedule={type=constant, warmup=4}")),
    "ScheduleFreeAdamWConfig.step_power": ("optimizer.step_power=1", learned, FREE),
    "AnyPrecisionAdamWConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned, ANY),
    "AnyPrecisionAdamWConfig.eps": ("optimizer.eps=1e-3", learned, ANY),
    "AnyPrecisionAdamWConfig.rounding": ("optimizer.rounding=nearest", learned, ANY),
    "AdafactorConfig.beta2_decay": ("optimizer.beta2_decay=-0.3", learned, FACTOR),
    "AdafactorConfig.eps1": ("optimizer.eps1=0.1", learned, FACTOR),
    "AdafactorConfig.eps2": ("optimizer.eps2=0.5", learned, FACTOR),
    "AdafactorConfig.clip_threshold": ("optimizer.clip_threshold=3", learned, FACTOR),
    **SCHEDULE_ROWS,
}  # fmt: skip
