import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from setpoint.config import Config, Problem, field
from setpoint.config.composition import compose
from setpoint.config.draft.copying import draft_of
from setpoint.config.draft.walk import leaves
from setpoint.config.record.record import read_record, record_files

from ..support.snapshots import compare
from .helpers import LAYERS, problems_of, resolve_through
from .sample import Batch, Job, Synthetic, Text


class Probe(Config):
    name: str = field(default="probe")
    size: int = field(default=1, ge=1)


class Root(Config):
    sizes: list[int] = field(factory=lambda: [1, 2, 3], item_ge=0)
    grid: tuple[tuple[int, ...], ...] = ((1,), (2, 3))
    pair: tuple[int, str] = (1, "a")
    probes: tuple[Probe, ...] = field(factory=lambda: (Probe(name="a"), Probe(name="b")))
    labels: dict[str, int] = field(factory=lambda: {"x": 1, "y": 2})
    words: list[str] | None = None


class Kind(Config):
    pass


class B(Kind, type="b"):
    pass


class D(Kind, type="d"):
    pass


class Named(Config):
    by_name: dict[str, Kind] = field(factory=lambda: {"usual": B()})


def root(*flags: str) -> Root:
    return compose(Root, flags=flags).resolve()


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("sizes.append=4", [1, 2, 3, 4]),
        ("sizes.extend=4,5", [1, 2, 3, 4, 5]),
        ("sizes.extend=[]", [1, 2, 3]),
        ("sizes.insert.0=4", [4, 1, 2, 3]),
        ("sizes.insert.3=4", [1, 2, 3, 4]),
        ("sizes.insert.-1=4", [1, 2, 4, 3]),
        ("sizes.remove=2", [1, 3]),
        ("sizes.remove=1,3", [2]),
        ("sizes.-1=9", [1, 2, 9]),
    ],
)
def test_a_list_of_plain_values(flag: str, expected: list[int]) -> None:
    assert root(flag).sizes == expected


def test_edits_follow_one_another() -> None:
    assert root("sizes=7,8", "sizes.append=9", "sizes.remove=7", "sizes.0=1").sizes == [1, 9]


def test_an_item_may_be_a_reference() -> None:
    assert root("sizes.append=${sizes.1 * 10}").sizes == [1, 2, 3, 20]
    assert root("sizes.insert.0=${probes.0.size}").sizes == [1, 1, 2, 3]


def test_a_list_of_lists() -> None:
    assert root("grid.1.append=4", "grid.append=[5]").grid == ((1,), (2, 3, 4), (5,))


def test_a_list_that_is_null_is_begun() -> None:
    assert root("words.append=x").words == ["x"]


def test_items_by_name_and_by_kind() -> None:
    assert [probe.size for probe in root("probes.b.size=5").probes] == [1, 5]
    job = compose(Job, flags=["sources.synthetic.documents=3"]).resolve()
    assert isinstance(job.sources[0], Synthetic) and job.sources[0].documents == 3


def test_sections_are_put_in_and_taken_out() -> None:
    job = compose(
        Job,
        flags=[
            "--sources.append",
            "{type=text, paths=[a, b]}",
            "sources.insert.0=text",
            "sources.0.paths=c",
            "sources.remove=synthetic",
        ],
    ).resolve()
    assert [source.paths for source in job.sources if isinstance(source, Text)] == [
        ("c",),
        ("a", "b"),
    ]


def test_the_others_keep_their_origins() -> None:
    composition = compose(Job, flags=["sources.0.documents=3", "sources.append={type=synthetic}"])
    first = composition.resolve().sources[0]
    from setpoint.config.values.node import chain_of

    assert chain_of(first, "documents")[-1][0].label == "sources.0.documents"


@pytest.mark.parametrize(
    ("flag", "index", "type_", "paths"),
    [
        ("sources.append={type=text, paths=[c]}", 0, "f.toml:2", "f.toml:3"),
        ("sources.append={type=text, paths=[c]}", 1, "f.toml:5", "f.toml:6"),
        ("sources.append={type=text, paths=[c]}", 2, "sources.append", "sources.append"),
        ("sources.insert.0=synthetic", 2, "f.toml:5", "f.toml:6"),
        ("sources.remove=0", 0, "f.toml:5", "f.toml:6"),
        ("sources.0={type=text, paths=[c]}", 0, "f.toml:2", "sources.0"),
        ("sources.0={type=text, paths=[c]}", 1, "f.toml:5", "f.toml:6"),
    ],
)
def test_an_edit_leaves_the_origins_of_the_other_items(
    flag: str, index: int, type_: str, paths: str, tmp_path: Path
) -> None:
    item = '[[sources]]\ntype = "text"\npaths = ["{}"]\n'
    (tmp_path / "f.toml").write_text(item.format("a") + item.format("b"))
    job = compose(Job, str(tmp_path / "f.toml"), flags=[flag]).resolve()
    for name, text in record_files(job).items():
        (tmp_path / name).write_text(text)
    for config in (job, draft_of(job), read_record(Job, str(tmp_path))[0]):
        found = {leaf.key: leaf.describe_origin() for leaf in leaves(config)}
        assert type_ in found[f"sources.{index}.type"]
        assert paths in found[f"sources.{index}.paths"]
    chains = {leaf.key: leaf.chain for leaf in leaves(pickle.loads(pickle.dumps(job)))}
    assert ("f.toml" in chains[f"sources.{index}.type"][-1][0].label) is ("f.toml" in type_)


def test_an_entry_of_a_mapping_keeps_the_layer_that_put_it_there() -> None:
    config = compose(Named, flags=["by_name.a=b", "by_name.c={type: d}"]).resolve()
    found = {leaf.key: leaf.describe_origin() for leaf in leaves(config)}
    assert found == {
        "by_name.a.type": "command line by_name.a",
        "by_name.c.type": "command line by_name.c",
        "by_name.usual.type": "default",
    }


def test_keys_are_taken_out_of_a_mapping() -> None:
    assert root("labels.remove=x").labels == {"y": 2}
    assert root("labels.z=3", "labels.remove=[x, y]").labels == {"z": 3}


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "environment"])
def test_every_layer_edits_alike(layer: str, tmp_path: Path) -> None:
    values = {
        "sizes": {"remove": [1], "append": 4},
        "labels": {"remove": ["x"], "z": 3},
        "probes": {"0": {"size": 2}, "extend": [{"name": "c"}], "insert": {"1": {"name": "m"}}},
    }
    config = resolve_through(layer, values, tmp_path, Root)
    assert isinstance(config, Root)
    assert config.sizes == [2, 3, 4]
    assert config.labels == {"y": 2, "z": 3}
    assert [(probe.name, probe.size) for probe in config.probes] == [
        ("a", 2),
        ("m", 1),
        ("b", 1),
        ("c", 1),
    ]


def test_an_appended_item_inherits_nothing() -> None:
    # Elsewhere an appended item took over the values of the one before it.
    probes = root("probes.1.size=7", "probes.append={name=c}").probes
    assert probes[-1] == Probe(name="c")


def test_an_item_given_as_a_mapping_is_changed_not_replaced() -> None:
    job = compose(Job, flags=["sources.0.documents=5", "sources.0={weight=2}"]).resolve()
    assert (
        job.sources[0]
        == compose(Job, flags=["sources.0.documents=5", "sources.0.weight=2"]).resolve().sources[0]
    )
    switched = compose(
        Job, flags=["sources.0.weight=3", "sources.0={type=text, paths=[x]}"]
    ).resolve()
    assert isinstance(switched.sources[0], Text) and switched.sources[0].weight == 3


def test_mappings_of_sections() -> None:
    job = compose(
        Job, flags=["evaluations={long={size=8}, short={}}", "evaluations.remove=short"]
    ).resolve()
    assert job.evaluations == {"long": Batch(size=8)}


MISTAKES = [
    "sizes.append=x",
    "sizes.append=-1",
    "sizes.insert.9=1",
    "sizes.insert.x=1",
    "sizes.insert=1",
    "sizes.append.0=1",
    "sizes.remove=5",
    "sizes.add=1",
    "pair.append=1",
    "probes.append={size=0}",
    "probes.append={siez=2}",
    "probes.aa.size=1",
    "probes.remove=c",
    "labels.remove=z",
    "grid.7.append=1",
    "words.remove=x",
]


def test_mistakes_are_explained() -> None:
    found: list[Problem] = []
    for flag in MISTAKES:
        problems = problems_of(lambda flag=flag: compose(Root, flags=[flag]).resolve())
        assert len(problems) == 1, flag
        found.extend(problems)
    compare("config/edits_of_lists", "\n\n".join(p.render() for p in found))


def test_two_items_of_one_name() -> None:
    flags = ["probes.append={name=a}", "probes.a.size=2"]
    (problem,) = problems_of(lambda: compose(Root, flags=flags).resolve())
    assert "has 2 items 'a'" in problem.message and problem.valid == ("0", "2")


def test_a_key_called_remove_is_refused_everywhere() -> None:
    class Holder(Config):
        labels: dict[str, Mapping[str, int]] = field(factory=dict)

    with pytest.raises(Exception, match="takes keys out"):
        Holder(labels={"remove": {"a": 1}})


def test_what_is_to_be_removed_may_be_anything() -> None:
    class Outer(Config):
        many: tuple[Root, ...] = ()

    for gone in ({}, [{}], 3, None, [["x"]]):
        program = {"many": [{"labels": {"remove": gone}}]}
        (problem,) = problems_of(lambda p=program: compose(Outer, program=p).resolve())
        assert problem.path == "many.0.labels.remove"
