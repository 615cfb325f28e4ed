"""The JSON files of a checkpoint, and verification of all its files against `manifest.json`.

`manifest.json` contains sizes and checksums, `state.json` everything except tensors, and
`base.json` the names of omitted frozen parameters and of the weights that contain them.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from setpoint.config import RunError, SetpointError
from setpoint.files import MANIFEST
from setpoint.files.atomic import Written, digest_file, read_small, retried
from setpoint.files.threads import in_threads

STATE = "state.json"
"""The file with everything but tensors."""

BASE = "base.json"
"""The file that names omitted frozen parameters and the weights that contain them."""

TENSORS = ".safetensors"
"""Suffix of tensor files."""

INDEX = ".index.json"
"""Suffix of the indexes of tensor parts."""

FORMAT = 1
"""The version of the checkpoint format."""
_PLAIN = re.compile(r"[^/\\\0]+").fullmatch
_OF_A_RANK = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})" + re.escape(TENSORS))
FAILING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODATA)
"""Error numbers of failing disks and network file systems."""
REPLACED = (errno.ELOOP, errno.EINVAL, errno.EFBIG)
"""Error numbers if something else is in place of a file: a link to itself, a pipe, a huge file."""


class DamagedCheckpoint(RunError):
    """A checkpoint that differs from what was saved, or cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"checkpoint {path} is damaged: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `manifest.json`.

    Arguments:
        metric: the metric that selects the best checkpoint, lower is better (negated if higher is
            better); None if not measured.
        files: file name to size and checksum, except for the manifest itself.
        position: the position of the run, by unit of periods; empty if unknown.
    """

    step: int
    metric: float | None
    files: dict[str, Written]
    position: Mapping[str, float] = field(default_factory=dict)

    def render(self) -> bytes:
        """The text of the file, in canonical form, so that any other text means damage.

        Returns:
            JSON in UTF-8 with a final line break.
        """
        files = {name: encode_written(written) for name, written in sorted(self.files.items())}
        return _seal(
            {
                "format": FORMAT,
                "step": self.step,
                "metric": self.metric,
                "position": self.position,
                "files": files,
            }
        )

    def wrong_size(self, sizes: Mapping[str, int]) -> str:
        """Name the first file that is missing or has a different size; empty if there is none."""
        for name, written in sorted(self.files.items()):
            if name not in sizes:
                return f"{name} is missing"
            if sizes[name] != written.size:
                return f"{name} has {sizes[name]} bytes, not {written.size}"
        return ""


def file_of_rank(stem: str, rank: int, ranks: int) -> str:
    """The name of the file with a rank's parts."""
    return f"{stem}-{rank + 1:05d}-of-{ranks:05d}{TENSORS}"


def files_of_stems(files: Collection[str]) -> dict[str, list[str]]:
    """The files of a checkpoint that contain tensors, by stem."""
    stems: dict[str, list[str]] = {}
    for file in files:
        if file.endswith(INDEX):
            stems.setdefault(file.removesuffix(INDEX), []).append(file)
        elif file.endswith(TENSORS):
            match = _OF_A_RANK.fullmatch(file) if is_of_a_rank(file, files) else None
            stem = match[1] if match else file.removesuffix(TENSORS)
            stems.setdefault(stem, []).append(file)
    return stems


def is_of_a_rank(file: str, files: Collection[str]) -> bool:
    """True if a file of a checkpoint contains tensor parts listed in an index."""
    match = _OF_A_RANK.fullmatch(file)
    return match is not None and match[1] + INDEX in files


def ranks_in(files: Collection[str]) -> int:
    """Number of ranks that wrote a checkpoint in parts; 1 if its tensors are whole."""
    matches = (_OF_A_RANK.fullmatch(file) for file in files if is_of_a_rank(file, files))
    return max((int(match[2]) for match in matches if match), default=1)


def read_manifest(directory: Path) -> Manifest:
    """Read only the manifest of a checkpoint.

    Raises:
        DamagedCheckpoint: the manifest is missing or differs from what was written.
        RunError: the manifest cannot be read.
        SetpointError: a newer version of Setpoint wrote it.
    """
    try:
        text = retried(read_small, directory / MANIFEST)
    except OSError as error:
        raise unreadable(directory, MANIFEST, error) from error
    return parse_manifest(directory, text)


def parse_manifest(directory: Path, text: bytes) -> Manifest:
    """Parse the text of a manifest.

    Arguments:
        directory: the directory of the checkpoint, for messages.

    Raises:
        DamagedCheckpoint: the text differs from what was written.
        SetpointError: a newer version of Setpoint wrote it.
    """
    try:
        content = json.loads(text)
        del content["blake3"]
        is_whole = _seal(content) == text
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpoint(directory, f"{MANIFEST} is not a manifest") from error
    if not is_whole:
        raise DamagedCheckpoint(directory, f"{MANIFEST} does not match its own checksum")
    with as_damaged(directory):
        # The checksum excludes a flipped bit in this number.
        if content["format"] > FORMAT:
            raise SetpointError(
                f"checkpoint {directory} has the format {content['format']}, but this version of "
                f"Setpoint reads formats up to {FORMAT}; use the newer version that wrote it"
            )
        files: dict[str, Written] = {}
        for name, entry in content["files"].items():
            files[name] = decode_written(entry)
            # Files are opened by these names, and a checksum does not authenticate their author.
            if name in (".", "..") or not _PLAIN(name):
                raise DamagedCheckpoint(directory, f"{MANIFEST} names the file {name!r}")
        position = content["position"]
        if not all(isinstance(value, int | float) for value in position.values()):
            raise DamagedCheckpoint(directory, f"{MANIFEST} has the position {position}")
        return Manifest(content["step"], content["metric"], files, position)


def encode_written(written: Written) -> dict[str, Any]:
    """Size and checksum of a file as JSON."""
    return {"bytes": written.size, "blake3": written.digest}


def decode_written(entry: Mapping[str, Any]) -> Written:
    """Inverse of `encode_written`."""
    return Written(entry["bytes"], entry["blake3"])


@contextmanager
def as_damaged(directory: Path) -> Iterator[None]:
    """Context for decoding files of a checkpoint, which may come from any source.

    Raises:
        DamagedCheckpoint: the content is invalid.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = str(error) if type(error) is ValueError else repr(error)
        raise DamagedCheckpoint(
            directory, f"its content is not a valid checkpoint: {reason:.200}"
        ) from error
    except RecursionError as error:
        raise DamagedCheckpoint(directory, "a file is nested too deeply") from error


def verify(directory: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Compare files with the manifest, several at a time.

    Arguments:
        names: the files to compare; each must be in the manifest.

    Raises:
        DamagedCheckpoint: a file, named in the error, is missing or differs.
        RunError: a file exists but cannot be read.
    """
    # The largest first, so that no thread reads one alone at the end.
    order = sorted(names, key=lambda name: (-manifest.files[name].size, name))

    def compare(number: int) -> None:
        name = order[number]
        try:
            _compare_size(directory, name, manifest)
            written = retried(digest_file, directory / name)
        except OSError as error:
            raise unreadable(directory, name, error) from error
        _compare(directory, name, written, manifest.files[name])

    in_threads(compare, len(order))


def read_verified(directory: Path, manifest: Manifest, name: str) -> bytes:
    """Read a file, and compare the bytes read with the manifest.

    Raises:
        DamagedCheckpoint: the file is missing or differs.
        RunError: the file exists but cannot be read.
    """
    try:
        _compare_size(directory, name, manifest)  # before memory is allocated
        content = retried((directory / name).read_bytes)
    except OSError as error:
        raise unreadable(directory, name, error) from error
    expected = manifest.files[name]
    _compare(directory, name, Written.of(content), expected)
    return content


def compare_sizes(directory: Path, manifest: Manifest) -> None:
    """Compare the sizes of all files with the manifest.

    Raises:
        DamagedCheckpoint: a file, named in the error, is missing or has another size.
        RunError: a file cannot be accessed.
    """
    for name in sorted(manifest.files):
        try:
            _compare_size(directory, name, manifest)
        except OSError as error:
            raise unreadable(directory, name, error) from error


def _compare_size(directory: Path, name: str, manifest: Manifest) -> None:
    size, expected = retried(os.path.getsize, directory / name), manifest.files[name].size
    if size != expected:
        raise DamagedCheckpoint(directory, f"{name} has {size} bytes, not {expected}")


def _compare(directory: Path, name: str, written: Written, expected: Written) -> None:
    if difference := written.difference(expected):
        raise DamagedCheckpoint(directory, f"{name} {difference}")


def unreadable(directory: Path, name: str, error: OSError) -> RunError:
    """Error for a file that could not be read.

    Returns:
        `DamagedCheckpoint` if the file is gone, a link to itself, or on a failing disk, so that an
        older checkpoint may be usable; otherwise a plain error, such as a missing permission, which
        the user can fix.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return DamagedCheckpoint(directory, f"{name} is missing")
    if error.errno in (*FAILING, *REPLACED):
        return DamagedCheckpoint(directory, f"{name} cannot be read back ({error.strerror})")
    return RunError(f"checkpoint {directory} cannot be read: {name}: {error.strerror}")


def _seal(content: dict[str, object]) -> bytes:
    """The manifest's text: its content with a checksum."""
    bare = (json.dumps(content, indent=1) + "\n").encode()
    digest = Written.of(bare).digest
    return (json.dumps({**content, "blake3": digest}, indent=1) + "\n").encode()


def encode_state(state: Mapping[str, Any]) -> bytes:
    """Write a state as JSON.

    Floats are written exactly; NaN and the infinities as Python's `json` writes them.

    Arguments:
        state: None, bool, int, float, str, lists and dicts with text keys, nested at any depth.

    Returns:
        UTF-8 text with a final line break.

    Raises:
        TypeError: JSON would not preserve a value, whose path is in the error.
    """
    _check(state, "state")
    return (json.dumps(state, indent=1) + "\n").encode()


def decode_state(content: bytes | bytearray) -> dict[str, Any]:
    """Inverse of `encode_state`.

    Raises:
        ValueError: the content is not JSON, or not a mapping.
    """
    try:
        state = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(state, dict):
        raise ValueError("it is not a mapping")
    return state


def _check(value: Any, place: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            # JSON silently turns keys into strings: 1 would come back as "1".
            if not isinstance(key, str):
                raise TypeError(f"{place} has the key {key!r}; JSON keys must be strings")
            _check(item, f"{place}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"{place} is a {type(value).__name__}, which JSON would not return as one")


@dataclass(frozen=True, slots=True)
class Base:
    """The weights that contain the frozen parameters omitted from a checkpoint.

    Arguments:
        name: the value of `model.pretrained`.
        directory: directory of the weights when the checkpoint was saved.
        files: their sizes and checksums, which identify them.
        tensors: the omitted names, each with the safetensors dtypes to which its values are
            rounded, in order.
    """

    name: str
    directory: str
    files: dict[str, Written]
    tensors: dict[str, tuple[str, ...]]

    def encode(self) -> bytes:
        """The text of `base.json`."""
        content = {
            "name": self.name,
            "directory": self.directory,
            "files": {
                name: encode_written(written) for name, written in sorted(self.files.items())
            },
            "tensors": self.tensors,
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    def in_dtype(self, dtype: str | None) -> Base:
        """A copy with floating-point tensors in another dtype; None: unchanged."""
        if dtype is None:
            return self
        kept = {
            name: (*through, dtype) if through[-1].startswith(("F", "BF")) else through
            for name, through in self.tensors.items()
        }
        return replace(self, tensors=kept)


def read_base(directory: Path, manifest: Manifest) -> Base | None:
    """Read `base.json`; None for a checkpoint with all parameters.

    Raises:
        DamagedCheckpoint: the file is damaged or invalid.
    """
    if BASE not in manifest.files:
        return None
    with as_damaged(directory):
        content = json.loads(read_verified(directory, manifest, BASE))
        files = {name: decode_written(entry) for name, entry in content["files"].items()}
        tensors = {name: tuple(through) for name, through in content["tensors"].items()}
        return Base(content["name"], content["directory"], files, tensors)
