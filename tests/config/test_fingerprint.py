import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from setpoint.config import Config, SetpointError, resolve
from setpoint.config.fingerprint import canonical, fingerprint, identity_leaves

from .fingerprints import jobs
from .sample import AdamW, Batch, Experts, Job, Period, Sgd, Synthetic, Text, Tracker, Transformer

ROOT = Path(__file__).resolve().parents[2]

# A change here means that no older run can be resumed as the same: think twice.
GOLDEN = {
    "default": "f9013939df18f05781607509a90dbd8ce6ff23986cef1cd6cdc76374cd3329c0",
    "rich": "6dcfda9b90761a7acba24c4f4e86caeb68d8c0c9333659a0c4c46c931f618433",
    "flags": "64e55505200a6159c594bb11013240890a4c24fbe17bb0a9e68bd93c1536eadf",
    "section": "d27d2809c06ea381b6c09c32bbc2e7d9061578f637f8cb5c1e4e1c39e71f0bc0",
}


def test_golden_values() -> None:
    assert {name: fingerprint(job) for name, job in jobs().items()} == GOLDEN


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_same_in_every_python_process_hash_seed_and_locale(version: str) -> None:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        python = Path(sys.executable)
    else:
        found = sorted(Path("/root/.pyenv/versions").glob(f"{version}.*/bin/python"))
        if not found:
            pytest.skip(f"this machine has no Python {version}")
        python = found[-1]
    for seed, locale in (("0", "C"), ("1", "C.UTF-8")):
        result = subprocess.run(
            [python, "-m", "tests.config.fingerprints"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "src", "PYTHONHASHSEED": seed, "LC_ALL": locale,
                 "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout) == GOLDEN


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


def test_only_identity_counts() -> None:
    base = fingerprint(resolve(Job()))
    for same in (
        Job(name="other"),
        Job(duration="5 epochs"),
        Job(log_every="3 steps"),
        Job(folder="/elsewhere"),
        Job(tags=["x"]),
        Job(tracker=Tracker(url="http://x")),
        Job(seed=1234),
        Job(model=Transformer(head_dim=32)),
    ):
        assert fingerprint(resolve(same)) == base
    for other in (
        Job(seed=None),
        Job(seed=1),
        Job(deterministic=True),
        Job(optimizer=Sgd()),
        Job(optimizer=AdamW(betas=(0.95, 0.9))),
        Job(model=Transformer(experts=Experts())),
        Job(sources=[]),
        Job(sources=[Synthetic(), Synthetic()]),
        Job(sources=[Text(paths=["a", "b"])]),
        Job(evaluations={"a": Batch()}),
        Job(user={"a": 1}),
    ):
        assert fingerprint(resolve(other)) != base


def test_the_role_of_a_section_covers_what_is_inside() -> None:
    keys = {leaf.key for leaf in identity_leaves(resolve(Job(tracker=Tracker(url="http://x"))))}
    assert "tracker.url" not in keys
    assert {"model.type", "model.dim", "batch.size", "sources.0.length"} <= keys


def test_equal_values_of_other_spelling_are_one_identity() -> None:
    class Spelt(Config):
        every: Period = Period("1 min")
        zero: float = 0.0

    base = resolve(Spelt())
    for same in (Spelt(every="60 s"), Spelt(zero=-0.0), Spelt(every="60.0 seconds"), Spelt(zero=0)):
        assert resolve(same) == base
        assert fingerprint(resolve(same)) == fingerprint(base)


def test_the_canonical_form_is_ascii_json_with_sorted_keys() -> None:
    text = canonical(jobs()["rich"])
    values = json.loads(text)
    assert text.isascii()
    assert list(values) == sorted(values)
    assert values["optimizer.clip_norm"] == "inf"
    assert values["sources.0.weight"] == 1e22
    assert values["evaluations.a.size"] == 3


def test_a_draft_has_no_fingerprint() -> None:
    with pytest.raises(SetpointError, match="only a resolved configuration has a fingerprint"):
        fingerprint(Job())
