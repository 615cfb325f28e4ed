"""Flags as a layer: their spellings, switches and order."""

import pytest

from setpoint.config import SetpointError
from setpoint.config.composition import compose
from setpoint.config.layers.flags import Word, read_flags

from ...support.snapshots import refused
from ..helpers import flag_problems, resolved
from ..sample import Job, Recurrent


def test_switches_need_no_value() -> None:
    assert resolved("--deterministic").deterministic
    assert resolved("--deterministic", "true").deterministic
    assert not resolved("--deterministic", "false").deterministic
    assert not resolved("--deterministic=false").deterministic
    assert not resolved("--deterministic", "--no-deterministic").deterministic
    assert resolved("--no-deterministic", "--deterministic").deterministic
    assert resolved("--optimizer=sgd", "--optimizer.nesterov", "--seed", "3").seed == 3
    assert not resolved("--optimizer=sgd", "--no-optimizer.nesterov").optimizer.nesterov
    assert list(flag_problems("--deterministic=ture")) == ["deterministic"]


@pytest.mark.parametrize(
    "flags",
    [
        "--seed", "--seed --name=x", "--optimizer.nestrov", "stray", "-x", "-x=3", "=3", "",
        "--no-deterministic maybe", "--user.no-x", "--optimizer.no-nesterov",
    ],
)  # fmt: skip
def test_words_that_are_no_overrides_are_refused(flags: str) -> None:
    with refused():
        compose(Job, flags=flags.split(" "))


def test_a_later_flag_beats_an_earlier_one_also_for_whole_sections() -> None:
    assert resolved("--model.dim=12", "--model", "{dim: 24}").model.dim == 24
    assert resolved("--model", "{dim: 24}", "--model.dim=12").model.dim == 12
    assert resolved("--model", "{type: recurrent, dim: 3}", "--model.dim=4").model == Recurrent(
        dim=4
    )
    assert resolved("--sources.0.weight=2", "--sources", "[synthetic]").sources[0].weight == 1
    job = resolved("--sources.0.documents=3", "--sources", "[synthetic, synthetic]",
                   "--sources.1.documents=4")  # fmt: skip
    assert job.sources[1].documents == 4


def test_flags_beyond_the_limit_of_bytes_are_refused() -> None:
    huge = "x" * 200_000
    for flag in (f"--{huge}=1", f"--name={huge}", f"--seed={'9' * 5000}", f"--optimizer.lr={huge}",
                 f"--duration={huge}", f"--tags={'[' * 5000}", f"--model={'{a:' * 5000}",
                 f"--user.a={'[' * 5000}", f"--model.dim=${{{'1+' * 5000}1}}",
                 f"--{'a.' * 5000}b=1", f"--user.{'a.' * 500}b=1"):  # fmt: skip
        try:
            compose(Job, flags=[flag]).resolve()
        except SetpointError as error:
            assert len(str(error)) < 3000


def test_a_word_knows_its_place() -> None:
    word = Word("--seed=1", "args.txt:3")
    assert (word, word.place) == ("--seed=1", "args.txt:3")
    assert [flag.label for flag in read_flags(Job, [word, "--seed", "2"])] == [
        "--seed (args.txt:3)",
        "--seed",
    ]
