"""The loss curves of the small presets are those that are kept, bit for bit on a known machine."""

import json
import os
import warnings
from pathlib import Path

import pytest

from . import curves
from .support.cases import few
from .support.forks import Forks

ROOT = Path(__file__).resolve().parent.parent
# One with experts.
AGAIN = ("qwen3-moe-tiny",)
COMPUTED: dict[str, list[float]] = {}


def computed(name: str) -> list[float]:
    if name not in COMPUTED:
        COMPUTED[name] = curves.curve(name)
    return COMPUTED[name]


@pytest.mark.parametrize(
    "name", few(curves.names(), ["deepseek-tiny", "gemma3-tiny", "qwen3-moe-tiny", "tiny"])
)
@pytest.mark.filterwarnings("default:no curve:UserWarning")
def test_the_curve_is_the_one_that_is_kept(name: str) -> None:
    found = computed(name)
    verdict = curves.judge(found, curves.kept(name))
    if not verdict.exact:
        warnings.warn(
            f"no curve of {name} is kept for {curves.machine()}; compared within rounding only",
            stacklevel=1,
        )
    assert verdict.different is None, (
        f"the loss of {name} differs from update {verdict.different + 1} on. If that is meant, run "
        f"`make golden`, read its diff, and say in CHANGELOG.md what changes for whom. Now: {found}"
    )


def test_it_is_the_same_in_another_process_and_folder(tmp_path: Path, forks: Forks) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    status, output = forks.run(["-m", "tests.curves", *AGAIN], tmp_path, variables)
    assert status == 0, output
    assert json.loads(output) == {name: computed(name) for name in AGAIN}
    assert not list(tmp_path.iterdir())


def test_each_small_preset_has_a_curve_and_learns() -> None:
    assert {path.stem for path in curves.FOLDER.glob("*.json")} == set(curves.names())
    for name in curves.names():
        for losses in curves.kept(name).values():
            assert losses[-1] < losses[0] - 1


def test_any_bit_counts_on_a_known_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "FOLDER", tmp_path)
    losses = [3.0] * 8
    assert curves.rewrite("x", losses) == [f"new: {curves.machine()}"]
    assert curves.judge(losses, curves.kept("x")) == (True, None)
    bit = [*losses[:3], 3.0000000000000004, *losses[4:]]
    assert curves.judge(bit, curves.kept("x")) == (True, 3)
    elsewhere = {"another machine": losses}
    assert curves.judge(bit, elsewhere) == (False, None)
    assert curves.judge([3.0001, *losses[1:]], elsewhere) == (False, 0)
    assert curves.judge([*losses[:6], 3.01, 3.1], elsewhere) == (False, 7)
    # A changed curve takes those of other machines with it: they are of older code.
    (tmp_path / "x.json").write_text(json.dumps({**elsewhere, curves.machine(): losses}))
    assert curves.rewrite("x", losses) == []
    assert len(curves.kept("x")) == 2
    assert curves.rewrite("x", bit) == ["update 4: 3.0 -> 3.0000000000000004"]
    assert list(curves.kept("x")) == [curves.machine()]
