"""Files of `torch.save` and of `torch.distributed.checkpoint`, read without running their code.

Both are pickles. Torch's weights-only unpickler reads tensors; the metadata of a distributed
checkpoint is read by an unpickler that knows only the metadata classes.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from setpoint.config import RunError, SetpointError
from setpoint.files.tensor_header import lfs_pointer

METADATA: Final = ".metadata"
"""The file that makes a directory a distributed checkpoint."""
_KNOWN: Final[Mapping[tuple[str, str], Any]] = {
    **{
        (metadata.__name__, name): getattr(metadata, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    },
    **{  # plans of saving, which Megatron-LM keeps for its next checkpoint
        (planner.__name__, name): getattr(planner, name)
        for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
    },
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    **{
        (f"pathlib{module}", f"{kind}Path"): PurePosixPath
        for module in ("", "._local")
        for kind in ("Posix", "PurePosix", "Windows", "PureWindows")
    },
}
"""Classes in the metadata of a distributed checkpoint, except dtypes."""


def refusal(path: Path, reason: str) -> SetpointError:
    """Error about a pickle that would run code."""
    return SetpointError(
        f"{path} contains more than tensors, numbers and strings: {reason}. Loading it could run "
        "code, so it was not loaded.\nValid: a file that torch.load(..., weights_only=True) "
        "reads; if you trust this one, load it in its own system and save only the state dict"
    )


def read_torch_file(path: Path) -> Any:
    """Read a file of `torch.save`.

    Returns:
        dicts and lists of tensors, numbers and strings; tensors are read from disk on use.

    Raises:
        SetpointError: the file has objects of other classes, or cannot be read.
        RunError: the file is damaged.
    """
    try:
        for mmap in (True, False):  # files of old torch versions cannot be mapped
            try:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
            except RuntimeError as error:
                if not (mmap and "mmap can only be used" in str(error)):
                    raise
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # damaged bytes raise any error
        if name := _named_class(error):
            raise refusal(path, name) from error
        text = next(iter(str(error).splitlines()), type(error).__name__)
        if "weights_only" in text:  # PyTorch's advice to run the code in the file
            text = lfs_pointer(path) or "it is not a pickle of tensors, numbers and strings"
        raise RunError(f"{path} is damaged, or was not written by torch.save: {text}") from error
    raise AssertionError("unreachable")


def _named_class(error: BaseException) -> str:
    """The class or function that an unpickler refused; empty if the error is a different one."""
    match = re.search(r"GLOBAL (\S+)", str(error))
    return match[1] if match and isinstance(error, pickle.UnpicklingError) else ""


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickler that builds only the classes of `torch.distributed.checkpoint.metadata`."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) in _KNOWN:
            return _KNOWN[module_name, global_name]
        dtype = getattr(torch, global_name, None) if module_name == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"GLOBAL {module_name}.{global_name}")


class _TensorReader(FileSystemReader):
    """Reads tensors of a distributed checkpoint whose metadata has been read already."""

    def __init__(self, path: Path, content: Metadata) -> None:
        super().__init__(path)
        self.content = content

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        del args, kwargs
        return self.content


class DistributedFiles:
    """A directory of `torch.distributed.checkpoint`.

    Arguments:
        shapes: shapes of all tensors by name; a tensor may be in several files.

    Raises:
        SetpointError: the metadata has objects of other classes, or cannot be read.
        RunError: the metadata is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = (path / METADATA).read_bytes()
            self._metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        except OSError as error:
            raise SetpointError(f"{path / METADATA} cannot be read: {error.strerror}") from error
        except Exception as error:
            if name := _named_class(error):
                raise refusal(path / METADATA, name) from error
            raise RunError(f"{path / METADATA} is damaged: {error}") from error
        entries = getattr(self._metadata, "state_dict_metadata", None)
        if not isinstance(self._metadata, Metadata) or not isinstance(entries, dict):
            raise RunError(f"{path / METADATA} is damaged: it lists no tensors")
        self._tensors = {
            str(name): entry
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        self.shapes = {name: tuple(entry.size) for name, entry in self._tensors.items()}
        files = {info.relative_path for info in self._metadata.storage_data.values()}
        for name in sorted(files):
            if Path(name).name != name or not (path / name).is_file():
                raise RunError(f"{path} lacks the file {name!r} that its {METADATA} names")

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Read whole tensors.

        Raises:
            RunError: a file is damaged, or contradicts the metadata.
        """
        tensors: dict[str, Tensor] = {}
        entries = {name: self._tensors[name] for name in names}
        for name, entry in entries.items():
            if sum(prod(chunk.sizes) for chunk in entry.chunks) != prod(entry.size):
                raise RunError(f"{self.path} lacks parts of {name}")
        try:
            for name, entry in entries.items():
                tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about reading in one process, as intended
                load(
                    {**tensors},
                    storage_reader=_TensorReader(self.path, self._metadata),
                    no_dist=True,
                )
        except (Exception, CheckpointException) as error:
            cause: BaseException = error
            if isinstance(error, CheckpointException) and error.failures:
                cause = next(iter(error.failures.values()))[0]
            if name := _named_class(cause):
                raise refusal(self.path, name) from error
            text = next(iter(str(cause).splitlines()), "") or type(cause).__name__
            raise RunError(f"{self.path} is damaged: its tensors cannot be read: {text}") from error
        return tensors
