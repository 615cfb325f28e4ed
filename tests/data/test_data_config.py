from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from setpoint.config import IDENTITY, Config, ConfigError, SetpointError, resolve
from setpoint.config.record.record import fingerprint
from setpoint.data.config import Data, Mixture, MixturePhase
from setpoint.data.corpus import Corpus
from setpoint.data.sources.config import Questions, Random, SourceConfig, Stdlib, Text
from setpoint.data.sources.synthetic import RandomSource
from setpoint.data.sources.texts import StdlibSource, TextSource
from setpoint.data.tokenizers.config import Bytes, TokenizerConfig
from setpoint.data.tokenizers.tokenizer import ByteTokenizer
from setpoint.editor_schema.help import class_help, field_help

SECTIONS: list[type[Config]] = [
    Data,
    SourceConfig,
    Stdlib,
    Text,
    Random,
    Questions,
    TokenizerConfig,
    Bytes,
]


def problems(data: Data) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        resolve(data)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_importing_the_sections_imports_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, setpoint.data.config;"
        "print([m for m in ('numpy', 'torch', 'rich', 'yaml', 'ruamel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_default_is_the_standard_library_with_one_document_in_twenty_held_out() -> None:
    data = resolve(Data())
    assert [type(source) for source in data.sources] == [Stdlib]
    assert data.held_out == 0.05


@pytest.mark.parametrize("section", SECTIONS)
def test_everything_has_help_and_is_part_of_the_identity(section: type[Config]) -> None:
    assert class_help(section)
    for name, info in section.__setpoint__.fields.items():
        assert field_help(section, name)
        assert info.role is IDENTITY


@pytest.mark.parametrize(
    ("config", "owner"),
    [(Stdlib(), StdlibSource), (Text(paths=("a",)), TextSource), (Random(), RandomSource)],
)
def test_sources_build_their_owner(config: SourceConfig, owner: type) -> None:
    assert isinstance(config.build(where="data.sources.0"), owner)


def test_data_and_tokenizer_build_the_corpora() -> None:
    corpora = resolve(Data(sources=(Random(),))).build(tokenizer=Bytes().build())
    assert isinstance(Bytes().build(), ByteTokenizer)
    assert all(isinstance(corpus, Corpus) for corpus in (*corpora.train, corpora.held_out))


def test_variants_are_chosen_by_type() -> None:
    data = Data(sources=[{"type": "text", "paths": ["a.txt"]}, {"type": "random", "seed": 7}])
    assert [type(source) for source in resolve(data).sources] == [Text, Random]


@pytest.mark.parametrize(
    "changed",
    [
        Data(held_out=0.1),
        Data(sources=(Stdlib(), Random())),
        Data(sources=(Stdlib(name="other"),)),
        Data(sources=(Stdlib(include=("json/*",)),)),
        Data(sources=(Random(),)),
        Data(sources=(Random(name="other"),)),
        Data(sources=(Random(documents=2),)),
        Data(sources=(Random(length=2),)),
        Data(sources=(Random(pattern="uniform"),)),
        Data(sources=(Random(alphabet=2),)),
        Data(sources=(Random(seed=2),)),
        Data(sources=(Text(paths=("a",)),)),
        Data(sources=(Text(paths=("b",)),)),
        Data(sources=(Text(paths=("a",), name="other"),)),
        Data(sources=(Text(paths=("a",), separator="\n"),)),
    ],
)
def test_each_field_changes_the_fingerprint(changed: Data) -> None:
    base = [Data(), Data(sources=(Random(),)), Data(sources=(Text(paths=("a",)),))]
    same = [fingerprint(resolve(changed)) == fingerprint(resolve(data)) for data in base]
    assert same == [changed == data for data in base]


@pytest.mark.parametrize(
    ("section", "field", "value", "words"),
    [
        (Data, "held_out", -0.1, ">= 0"),
        (Data, "held_out", float("inf"), "held_out"),
        (Data, "held_out", "much", "'much'"),
        (Data, "heldout", 0.1, "held_out"),
        (Random, "alphabet", 1, ">= 2, <= 256"),
        (Random, "alphabet", 257, ">= 2, <= 256"),
        (Random, "documents", 0, ">= 1"),
        (Random, "length", 0, ">= 1"),
        (Random, "seed", -1, ">= 0"),
        (Random, "pattern", "markow", "markov"),
        (Stdlib, "name", "a/b", "does not match the pattern"),
        (Text, "name", "", "does not match the pattern"),
        (Text, "paths", "a.txt", "list"),
    ],
)
def test_a_wrong_value_is_refused_at_once(
    section: type[Config], field: str, value: Any, words: str
) -> None:
    with pytest.raises(SetpointError) as caught:
        section(**{field: value})
    assert words in str(caught.value)


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
        ({"sources": TWO, "phases": (LATER,), "anneal": LATER.evolve(start="10 steps")},
         {"anneal": "has no effect: weights and lr_factor equal those before it"}),
    ],
)  # fmt: skip
def test_mixtures_and_phases_that_make_no_sense(
    given: dict[str, Any], wrong: dict[str, str]
) -> None:
    assert problems(Data(**given)) == wrong


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"start": "2 epochs"}, "start"),
        ({"start": "0 steps"}, "start"),
        ({"start": "9 steps", "weights": {"a": -1.0}}, "weights.a"),
    ],
)
def test_phases_with_values_out_of_range(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(Data(sources=TWO, anneal=MixturePhase(**{"weights": {"a": 1.0}, **given})))
    assert [problem.path for problem in caught.value.problems] == [f"anneal.{path}"]
