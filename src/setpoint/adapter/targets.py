"""Adapted modules, their ranks, and the trained parameters, without torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import gcd, log, prod
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from setpoint.adapter.config import (
    BITSANDBYTES_SIZES,
    MX_BLOCK,
    NF4,
    SCALES_PER_SCALE,
    AdapterConfig,
    Quantization,
    has_bitsandbytes,
)
from setpoint.config import Caution, Problem, plural
from setpoint.shapes.parameter import Form, Kind, Parameter
from setpoint.shapes.patterns import (
    examples,
    first_match,
    matches,
    matches_nothing,
    unmatched,
    untaken,
)
from setpoint.units.size import in_units

SiteForm = Literal["linear", "embedding", "experts"]
LEFT_OUT: tuple[Kind, ...] = ("output",)
"""Kinds that are not adapted unless `exclude` is given. Routers (MoE gates) never are."""
CHILD = "adapter"
"""Name of the module with the adapter's parameters, beneath the adapted one."""
SHOWN = 8
ADAPTABLE = "modules that can be adapted"
NONE: Mapping[str, int] = MappingProxyType({})


class Site(NamedTuple):
    """A matrix that can be adapted.

    Arguments:
        path: name of the module; for packed experts, of the parameter.
        inputs, outputs: numbers of inputs and outputs; for an embedding, the number of tokens and
            dim.
        experts: number of experts; 0 for a single matrix.
        inputs_first: whether it is (inputs, outputs), as in transformers' `Conv1D`.
        outputs_first: whether matrices of packed experts are (outputs, inputs), as in most
            transformers models.
        pieces: output sizes of the projections fused in it; empty if there is only one.
    """

    path: str
    form: SiteForm
    inputs: int
    outputs: int
    kind: Kind
    experts: int = 0
    inputs_first: bool = False
    pieces: tuple[int, ...] = ()
    outputs_first: bool = False

    @property
    def holder(self) -> str:
        """Module that contains the adapter."""
        return self.path.rpartition(".")[0] if self.form == "experts" else self.path

    @property
    def name(self) -> str:
        """Prefix of the adapter's parameter names."""
        weight_name = self.path.rpartition(".")[2]
        middle = f"{CHILD}.{weight_name}" if self.form == "experts" else CHILD
        return f"{self.holder}.{middle}" if self.holder else middle

    @property
    def weight(self) -> str:
        """Name of the matrix."""
        return self.path if self.form == "experts" else f"{self.path}.weight"

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns for quantization, for each expert separately."""
        given = self.inputs, self.outputs
        return given if self.inputs_first else (self.outputs, self.inputs)


class AdapterTarget(NamedTuple):
    """A matrix that is adapted.

    Arguments:
        pieces: output sizes of the projections with separate A and B; empty for a single pair.
    """

    site: Site
    rank: int
    scale: float
    has_magnitude: bool
    pieces: tuple[int, ...] = ()

    def parameters(self) -> Iterator[Parameter]:
        """Parameters of the adapter, in module order."""
        site, rank = self.site, self.rank
        many = (site.experts,) if site.form == "experts" else ()
        first = rank * max(1, len(self.pieces))
        if site.form == "linear":
            shapes = {"a": (first, site.inputs), "b": (site.outputs, rank)}
        elif site.form == "embedding":
            shapes = {"a": (site.inputs, rank), "b": (site.outputs, rank)}
        else:
            shapes = {"a": (*many, site.inputs, rank), "b": (*many, rank, site.outputs)}
        for name, shape in shapes.items():
            yield Parameter(f"{site.name}.{name}", shape, "matrix")
        if self.has_magnitude:
            yield Parameter(f"{site.name}.magnitude", (*many, site.outputs), "vector")


def sites_of(
    parameters: Iterable[Parameter], fused: Mapping[str, tuple[int, ...]] | None = None
) -> list[Site]:
    """Matrices of a model that can be adapted.

    Arguments:
        fused: output sizes of the projections fused in a module, by its name.
    """
    sites: list[Site] = []
    for parameter in parameters:
        path, _, weight_name = parameter.name.rpartition(".")
        if parameter.kind == "embedding" and weight_name == "weight":
            rows, width = parameter.shape
            sites.append(Site(path, "embedding", rows, width, "embedding"))
        elif (
            parameter.kind in ("matrix", *LEFT_OUT)
            and weight_name == "weight"
            and len(parameter.shape) == 2
        ):
            inputs, outputs = parameter.shape if parameter.inputs_first else parameter.shape[::-1]
            pieces = (fused or {}).get(path, ())
            site = Site(path, "linear", inputs, outputs, parameter.kind)
            sites.append(site._replace(inputs_first=parameter.inputs_first, pieces=pieces))
        elif parameter.kind == "matrix" and len(parameter.shape) == 3:
            experts, inputs, outputs = parameter.shape
            sites.append(Site(parameter.name, "experts", inputs, outputs, "matrix", experts))
        elif parameter.packed:
            turned = parameter.packed == "outputs_first"
            experts, *sides = parameter.shape
            inputs, outputs = sides[::-1] if turned else sides
            site = Site(parameter.name, "experts", inputs, outputs, "tensor", experts)
            sites.append(site._replace(outputs_first=turned))
    return sites


def chosen(config: AdapterConfig, sites: Iterable[Site]) -> list[AdapterTarget]:
    """Matrices that are adapted."""
    return [_target(config, site) for site in sites if _is_chosen(config, site)]


def _is_chosen(config: AdapterConfig, site: Site) -> bool:
    if config.targets is None:
        chosen = site.kind == "matrix" or site.form == "experts"
    else:
        chosen = matches(config.targets, site.path)
    return chosen and not _is_excluded(config, site)


def _is_excluded(config: AdapterConfig, site: Site) -> bool:
    if config.exclude is None:
        return site.kind in LEFT_OUT
    return matches(config.exclude, site.path)


def _rule(config: AdapterConfig, path: str) -> int | None:
    return first_match((rule.pattern for rule in config.ranks), path)


def _target(config: AdapterConfig, site: Site) -> AdapterTarget:
    rule = _rule(config, site.path)
    rank, alpha = config.rank, config.alpha
    if rule is not None:
        rank = config.ranks[rule].rank or rank
        alpha = config.ranks[rule].alpha or alpha
    pieces = site.pieces if config.fused_projections == "split" else ()
    return AdapterTarget(site, rank, config.scale_of(rank, alpha), config.has_magnitude, pieces)


class Described(NamedTuple):
    """Parameters of an adapted model.

    Arguments:
        trained: parameters of the adapter, and fully trained ones of the base, in model order.
        frozen: other parameters of the base.
        quantized: bytes of quantized frozen parameters, by name.
    """

    targets: list[AdapterTarget]
    trained: list[Parameter]
    frozen: list[Parameter]
    quantized: Mapping[str, int] = NONE


def describe(
    config: AdapterConfig,
    parameters: Sequence[Parameter],
    fused: Mapping[str, tuple[int, ...]] | None = None,
) -> Described:
    """Divide the parameters of a model into trained, frozen and quantized ones."""
    targets = chosen(config, sites_of(parameters, fused))
    by_holder = {
        holder: list(group)
        for holder, group in groupby(targets, key=lambda target: target.site.holder)
    }
    trained: list[Parameter] = []
    frozen: list[Parameter] = []
    for holder, group_parameters in groupby(
        parameters, key=lambda parameter: parameter.name.rpartition(".")[0]
    ):
        for parameter in group_parameters:
            (trained if matches(config.train, parameter.name) else frozen).append(parameter)
        for target in by_holder.get(holder, ()):
            trained += target.parameters()
    quantized = {
        site.weight: max(1, site.experts) * config.quantize.stored_bytes(*site.matrix)
        for site in quantized_sites(config, sites_of(parameters, fused))
        if config.quantize is not None
    }
    return Described(targets, trained, frozen, quantized)


def adapter_problems(
    config: AdapterConfig,
    parameters: Sequence[Parameter],
    fused: Mapping[str, tuple[int, ...]] | None = None,
    modules: Sequence[str] = (),
) -> Iterator[Problem]:
    """Find values that do not suit a model; paths are relative to the section.

    Arguments:
        parameters: parameters of the base.
        modules: names of all modules, if known; otherwise, of modules with parameters.
    """
    sites = sites_of(parameters, fused)
    paths = [site.path for site in sites]
    holders = list(modules) or list(
        dict.fromkeys(item.name.rpartition(".")[0] for item in parameters)
    )
    for index, pattern in enumerate(config.targets or ()):
        yield from _target_problems(config, index, pattern, sites, holders)
    yield from unmatched("exclude", config.exclude or (), paths, ADAPTABLE, SHOWN)
    targets = chosen(config, sites)
    if not targets:
        if config.targets is None:
            yield Problem(
                "exclude" if config.exclude else "targets",
                "leaves nothing to adapt",
                valid=examples(paths)[:SHOWN],
            )
        return
    adapted = [target.site.path for target in targets]
    ranks = [item.pattern for item in config.ranks]
    yield from untaken("ranks", ranks, adapted, "adapted modules", SHOWN)
    yield from _wrong_ranks(config, targets)
    if config.quantize is not None:
        matrices = {site.path: site.matrix for site in sites if _can_be_quantized(site)}
        for problem in _quantize_problems(config.quantize, matrices):
            problem.path = f"quantize.{problem.path}".rstrip(".")
            problem.also = tuple(f"quantize.{path}" for path in problem.also)
            yield problem
    yield from _train_problems(config, parameters, sites, targets)
    outputs = [target.site.path for target in targets if target.site.kind == "output"]
    if config.dropout and outputs:
        yield Problem(
            "dropout",
            f"is not applied to {outputs[0]}: losses multiply with its merged weight, which has no "
            f"input to drop",
            valid=("0",),
            also=("targets",),
            hint="Or exclude it with exclude.",
        )
    if config.fused_projections == "split" and not any(target.pieces for target in targets):
        yield Problem(
            "fused_projections",
            "split has no effect: no adapted module combines several projections",
            valid=("whole",),
            also=("targets",),
        )


def quantized_sites(config: AdapterConfig, sites: Iterable[Site]) -> list[Site]:
    """Matrices that are quantized, whether adapted or not."""
    if config.quantize is None:
        return []
    return [
        site
        for site in sites
        if _can_be_quantized(site) and not matches(config.quantize.exclude, site.path)
    ]


def _can_be_quantized(site: Site) -> bool:
    return site.form == "experts" or (site.form == "linear" and site.kind == "matrix")


def _target_problems(
    config: AdapterConfig, index: int, pattern: str, sites: Sequence[Site], modules: Sequence[str]
) -> Iterator[Problem]:
    """Find target patterns without effect: no match, or all matches are excluded."""
    path = f"targets.{index}"
    matching = [site for site in sites if matches([pattern], site.path)]
    matched = [name for name in modules if matches([pattern], name)]
    if not matching and matched:
        yield Problem(
            path,
            f"matches {matched[0]}, which is not a linear layer, embedding or packed experts",
            valid=examples(site.path for site in sites)[:SHOWN],
        )
    elif not matching:
        yield matches_nothing(path, pattern, [site.path for site in sites], ADAPTABLE, SHOWN)
    elif all(_is_excluded(config, site) for site in matching):
        default = config.exclude is None
        yield Problem(
            path,
            f"matches only {matching[0].path}, which {'the default of ' if default else ''}exclude "
            "removes"
            if len(matching) == 1
            else "matches only modules that exclude removes",
            also=("exclude",),
            hint="Set exclude to [] to exclude nothing." if default else "",
        )


def _train_problems(
    config: AdapterConfig,
    parameters: Sequence[Parameter],
    sites: Sequence[Site],
    targets: Sequence[AdapterTarget],
) -> Iterator[Problem]:
    """Find patterns of `train` that match adapted or quantized weights."""
    quantized = {site.weight for site in quantized_sites(config, sites)}
    adapted = {target.site.weight for target in targets}
    names = [parameter.name for parameter in parameters]
    free = [name for name in names if name not in adapted | quantized]
    free.sort(key=lambda name: "layers." in name)  # few are outside the layers
    for index, pattern in enumerate(config.train):
        matching = [name for name in names if matches([pattern], name)]
        if not matching:
            population = "parameters that are neither adapted nor quantized"
            yield matches_nothing(f"train.{index}", pattern, free, population, SHOWN)
        for name in [name for name in matching if name in quantized][:1]:
            yield Problem(
                f"train.{index}",
                f"matches {name}, which is quantized: a quantized weight has no gradient",
                also=("quantize",),
                hint="Exclude its layer with quantize.exclude, or train fewer parameters.",
            )
        for name in [name for name in matching if name in adapted][:1]:
            anchored = f"^{pattern}" if any(matches([f"^{pattern}"], n) for n in free) else ""
            yield Problem(
                f"train.{index}",
                f"matches {name}, which is adapted: a weight is either adapted or fully trained, "
                f"not both",
                valid=(anchored,) if anchored else (),
                also=("targets",),
                hint="Exclude its module with exclude, or train fewer parameters.",
            )


def _wrong_ranks(config: AdapterConfig, targets: Sequence[AdapterTarget]) -> Iterator[Problem]:
    """Find ranks above the smaller side of a matrix."""
    reported: set[int | None] = set()
    for target in targets:
        site, rule = target.site, _rule(config, target.site.path)
        smaller = min(site.inputs, site.outputs, *target.pieces)
        if target.rank <= smaller:
            continue
        if rule is not None and config.ranks[rule].rank is None:
            rule = None
        if rule in reported:
            continue
        reported.add(rule)
        yield Problem(
            "rank" if rule is None else f"ranks.{rule}.rank",
            f"exceeds the smaller dimension of {site.path}, "
            f"{site.inputs} inputs and {min((site.outputs, *target.pieces))} outputs",
            valid=(f"{smaller} or less",),
        )


class AdapterReport(NamedTuple):
    """Counts of adapted modules, and of trained and frozen parameters.

    Arguments:
        modules: matrices with an adapter.
        ranks: distinct ranks in ascending order.
        adapter, trained, frozen: elements of the adapter, of fully trained base parameters, and of
            frozen ones.
        trained_bytes, frozen_bytes: of weights only; the first includes the adapter.
        quantized, quantized_bytes: number and bytes of frozen parameters that are quantized.
    """

    modules: int
    ranks: tuple[int, ...]
    adapter: int
    trained: int
    frozen: int
    trained_bytes: int
    frozen_bytes: int
    quantized: int = 0
    quantized_bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """The report as JSON."""
        return {**self._asdict(), "ranks": list(self.ranks)}

    def line(self) -> str:
        """The report as text."""
        ranks = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else (
            f"ranks {self.ranks[0]} to {self.ranks[-1]}"
        )  # fmt: skip
        base = f", and {self.trained:,} of the base" if self.trained else ""
        quantized = (
            f", {self.quantized:,} of them quantized ({in_units(self.quantized_bytes)})"
            if self.quantized
            else ""
        )
        return (
            f"{self.modules} modules adapted with {ranks}: {self.adapter:,} parameters of the "
            f"adapter trained{base} ({in_units(self.trained_bytes)}), {self.frozen:,} frozen "
            f"({in_units(self.frozen_bytes)}){quantized}"
        )


def report_of(described: Described, trained_width: int, frozen_width: int) -> AdapterReport:
    """Count adapted, trained and frozen parameters."""
    adapter_names = {
        parameter.name for target in described.targets for parameter in target.parameters()
    }
    numbers = {parameter.name: prod(parameter.shape) for parameter in described.trained}
    adapter = sum(count for name, count in numbers.items() if name in adapter_names)
    trained_base = sum(numbers.values()) - adapter
    frozen = sum(prod(parameter.shape) for parameter in described.frozen)
    few = [
        prod(parameter.shape)
        for parameter in described.frozen
        if parameter.name in described.quantized
    ]
    quantized_bytes = sum(described.quantized.values())
    return AdapterReport(
        len(described.targets),
        tuple(sorted({target.rank for target in described.targets})),
        adapter,
        trained_base,
        frozen,
        (adapter + trained_base) * trained_width,
        (frozen - sum(few)) * frozen_width + quantized_bytes,
        sum(few),
        quantized_bytes,
    )


ROUNDED_AGAIN: Final = "base-rounded-again"
LEFT_DENSE: Final = "dense-layers-quantized"
UNJOINED: Final = "the layer in adapter.quantize.exclude, or another format"


def _backend_problems(config: Quantization) -> Iterator[Problem]:
    """Report a missing bitsandbytes or block size; paths are relative to the section."""
    if not isinstance(config, NF4) or config.backend != "bitsandbytes":
        return
    if not has_bitsandbytes():
        yield Problem(
            "backend",
            "the package bitsandbytes is not installed (pip install bitsandbytes)",
            valid=("auto", "torch"),
        )
    if config.group_size not in BITSANDBYTES_SIZES:
        yield Problem(
            "group_size",
            f"bitsandbytes has no blocks of {config.group_size}",
            valid=tuple(map(str, BITSANDBYTES_SIZES)),
            also=("backend",),
        )


def _quantize_problems(
    config: Quantization, matrices: Mapping[str, tuple[int, int]]
) -> Iterator[Problem]:
    """Find values that do not suit the layers of a model; paths are relative to the section.

    Arguments:
        matrices: rows and columns of quantizable layers, by name.
    """
    yield from _backend_problems(config)
    population = "layers that can be quantized"
    yield from unmatched("exclude", config.exclude, list(matrices), population, SHOWN)
    quantized = {
        name: shape for name, shape in matrices.items() if not matches(config.exclude, name)
    }
    if not quantized:
        yield Problem("exclude" if config.exclude else "", "leaves no linear layer to quantize")
    size = config.columns or 1
    wrong = {
        name: (rows, columns)
        for name, (rows, columns) in quantized.items()
        if columns % size or rows % config.rows
    }
    if wrong:
        name, (rows, columns) = next(iter(wrong.items()))
        more = f", nor those of {plural(len(wrong) - 1, 'other layer')}" if len(wrong) > 1 else ""
        blocks = f"{size} x {size}" if config.rows > 1 else f"{size}"
        has_size = "group_size" in type(config).__setpoint__.fields
        yield Problem(
            "group_size" if has_size else "",
            f"blocks of {blocks} do not divide the {rows} x {columns} weights of {name}{more}",
            valid=_sizes(quantized.values(), size, config.rows > 1) if has_size else (),
            hint="Or exclude layers with quantize.exclude.",
        )


def form_problems(config: Quantization, forms: Mapping[str, tuple[Form, int]]) -> Iterator[Problem]:
    """Compare the section with the quantization of files, which is kept or rounded again.

    Arguments:
        forms: quantization and columns of matrices, by name.
    """
    odd = {name: form for name, (form, n) in forms.items() if form != config.form(n)}
    if not odd:
        return
    name, form = next(iter(odd.items()))
    tag = type(config).__setpoint__.tag
    kept, values = keeping(form)
    rows, columns = form.block
    blocks = f"{columns}" if rows == 1 else f"{rows} x {columns}"
    stored = f"the files have {form.numbers} in blocks of {blocks} ({name})"
    if kept == tag:
        for field, value in values.items():
            if getattr(config, field) != value:
                yield Problem(
                    field,
                    f"{stored}, which would be rounded a second time instead of being kept",
                    valid=(str(value).lower(),),
                )
    elif kept is None and form.numbers == config.form(forms[name][1]).numbers:
        yield Problem(
            "",
            f"{stored}, blocks that type = {tag} does not have, so they would be rounded a second "
            f"time instead of being kept",
            hint="Set it to null for dense weights; another type rounds them a second time.",
        )
    else:
        advice = "" if kept is None else f"type = {kept} keeps them"
        given = ", ".join(f"{field} = {str(value).lower()}" for field, value in values.items())
        yield Caution(
            ROUNDED_AGAIN,
            "",
            f"{stored}, which are dequantized and rounded a second time to {tag}",
            hint=f"{advice}{f', {given}' if given else ''}." if advice else "",
        )


def dense_layers(
    config: Quantization, dense: Sequence[str], quantized: Sequence[str]
) -> Iterator[Caution]:
    """Caution about layers stored dense in quantized files, but quantized by the section."""
    if not dense:
        return
    patterns: dict[str, None] = {}
    for name in dense:
        parts = name.split(".")
        short = [re.escape(".".join(parts[-count:])) + "$" for count in (1, 2)]
        layers = re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(name))
        candidates = (*short, f"^{layers}$", f"^{re.escape(name)}$")
        patterns[next(p for p in candidates if not any(matches([p], n) for n in quantized))] = None
    exclude = json.dumps([*config.exclude, *patterns])
    yield Caution(
        LEFT_DENSE,
        "exclude",
        f"{len(dense)} layers are dense in the files ({dense[0]}), and are rounded to "
        f"{type(config).__setpoint__.tag}",
        valid=(exclude,),
        hint="This keeps them unchanged.",
    )


def why_not_joined(
    name: str, forms: Sequence[Form], rows: Sequence[int], factors: Sequence[float]
) -> str | None:
    """Reason why stacked matrices from files cannot be kept as one, or None."""
    uncut = all(count % forms[0].block[0] == 0 for count in rows)
    if len(set(forms)) == 1 and len(set(factors)) <= 1 and uncut and not forms[0].nested:
        return None
    return (
        f"{name} consists of {len(forms)} matrices in the files, whose scales cannot be combined, "
        f"so their values cannot be kept"
    )


def keeping(form: Form) -> tuple[str | None, dict[str, object]]:
    """Type and fields of the section that keeps a format; None if there is none."""
    rows, columns = form.block
    match form.numbers, form.scales:
        case "nf4", "float" if form.nested in (0, SCALES_PER_SCALE):
            return "nf4", {"group_size": columns, "double": bool(form.nested)}
        case "int8", "float" if rows == 1 and not form.zeros:
            return "int8", {"group_size": columns}
        case "e4m3", "float" if rows == columns:
            return "fp8", {"group_size": columns}
        case "e2m1", "e4m3":
            return "nvfp4", {"group_size": columns}
        case "e2m1", "exponent" if columns == MX_BLOCK:
            return "mxfp4", {}
        case _:
            return None, {}


def _sizes(shapes: Iterable[tuple[int, int]], size: int, square: bool) -> tuple[str, ...]:
    """Nearest block sizes that divide all matrices."""
    sides = (n for rows, columns in shapes for n in ((rows, columns) if square else (columns,)))
    common = gcd(*sides)
    fit = [n for n in range(2, common + 1, 2) if common % n == 0]
    return tuple(map(str, sorted(sorted(fit, key=lambda n: abs(log(n / size)))[:3])))
