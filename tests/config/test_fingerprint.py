"""The fingerprint: golden values, and what does and does not change it."""

import functools
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import IDENTITY, Config, resolve
from setpoint.config.draft.walk import leaves
from setpoint.config.record.record import canonical, fingerprint
from setpoint.config.words.plain_data import plain

from ..support.cases import few
from ..support.snapshots import refused
from .fingerprints import jobs, of_presets
from .sample import Batch, Job, Period
from .strategies import jobs as drafts

ROOT = Path(__file__).resolve().parents[2]

# A change here means that no older run can be resumed as the same: think twice.
GOLDEN = {
    "default": "f9013939df18f05781607509a90dbd8ce6ff23986cef1cd6cdc76374cd3329c0",
    "rich": "6dcfda9b90761a7acba24c4f4e86caeb68d8c0c9333659a0c4c46c931f618433",
    "flags": "64e55505200a6159c594bb11013240890a4c24fbe17bb0a9e68bd93c1536eadf",
    "section": "d27d2809c06ea381b6c09c32bbc2e7d9061578f637f8cb5c1e4e1c39e71f0bc0",
}


def test_fingerprints_are_those_that_were_written_down() -> None:
    assert {name: fingerprint(job) for name, job in jobs().items()} == GOLDEN


def test_golden_values_of_the_presets() -> None:
    for name, found in expected().items():
        if name not in GOLDEN:
            text = (ROOT / "tests" / "golden" / f"{name}.txt").read_text()
            assert text.splitlines()[0] == f"fingerprint {found}", "see `make golden`"


@functools.cache
def expected() -> dict[str, str]:
    """What each process has to compute."""
    return {**GOLDEN, **of_presets()}


PLACES = (("0", "C", "UTC"), ("1", "C.UTF-8", "Asia/Kathmandu"), ("2", "tr_TR.UTF-8", "EST5"))
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


# What this process computes is another hash seed, locale and timezone already.
@pytest.mark.parametrize(
    "place",
    [*(pytest.param(place, marks=pytest.mark.slow) for place in PLACES[:2]), PLACES[2]],
    ids=lambda place: place[2],
)
@pytest.mark.parametrize("version", few(VERSIONS, ["3.11", "3.12", "3.14"]))
def test_the_same_in_every_python_hash_seed_locale_and_timezone(
    version: str, place: tuple[str, str, str]
) -> None:
    assert fingerprints(interpreter(version), place) == expected()


def interpreter(version: str) -> Path:
    """The Python of a version; the test is skipped where there is none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return Path(sys.executable)
    found = sorted(Path("/root/.pyenv/versions").glob(f"{version}.*/bin/python"))
    other = shutil.which(f"python{version}")
    if not found and other is None:
        pytest.skip(f"this machine has no Python {version}")
    return found[-1] if found else Path(str(other))


def fingerprints(python: Path, place: tuple[str, str, str]) -> dict[str, str]:
    """What a process computes, with a hash seed, a locale and a timezone."""
    seed, locale, zone = place
    result = subprocess.run(
        [python, "-m", "tests.config.fingerprints"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src", "PYTHONHASHSEED": seed, "LC_ALL": locale,
             "TZ": zone},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_order_of_fields_and_of_keys_does_not_count() -> None:
    class First(Config):
        a: int = 1
        b: str = "x"

    class Second(Config):
        b: str = "x"
        a: int = 1

    assert fingerprint(resolve(First())) == fingerprint(resolve(Second()))
    one = Job(evaluations={"a": Batch(), "b": Batch(size=2)}, user={"x": 1, "y": {"p": 1, "q": 2}})
    other = Job(
        evaluations={"b": Batch(size=2), "a": Batch()}, user={"y": {"q": 2, "p": 1}, "x": 1}
    )
    assert resolve(one) == resolve(other)
    assert fingerprint(resolve(one)) == fingerprint(resolve(other))


def test_equal_values_of_other_spelling_are_one_identity() -> None:
    class Spelt(Config):
        every: Period = Period("1 min")
        zero: float = 0.0

    base = resolve(Spelt())
    for same in (Spelt(every="60 s"), Spelt(zero=-0.0), Spelt(every="60.0 seconds"), Spelt(zero=0)):
        assert resolve(same) == base
        assert fingerprint(resolve(same)) == fingerprint(base)


def test_a_draft_has_no_fingerprint() -> None:
    with refused():
        fingerprint(Job())


def by_leaves(config: Config) -> str:
    """The canonical form, put together from the leaves by the json module."""
    kept = {leaf.key: plain(leaf.value) for leaf in leaves(config) if leaf.role is IDENTITY}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


@given(drafts, st.sampled_from(["é", "a b", "type", "x-1", "9"]))
@settings(deadline=None)
def test_the_canonical_form_is_that_of_all_leaves(draft: Job, key: str) -> None:
    draft.evaluations[key] = Batch()
    job = resolve(draft)
    for config in (job, job.optimizer, job.batch):
        assert canonical(config) == by_leaves(config)
    fork = job.evolve()
    fork.batch.size += 1
    fork.user["other"] = {"type": 1}
    changed = resolve(fork)
    assert canonical(changed) == by_leaves(changed) != canonical(job)
    again = pickle.loads(pickle.dumps(changed))
    assert canonical(again) == canonical(changed)
