"""Weights of transformers' models from and in directories of the Hugging Face format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.huggingface.architecture import import_transformers, one_line
from setpoint.model.pretrained.locate import CONFIG
from setpoint.model.pretrained.quantized import dense_tensors
from setpoint.model.pretrained.read_tensor import Unread
from setpoint.model.pretrained.tensor_files import listed


def read_model(
    kind: type[Any], directory: Path, keys: Any, dtype: torch.dtype, reads: bool = True
) -> nn.Module:
    """Make a model with the weights of a directory.

    Arguments:
        kind: its class.
        keys: its config.
        reads: whether values are read; otherwise the model is on the meta device, and headers of
            files say whether they fit, for which transformers needs the package accelerate.

    Raises:
        SetpointError: the directory lacks weights of the model, or has others.
    """
    failed: list[SetpointError] = []
    infos = dense_tensors(directory)
    held = {name: Unread(info, failed, reads) for name, info in infos.items()}
    place = {} if reads else {"device_map": {"": "meta"}}
    try:
        with quiet():
            model, loading = kind.from_pretrained(
                None,
                config=keys,
                dtype=dtype,
                state_dict=held,
                generation_config=_generation_of(kind, directory),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # which are reported with all else
                **place,
            )
    except Exception as error:
        if failed:  # which transformers says in words of its own
            raise failed[0] from error
        if not isinstance(error, OSError | ValueError | RuntimeError):
            raise
        raise SetpointError(f"{directory} cannot be loaded: {one_line(error)}") from error
    missing, beyond = (
        sorted(map(str, loading[f"{key}_keys"])) for key in ("missing", "unexpected")
    )
    shapes = [
        f"{name} {tuple(stored)}, the model's is {tuple(wanted)}"
        for name, stored, wanted in sorted(loading["mismatched_keys"])
    ]
    wrong = [
        f"{len(names)} tensors {what}: {listed(names)}"
        for names, what in (
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


def write_model(
    model: nn.Module, directory: Path, *, dtype: torch.dtype | None, max_shard_size: int
) -> None:
    """Write a model as transformers does.

    Arguments:
        dtype: of the weights; None: as they are.
    """
    state = model.state_dict()
    if dtype is not None:
        # What is tied is one tensor under two names, and stays one.
        casts = {t.data_ptr(): _cast(t, dtype) for t in state.values()}
        state = {name: casts[t.data_ptr()] for name, t in state.items()}
    with quiet():
        model.save_pretrained(  # pyright: ignore[reportCallIssue]
            directory, state_dict=state, max_shard_size=max_shard_size
        )
    if dtype is not None:
        # It has written the type of the model's own parameters.
        file = directory / CONFIG
        keys = {**json.loads(file.read_bytes()), "dtype": str(dtype).removeprefix("torch.")}
        file.write_text(json.dumps(keys, indent=2) + "\n")


def _generation_of(kind: type[Any], directory: Path) -> Any:
    """What a directory says of sampling, as transformers looks for it."""
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
    """Keep away what transformers prints: bars, into pipes, too, and tables, which errors say."""
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
