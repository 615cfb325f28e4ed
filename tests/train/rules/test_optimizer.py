"""Patterns on names are held against the model's parameters before anything is built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from setpoint.config import ConfigError
from setpoint.train.rules.model import pattern_problems

from ...support.snapshots import compare
from ..small import small_job

ATTENTION = "{pattern=attention, lr_multiplier=2}"
OPTIONS = "{beta1=0.9, lr=1, betas=[1, 2], epz=1, implementation=loop}"
CASES = {
    "group_matches_nothing": ("optimizer.groups=[{pattern=embeding, lr_multiplier=0.1}]",),
    "groups_take_all": (f"optimizer.groups=[{ATTENTION}, {{pattern=query, lr_multiplier=3}}]",),
    "group_sets_nothing": ("optimizer.groups=[{pattern=attention}]",),
    "group_options": (f"optimizer.groups=[{{pattern=embedding, options={OPTIONS}}}]",),
    "no_decay_pattern_matches_nothing": ('optimizer.no_decay_patterns=["bias$"]',),
    "adamw_pattern_matches_no_matrix": ("optimizer=muon", "optimizer.adamw_patterns=[embedding]"),
    "two_ways_to_clip": ("optimizer.clip_norm=1", "optimizer.clip_value=0.5"),
    "pattern_is_none": ('optimizer.groups=[{pattern="a(", lr_multiplier=2}]',),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_person_reads(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        small_job(tmp_path, *CASES[name])
    compare(f"train/{name}", str(caught.value))


def test_what_matches_is_fine(tmp_path: Path) -> None:
    flags = (
        "optimizer=muon",
        'optimizer.no_decay_patterns=["^embedding"]',
        'optimizer.adamw_patterns=["query"]',
        "optimizer.groups=[{pattern=norm, lr_multiplier=2}]",
        "model.moe.experts=2",
    )
    assert list(pattern_problems(small_job(tmp_path, *flags))) == []


def test_no_torch_is_needed() -> None:
    program = (
        "import sys\n"
        "from setpoint.config import resolve\n"
        "from setpoint.presets.tiny import tiny\n"
        "job = tiny()\n"
        "job.optimizer.groups = [{'pattern': 'norm', 'lr_multiplier': 2}]\n"
        "resolve(job)\n"
        "assert 'setpoint.model.parameters' in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
