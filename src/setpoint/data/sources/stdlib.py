"""The standard library's own source: real text that lies on every machine with a Python."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from setpoint.config import SetpointError
from setpoint.data.document import Document
from setpoint.data.sources.config import Stdlib
from setpoint.data.sources.files import inputs_of

# Tests are left out because some Pythons ship without them, installed packages because they are
# not the standard library. Debian calls the latter dist-packages.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}
)


class StdlibSource:
    """Documents of the running Python's standard library, one for each `.py` file.

    Two calls in the same Python yield the same documents: the walk is sorted by relative path, and
    caches and installed packages are skipped. Files which are not UTF-8 are skipped too.

    Arguments:
        where: the path of `config` in the job, for messages.
        root: folder of the standard library; unset, that of the running Python. Inside a virtual
            environment this is the library of the Python it was made from.
    """

    def __init__(
        self, config: Stdlib, *, where: str = "data.sources", root: Path | None = None
    ) -> None:
        self.config = config
        self.where = where
        self.root = root or Path(sysconfig.get_path("stdlib"))

    def paths(self) -> list[str]:
        """The files to be read.

        Returns:
            paths relative to the library's folder, with forward slashes, sorted.

        Raises:
            SetpointError: the library has no `.py` files, or none match `include`.
        """
        found = sorted(self._python_files())
        if not found:
            raise SetpointError(
                f"{self.where}: type 'stdlib' finds no .py file below {self.root}: this Python "
                "keeps its library elsewhere (zipped, or compiled only).\n"
                "Valid: type 'text' with paths to text of your own, or type 'random'."
            )
        include = self.config.include
        chosen = [path for path in found if any(fnmatchcase(path, glob) for glob in include)]
        if not chosen:
            raise SetpointError(
                f"{self.where}.include: {list(include)} matches none of the {len(found)} files "
                f"below {self.root}.\n"
                "Valid: patterns on the relative path, such as '*.py', 'json/*' or 'asyncio/*.py'."
            )
        return chosen

    def documents(self) -> Iterator[Document]:
        """Read the files.

        Returns:
            an iterator of documents named `<name>/<relative path>`, sorted.

        Raises:
            SetpointError: there are no files, or one cannot be read.
        """
        for path in self.paths():
            try:
                data = (self.root / path).read_bytes()
            except OSError as error:
                raise SetpointError(
                    f"{self.where}: cannot read {self.root / path}: {error.strerror}.\n"
                    "Valid: a file this user may read; 'include' can leave it out."
                ) from error
            if is_utf8(data):
                yield Document(f"{self.config.name}/{path}", data)

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        return inputs_of({path: self.root / path for path in self.paths()})

    def _python_files(self) -> Iterator[str]:
        for folder, subfolders, files in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
            relative = PurePosixPath(Path(folder).relative_to(self.root).as_posix())
            yield from (str(relative / name) for name in files if name.endswith(".py"))


def most_tokens(config: Stdlib) -> int | None:
    """Bytes of the files; None where they cannot be listed, of which a check says why."""
    found = StdlibSource(config)
    try:
        return sum((found.root / path).stat().st_size for path in found.paths())
    except (OSError, SetpointError):
        return None


def is_utf8(data: bytes) -> bool:
    """Whether bytes are valid UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
