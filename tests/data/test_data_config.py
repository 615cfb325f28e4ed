from typing import Any

import pytest

from setpoint.config import ConfigError, resolve
from setpoint.data.config import Data, Mixture, MixturePhase
from setpoint.data.sources.config import Random, Stdlib, Text


def problems(data: Data) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        resolve(data)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_all_problems_are_reported_together() -> None:
    data = Data(
        held_out=0.5,
        sources=(
            Text(paths=(), separator=""),
            Text(paths=("a", "")),
            Stdlib(include=(), name="text"),
            Random(),
        ),
    )
    assert problems(data) == {
        "sources.0.paths": "is empty",
        "sources.0.separator": "has no effect: each row is a document",
        "sources.1.name": "is already the name of sources.0",
        "sources.1.paths.1": "is empty",
        "sources.2.include": "is empty",
        "sources.2.name": "is already the name of sources.0",
    }


def test_a_number_of_documents_held_out_is_whole() -> None:
    assert problems(Data(held_out=1.5)) == {
        "held_out": "is neither a fraction below 1 nor an integer number of documents"
    }
    assert resolve(Data(held_out=1000)).held_out == 1000


def test_no_sources_and_no_paths_are_refused() -> None:
    assert problems(Data(sources=())) == {"sources": "is empty"}
    assert set(problems(Data(sources=(Text(),)))) == {"sources.0.paths"}


TWO = (Random(name="a", weight=3.0), Random(name="b", weight=1.0))
UNWEIGHED = (Random(name="a"), Random(name="b"))
NO_WEIGHT = "applies to mixtures only, and no source has a weight"
LATER = MixturePhase(start="9 steps", weights={"a": 1.0})


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"sources": (TWO[0], UNWEIGHED[1])},
         {"sources.1.weight": "is null, and data.sources.0.weight is given"}),
        ({"sources": (Random(name="a", epochs=2.0),)},
         {"sources.0.epochs": "applies to mixtures only, and no source has a weight"}),
        ({"sources": UNWEIGHED, "phases": (LATER,), "anneal": LATER},
         {"phases": NO_WEIGHT, "anneal": NO_WEIGHT}),
        ({"sources": UNWEIGHED, "mixture": Mixture(temperature=2.0)},
         {"mixture.temperature": "has no effect: no source has a weight"}),
        ({"sources": (TWO[0].evolve(weight=0.0), TWO[1].evolve(weight=0.0))},
         {"sources.0.weight": "is 0 for all sources"}),
        ({"sources": TWO, "anneal": MixturePhase(start="9 steps", weights={"web": 1.0})},
         {"anneal.weights.web": "is not a source"}),
        ({"sources": TWO, "phases": (MixturePhase(start="9 steps", weights={"a": 0.0, "b": 0.0}),)},
         {"phases.0.weights": "are 0 for all sources"}),
        ({"sources": TWO, "anneal": MixturePhase(start="2 epochs", weights={"a": -1.0})},
         {"anneal.start": "is not a number of steps or tokens above 0",
          "anneal.weights.a": "is out of range"}),
        ({"sources": TWO, "anneal": LATER.evolve(start="0 steps")},
         {"anneal.start": "is not a number of steps or tokens above 0"}),
        ({"sources": TWO, "phases": (LATER,), "anneal": LATER.evolve(start="10 steps")},
         {"anneal": "has no effect: weights and lr_factor are the same as before"}),
    ],
)  # fmt: skip
def test_mixtures_and_phases_that_make_no_sense(
    given: dict[str, Any], wrong: dict[str, str]
) -> None:
    assert problems(Data(**given)) == wrong
