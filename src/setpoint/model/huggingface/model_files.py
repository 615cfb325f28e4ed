"""Weights of transformers models, read from and written to Hugging Face directories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.huggingface.architecture import import_transformers, one_line
from setpoint.model.pretrained.fill import coded_of
from setpoint.model.pretrained.locate import CONFIG
from setpoint.model.pretrained.read_tensor import FileTensor, TensorReader, read_rows
from setpoint.model.pretrained.tensor_files import dense_tensors, listed

if TYPE_CHECKING:
    from setpoint.files.tensor_header import Encoding, TensorInfo
    from setpoint.shapes.parameter import Form
    from setpoint.shapes.stored import Coded


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
    wrong = [
        f"{len(names)} tensors {reason}: {listed(names)}"
        for names, reason in (
            (missing, "are missing"),
            (beyond, "are not in the model"),
            (shapes, "have another shape"),
        )
        if names
    ]
    if wrong:
        lines = "\n  ".join(wrong)
        raise SetpointError(f"{directory} does not fit the model:\n  {lines}")
    return model


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
