"""Names of PyTorch that are not public are in one file, and one that is missing is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import setpoint.compile
from setpoint.compile.internals import internal
from setpoint.config import SetpointError

from ..conftest import SourceFile


@pytest.mark.parametrize("module", ["torch._dynamo.utils", "torch._dynamo.gone"])
def test_a_name_that_this_pytorch_lacks_is_refused_by_its_version(module: str) -> None:
    said = f"PyTorch {torch.__version__} has no {module}.no_such_name"
    with pytest.raises(SetpointError, match=re.escape(said)):
        internal(module, "no_such_name")


def test_no_other_file_imports_them(source_files: dict[str, SourceFile]) -> None:
    private = re.compile(r"(import|from) torch\._(dyn|ind)|torch\._(dynamo|inductor)\.\w+\(")
    found = [name for name, file in source_files.items() if private.search(file.text)]
    assert not found
    text = (Path(setpoint.compile.__file__).parent / "internals.py").read_text()
    assert "torch._dynamo" in text
