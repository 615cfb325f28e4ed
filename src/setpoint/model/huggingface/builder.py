"""Construction of transformers models, with trial runs, and their weights in files."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from setpoint.config import Problem, SetpointError
from setpoint.model.build import count_parameters, evaluating
from setpoint.model.huggingface.architecture import (
    Unfit,
    architecture,
    config_keys,
    import_transformers,
    one_line,
    value_problems,
)
from setpoint.model.huggingface.attention_interface import NAME, register
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.pretrained.config_json import problems_of, vocabulary_of
from setpoint.model.pretrained.fill import FileTensor, TensorReader, coded_of, read_rows
from setpoint.model.pretrained.locate import CONFIG, locate_here
from setpoint.model.pretrained.tensor_files import dense_tensors
from setpoint.model.pretrained.weight_names import mismatch, unlike

if TYPE_CHECKING:
    from pathlib import Path

    from setpoint.files.tensor_header import Encoding, TensorInfo
    from setpoint.model.config import HuggingFaceConfig
    from setpoint.shapes.parameter import Form
    from setpoint.shapes.stored import Coded

CAUSAL = 1e-4
"""Relative tolerance for logits of earlier tokens when later ones change."""

SUPPORTS = {
    "sdpa": "_supports_sdpa",
    "flash_attention_2": "_supports_flash_attn",
    "flex_attention": "_supports_flex_attn",
}
"""Class attributes of transformers for each attention implementation."""

ON_GPU = ("flash_attention_2", "flex_attention")
"""Attention implementations for GPUs only; trial runs on the CPU use eager."""

SMALL = 2**24
"""Parameters up to which a check builds the model with values, for trial runs."""


def build_huggingface(
    config: HuggingFaceConfig, vocab_size: int, keys: Mapping[str, Any] | None = None
) -> HuggingFaceModel:
    """Build a transformers model with random weights, drawn from torch's generator.

    Returns:
        the model in training mode, with parameters in fp32.

    Raises:
        Unfit: transformers cannot build the model, its vocabulary or context is too small, a
            forward pass fails, or attention is not causal.
        SetpointError: transformers is not installed, or there is no config.json.
    """
    transformers = import_transformers()
    keys = config_keys(config) if keys is None else keys
    overrides = config.overrides.dump()
    try:
        hf_config = architecture(config, keys, overrides)
    except Unfit:
        raise
    except Exception as error:  # any error of its classes means an invalid value
        _refuse_overrides(config, keys, "transformers cannot read the architecture", error)
    text = hf_config.get_text_config()
    for problem in value_problems(config, lambda key: getattr(text, key, None), vocab_size):
        raise Unfit(config, problem)
    if type(hf_config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        why = f"transformers has no causal language model for {type(hf_config).__name__}"
        raise Unfit(config, Problem("config", why))
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    register()
    name = config.attention_backend
    if name == "auto":
        name = NAME if kind._can_set_attn_implementation() else None
    elif name in SUPPORTS and not getattr(kind, SUPPORTS[name], False):
        _refuse_attention(config, kind, f"{kind.__name__} of transformers does not support it")
    elif name == "flash_attention_2" and find_spec("flash_attn") is None:
        _refuse_attention(config, kind, "the package flash_attn is not installed")
    try:
        model = HuggingFaceModel(config, _make(hf_config, name).train())
    except Unfit:
        raise
    except Exception as error:  # of any class
        _refuse_overrides(config, keys, f"transformers cannot build a {kind.__name__}", error)
    if torch.get_default_device().type == "meta":  # where there are no values to try it with
        error = _shape_error(hf_config)
        if error is not None and _faulty_overrides(config, keys):
            _refuse_overrides(config, keys, f"{kind.__name__} cannot be called with tokens", error)
        model.assume_defaults()
        return model
    model.set_attention("eager" if name in (NAME, *ON_GPU) else name)
    _require_causal(model, keys)
    uses_setpoint = model.choose_attention(name == NAME)
    if config.attention_backend == NAME and not uses_setpoint:
        why = f"{kind.__name__} does not support it, or gives different results with it"
        _refuse_attention(config, kind, why)
    model.choose_head()
    if name in ON_GPU:
        model.set_attention(name)
    return model


def check_weights(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Check the headers of weight files against a transformers model.

    Skipped if a required package is missing, or if another check reports the problem.
    """
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        return
    assert config.pretrained is not None
    try:
        place = locate_here(config.pretrained)
        if place is None or place.is_checkpoint:
            return
        dense_tensors(place.directory)
        tokens = vocabulary_of(place)
        hf_config = architecture(config, config_keys(config), config.overrides.dump())
        kind = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    except Exception:  # of any class of transformers
        return
    rows = getattr(hf_config, "vocab_size", None)
    if tokens is not None and rows is not None and tokens < rows:
        hf_config.vocab_size = tokens  # the model grows the others
    try:
        read_model(kind, place.directory, hf_config, torch.float32, reads=False)
    except SetpointError as error:
        yield from problems_of("pretrained", error, config.pretrained)


def try_huggingface(config: HuggingFaceConfig, vocab_size: int) -> HuggingFaceModel:
    """Build a model on the meta device; if it is small, also make the trial runs of training."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            outline = build_huggingface(config, vocab_size)
        if count_parameters(outline) <= SMALL:
            build_huggingface(config, vocab_size)
    return outline


def _make(hf_config: Any, attention: str | None, **more: Any) -> Any:
    """Build a model from a copy of a config, which the model modifies."""
    make = import_transformers().AutoModelForCausalLM.from_config
    # Independent of torch's current default and of the dtype in config.json.
    given = {"attn_implementation": attention, "dtype": torch.float32, **more}
    return make(copy.deepcopy(hf_config), **given)


def _refuse_attention(config: HuggingFaceConfig, kind: Any, why: str) -> NoReturn:
    """Refuse the attention of a section, and list those that the family supports."""
    has_gpu = torch.cuda.is_available()
    can_run = {
        "sdpa": True,
        "flash_attention_2": has_gpu and find_spec("flash_attn") is not None,
        "flex_attention": has_gpu,
    }
    valid = [name for name, flag in SUPPORTS.items() if can_run[name] and getattr(kind, flag, 0)]
    problem = Problem("attention_backend", why, valid=("auto", *valid, "eager"), also=("config",))
    raise Unfit(config, problem)


def _require_causal(model: HuggingFaceModel, keys: Mapping[str, Any]) -> None:
    """Run two texts that differ in the last token, and require that all other logits are equal."""
    tokens = torch.tensor([[1, 1], [1, 2]])  # not 0, which many pad with and embed as zero
    # Trials must not change later random numbers.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(model):
        try:
            one, other = model(tokens)[:, 0]
        except Exception as error:  # any error of its layers means that sizes do not fit
            reason = f"{type(model.model).__name__} cannot be called with tokens"
            _refuse_overrides(model.config, keys, reason, error)
    if (one - other).abs().max() > CAUSAL * one.abs().max():
        problem = Problem(
            "config", "attention is not causal: logits of a token depend on later tokens"
        )
        if hasattr(model.model.config, "is_decoder"):
            problem.hint = "Set model.overrides.is_decoder to true."
        raise Unfit(model.config, problem)


def _refuse_overrides(
    config: HuggingFaceConfig, keys: Mapping[str, Any], reason: str, error: Exception
) -> NoReturn:
    """Refuse the overrides that break the model, or all of them if no single one does."""
    names = [f"overrides.{key}" for key in _faulty_overrides(config, keys)]
    if not names:
        names = ["overrides"] if config.overrides.dump() else ["config"]
    also = names[1:4] if names == ["config"] else (*names[1:4], "config")
    problem = Problem(names[0], f"{reason}: {one_line(error)}", also=also)
    raise Unfit(config, problem) from error


def _faulty_overrides(config: HuggingFaceConfig, keys: Mapping[str, Any]) -> list[str]:
    """Overrides of which each, when left out, makes the shapes match."""
    given = config.overrides.dump()

    def fits(overrides: Mapping[str, Any]) -> bool:
        try:
            return _shape_error(architecture(config, keys, overrides)) is None
        except Exception:  # any error means that it cannot make the model
            return False

    if fits(given):
        return []
    return [key for key in given if fits({k: v for k, v in given.items() if k != key})]


def _shape_error(hf_config: Any) -> Exception | None:
    """Error from building a model on the meta device and calling it with tokens, or None."""
    kind = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    more = {}
    if kind._can_set_experts_implementation():  # one that reads no values
        more["experts_implementation"] = "batched_mm"
    try:
        with torch.device("meta"), torch.no_grad():
            tokens = torch.ones(1, 4, dtype=torch.int64)
            # Without a mask, transformers looks for documents in the position ids.
            given = {"input_ids": tokens, "attention_mask": tokens, "use_cache": False}
            _make(hf_config, "eager", **more).eval()(**given)
    except Exception as error:  # any error of its layers
        return error
    return None


# Weights in files.


def read_model(
    kind: type[Any], directory: Path, keys: Any, dtype: torch.dtype, reads: bool = True
) -> nn.Module:
    """Build a model with the weights from a directory.

    Arguments:
        kind: class of the model.
        keys: config of the model.
        reads: whether to read the values; otherwise the model stays on the meta device and only
            file headers are checked, for which transformers needs the package accelerate.

    Raises:
        SetpointError: tensors are missing or surplus.
    """
    failed: list[SetpointError] = []
    infos = dense_tensors(directory)
    tensors = {name: UnreadTensor(info, failed, reads) for name, info in infos.items()}
    place = {} if reads else {"device_map": {"": "meta"}}
    try:
        with quiet():
            model, loading = kind.from_pretrained(
                None,
                config=keys,
                dtype=dtype,
                state_dict=tensors,
                generation_config=_generation_of(kind, directory),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # which are reported with all else
                **place,
            )
    except Exception as error:
        if failed:  # transformers reports it in its own words
            raise failed[0] from error
        if not isinstance(error, OSError | ValueError | RuntimeError):
            raise
        raise SetpointError(f"{directory} cannot be loaded: {one_line(error)}") from error
    missing, beyond = (
        sorted(map(str, loading[f"{key}_keys"])) for key in ("missing", "unexpected")
    )
    shapes = [
        f"{name} {tuple(stored)}, the model's is {tuple(shape)}"
        for name, stored, shape in sorted(loading["mismatched_keys"])
    ]
    mismatches = (
        mismatch(missing, "missing"),
        mismatch(beyond, "not in the model"),
        mismatch(shapes, "of another shape"),
    )
    if message := unlike(directory, mismatches):
        raise SetpointError(message)
    return model


def load_from(hf: nn.Module, directory: Path) -> None:
    """Load the weights of a Hugging Face directory into a `HuggingFaceModel`."""
    assert isinstance(hf, HuggingFaceModel)
    kind, keys, training = type(hf.model), hf.model.config, hf.model.training
    dtype = next(hf.model.parameters()).dtype
    # The current model is freed before the other is built.
    hf.model = nn.Identity()
    hf.set_model(read_model(kind, directory, keys, dtype).train(training))
    hf.sources = Sources(hf.model, directory)


class UnreadTensor:
    """A tensor that is read when it is indexed, like slices in the safetensors library.

    The library maps the file into memory: if the file is truncated or its disk fails, SIGBUS kills
    the process, possibly much later, since tensors stay mapped. Several threads may read at once.

    Arguments:
        failed: list to which errors are added, because transformers would replace their text.
        reads: whether to read the values; otherwise indexing returns a tensor on the meta device.

    Raises:
        SetpointError: on construction, if torch does not have the dtype.
    """

    def __init__(self, info: TensorInfo, failed: list[SetpointError], reads: bool) -> None:
        self.tensor, self.failed, self.reads = FileTensor(info), failed, reads
        self.dtype = self.tensor.dtype

    def get_dtype(self) -> str:
        """Name of the dtype in the file."""
        return self.tensor.info.dtype

    def get_shape(self) -> list[int]:
        """Shape as a list."""
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> Tensor:
        """Read the whole tensor into memory.

        Raises: as `FileTensor` does.
        """
        if not self.reads:
            return torch.empty(self.tensor.shape, dtype=self.dtype, device="meta")[index]
        try:
            return self.tensor.whole()[index]
        except SetpointError as error:
            self.failed.append(error)
            raise


class Sources:
    """Quantized weights in the files of a model that contains dequantized values.

    Arguments:
        model: the model, whose conversion rules map names in files, and single experts, to
            parameters.
    """

    def __init__(self, model: Any, directory: Path) -> None:
        self.infos = {n: i for n, i in dense_tensors(directory).items() if i.encoding is not None}
        self.names = _sources(model, [*self.infos]) if self.infos else {}

    def coded(self, weight: str) -> Iterator[list[Coded]] | None:
        """See `setpoint.shapes.stored.HasCoded`."""
        matrices = self.names.get(weight)
        return None if matrices is None else self._read(matrices)

    def joined(self, weight: str) -> tuple[list[Form], list[int], list[float]] | None:
        """Forms, rows and factors of the first expert with different factors, else of the last one.

        Returns:
            None if the files have one matrix per expert, or dense ones.
        """
        joined = None
        for names in self.names.get(weight, ()):
            infos = [self.infos[name] for name in names]
            encodings = [cast("Encoding", info.encoding) for info in infos]
            if len(infos) == 1:
                return None
            parts = [dict(e.parts).get("factor") for e in encodings]
            factors = [float(read_rows(part)) for part in parts if part is not None]
            forms, rows = [e.form for e in encodings], [info.shape[0] for info in infos]
            joined = forms, rows, factors
            if len(set(factors)) > 1:
                break
        return joined

    def _read(self, matrices: list[list[str]]) -> Iterator[list[Coded]]:
        for names in matrices:
            infos = [self.infos[name] for name in names]
            read = [coded_of(info, TensorReader()) for info in infos]
            if len(read) > 1 or len(infos[0].shape) == 2:
                yield read
                continue
            for number in range(infos[0].shape[0]):  # experts that the files have packed
                parts = {name: part[number] for name, part in read[0].parts.items()}
                yield [read[0]._replace(parts=parts)]


def _sources(model: Any, names: list[str]) -> dict[str, list[list[str]]]:
    """Names in files of the matrices stacked in each weight; for experts, in each of them."""
    from transformers import conversion_mapping, core_model_loading

    rules: list[Any] = conversion_mapping.get_model_conversion_mapping(model) or []
    renamings = [rule for rule in rules if isinstance(rule, core_model_loading.WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, core_model_loading.WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    state, sources = model.state_dict(), dict[str, list[list[str]]]()
    rows: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names, key=core_model_loading.dot_natural_key):
        given = (name, renamings, converters, model.base_model_prefix, state)
        renamed, pattern = core_model_loading.rename_source_key(*given)
        if renamed not in state:
            renamed, pattern = name, None
        if pattern is None and renamed in state:
            sources[renamed] = [[name]]
        elif pattern is not None and _stacks(by_pattern[pattern]):
            patterns = by_pattern[pattern].source_patterns
            by_source = rows.setdefault(renamed, {p: [] for p in patterns})
            by_source[pattern].append(name)
    for renamed, by_source in rows.items():
        if len({len(parts) for parts in by_source.values()}) == 1:
            sources[renamed] = [list(parts) for parts in zip(*by_source.values(), strict=True)]
    return sources


def _stacks(rule: Any) -> bool:
    """True for a rule that packs experts, each made of stacked matrices."""
    merge, *joins = rule.operations
    above = [type(join).__name__ == "Concatenate" and join.dim == 1 for join in joins]
    return type(merge).__name__ == "MergeModulelist" and merge.dim == 0 and all(above)


def write_model(
    model: nn.Module, directory: Path, *, dtype: torch.dtype | None, max_shard_size: int
) -> None:
    """Write a model in transformers' format.

    Arguments:
        dtype: dtype of the weights; None: unchanged.
    """
    state = model.state_dict()
    if dtype is not None:
        # Tied weights are one tensor under two names, and stay one.
        casts = {t.data_ptr(): _cast(t, dtype) for t in state.values()}
        state = {name: casts[t.data_ptr()] for name, t in state.items()}
    with quiet():
        model.save_pretrained(  # pyright: ignore[reportCallIssue]
            directory, state_dict=state, max_shard_size=max_shard_size
        )
    if dtype is not None:
        # transformers has written the dtype of the model's own parameters.
        file = directory / CONFIG
        keys = {**json.loads(file.read_bytes()), "dtype": str(dtype).removeprefix("torch.")}
        file.write_text(json.dumps(keys, indent=2) + "\n")


def _generation_of(kind: type[Any], directory: Path) -> Any:
    """Generation settings of a directory, looked up as transformers does."""
    if not kind.can_generate():
        return None
    read = import_transformers().GenerationConfig.from_pretrained
    try:
        return read(str(directory), local_files_only=True)
    except OSError:
        of_model = {"config_file_name": CONFIG, "_from_model_config": True}
        return read(str(directory), local_files_only=True, **of_model)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and load reports."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
