"""What a function is handed by mistake is told in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import setpoint as sp
from setpoint.config.layers.presets import presets

from .sample import Batch

given: Any = sp


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: given.compose({}), "compose takes the class of a configuration, got {}"),
        (lambda: given.compose(Batch, {"size": 1}), "a SOURCE that is not text takes a config"),
        (lambda: given.compose(Batch, flags="--size 1"), "flags accepts a list"),
        (lambda: given.load("s.toml"), "load takes the class of a configuration, got 's.toml'"),
        (lambda: given.compose(Batch, "nothere.txt"), "there is no file nothere.txt"),
        (lambda: given.resolve({"size": 1}), "resolve takes a configuration, got {size: 1}"),
        (lambda: given.resolve(Batch), "resolve takes a configuration, got "),
        (lambda: given.fingerprint({}), "fingerprint takes a configuration, got {}"),
        (lambda: given.json_schema({}), "json_schema takes the class of a configuration"),
        (lambda: given.verify(sp.resolve(Batch()), {"file"}), "'file'. Did you mean files?"),
        (lambda: given.verify(Batch()), "verify takes a resolved configuration, got a draft"),
        (lambda: given.cautions_of(Batch()), "cautions_of takes a resolved configuration"),
        (lambda: given.is_set(Batch(), "sise"), "Did you mean size?"),
        (lambda: given.ref("jay*"), "ref('jay*') cannot be read as arithmetic on fields"),
        (lambda: given.Period("3 stps"), "Period('3 stps') has an unknown unit 'stps'"),
        (lambda: given.DType("bf61"), "Did you mean bfloat16?"),
        (lambda: given.ByteSize("3 XB"), "ByteSize('3 XB') has an unknown unit"),
    ],
)
def test_mistakes(call: Callable[[], object], words: str) -> None:
    with pytest.raises(sp.SetpointError) as caught:
        call()
    assert words in str(caught.value)


def test_a_path_and_a_folder_with_a_record_are_sources(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("size = 4\n")
    config = sp.compose(Batch, file, files=[file]).resolve()
    assert config.size == 4
    for name, text in sp.record_files(config).items():
        (tmp_path / name).write_text(text)
    assert sp.compose(Batch, tmp_path).resolve() == config


def test_two_presets_of_one_name_in_one_module(tmp_path: Path) -> None:
    text = "import setpoint as sp\nfrom tests.config.sample import Batch\n"
    one = '@sp.preset\ndef twice() -> Batch:\n    """It."""\n    return Batch()\n'
    names = {"__name__": "somewhere"}
    try:
        for _ in range(2):  # a module that is loaded again
            exec(compile(text + one, "somewhere.py", "exec"), names)
        with pytest.raises(TypeError, match="somewhere defines two presets 'twice'"):
            exec(compile(text + one + one, "somewhere.py", "exec"), names)
    finally:
        presets.pop("twice", None)


def test_what_objects_show_of_themselves() -> None:
    draft = Batch()
    assert repr(sp.compose(Batch)) == "Composition('Batch', Batch())"
    draft.size = 3
    (found,) = [
        each
        for each in sp.differences(sp.resolve(Batch()), sp.resolve(draft))
        if each.path == "size"
    ]
    assert repr(found).startswith("Difference('size', ") and " -> 3 (program (" in str(found)
    nothing = sp.verify(sp.resolve(draft))
    assert repr(nothing) == "Verification([], [], [])" and str(nothing) == "nothing was found"
    assert repr(sp.Caution("code", "x", "y")) == "Caution('code', 'x', 'y')"
