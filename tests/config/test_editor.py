"""What a layer may set: items, edits of lists and mappings, variants."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from setpoint.config import Config, ConfigError, field
from setpoint.config.composition import compose
from setpoint.config.draft.copying import draft_of
from setpoint.config.draft.walk import leaves
from setpoint.config.record.record import read_record

from ..support.snapshots import refused
from .helpers import LAYERS, resolve_through, write_record
from .sample import AdamW, Batch, Job, Sgd, Synthetic


def test_hyphens_and_underscores_are_the_same_everywhere() -> None:
    program = {"log-every": 3, "batch": {"sequence-length": 8},
               "sources": [{"type": "text", "paths": ["a"], "weight": 2}]}  # fmt: skip
    job = compose(Job, program=program).resolve()
    assert job.log_every.count == 3
    assert job.batch.sequence_length == 8
    wrong = compose(Job, program={"sources": [{"type": "synthetic", "docu-ments": 3}]})
    assert [problem.path for problem in wrong.problems] == ["sources.0.docu-ments"]
    with refused(ConfigError):
        compose(Job, program={"batch": {"sequence_length": 8, "sequence-length": 9}}).resolve()


def test_a_switch_does_not_carry_the_defaults_of_a_factory() -> None:
    class Root(Config):
        optimizer: AdamW | Sgd = field(factory=lambda: AdamW(lr=5.0))

    assert compose(Root, flags=["--optimizer=sgd"]).resolve().optimizer == Sgd()
    assert compose(Root).resolve().optimizer.lr == 5.0


@pytest.mark.parametrize(
    "flag",
    [
        "--sources.5.weight=1",
        "--sources.0.type=txt",
        "--sources.0.lenght=3",
        "--sources.0.documents.x=3",
        "--optimizer.betas.0=7",
        "--thresholds.loss=-1",
        "--evaluations.q.sise=1",
        "--tags.0.x=3",
        "--type=x",
        "--model={dim: 3",
        "--user._a=3",
        "--batch=3",
        "--batch=null",
        # What was meant for an item.
        "--sources=[{typ: text, paths: [a]}]",
        "--sources=[{paths: [a]}]",
        "--sources.1=text",
        "--sources.extnd=text",
        "--sources.text.paths=a",
    ],
)
def test_paths_and_values_that_cannot_be_set_are_refused(flag: str) -> None:
    with refused(ConfigError):
        compose(Job, flags=[flag]).resolve()


def test_a_family_without_default_asks_for_its_type() -> None:
    class Root(Config):
        optimizer: AdamW | Sgd

    with refused(ConfigError):
        compose(Root, flags=["--optimizer.lr=1"]).resolve()
    root = compose(Root, flags=["--optimizer.lr=1", "--optimizer=sgd"]).resolve()
    assert root.optimizer == Sgd(lr=1.0)


def test_a_mapping_adds_to_the_one_that_is_there() -> None:
    draft = Job(thresholds={"loss": 1.0}, evaluations={"q": Batch(size=3)})
    draft.user.a = 1
    values = {
        "thresholds": {"error": 2},
        "evaluations": {"r": {"size": 4}},
        "user": {"b": {"c": 2}},
    }
    job = compose(Job, draft, program=values).resolve()
    assert job.thresholds == {"loss": 1.0, "error": 2.0}
    assert job.evaluations == {"q": Batch(size=3), "r": Batch(size=4)}
    assert job.user.dump() == {"a": 1, "b": {"c": 2}}
    assert draft.thresholds == {"loss": 1.0}


def test_other_keys_than_texts_are_refused() -> None:
    with refused(ConfigError):
        compose(Job, program={"batch": {1: 2}, "thresholds": {3: 1.0}}).resolve()


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
    ("flags", "expected"),
    [
        ("sizes.append=4", [1, 2, 3, 4]),
        ("sizes.append=${sizes.1*10}", [1, 2, 3, 20]),
        ("sizes.extend=4,5", [1, 2, 3, 4, 5]),
        ("sizes.extend=[]", [1, 2, 3]),
        ("sizes.insert.0=4", [4, 1, 2, 3]),
        ("sizes.insert.-1=4", [1, 2, 4, 3]),
        ("sizes.remove=1,3", [2]),
        ("sizes.-1=9", [1, 2, 9]),
        ("sizes=7,8 sizes.append=9 sizes.remove=7 sizes.0=1", [1, 9]),
        ("grid.1.append=4 grid.append=[5]", ((1,), (2, 3, 4), (5,))),
        ("words.append=x", ["x"]),  # null before
        ("labels.z=3 labels.remove=[x,y]", {"z": 3}),
        # An appended item inherits nothing of the one before it.
        (
            "probes.1.size=7 probes.append={name=c}",
            (Probe(name="a"), Probe(name="b", size=7), Probe(name="c")),
        ),
    ],
)
def test_edits_of_lists_and_mappings(flags: str, expected: object) -> None:
    assert getattr(root(*flags.split()), flags.partition(".")[0].partition("=")[0]) == expected


def test_items_by_name_and_by_kind() -> None:
    assert [probe.size for probe in root("probes.b.size=5").probes] == [1, 5]
    job = compose(Job, flags=["sources.synthetic.documents=3"]).resolve()
    assert isinstance(job.sources[0], Synthetic) and job.sources[0].documents == 3


@pytest.mark.parametrize(
    ("flag", "index", "type_", "paths"),
    [
        ("sources.append={type=text, paths=[c]}", 1, "f.toml:5", "f.toml:6"),
        ("sources.append={type=text, paths=[c]}", 2, "sources.append", "sources.append"),
        ("sources.remove=0", 0, "f.toml:5", "f.toml:6"),
        ("sources.0={type=text, paths=[c]}", 0, "f.toml:2", "sources.0"),
    ],
)
def test_an_edit_leaves_the_origins_of_the_other_items(
    flag: str, index: int, type_: str, paths: str, tmp_path: Path
) -> None:
    item = '[[sources]]\ntype = "text"\npaths = ["{}"]\n'
    (tmp_path / "f.toml").write_text(item.format("a") + item.format("b"))
    job = compose(Job, str(tmp_path / "f.toml"), flags=[flag]).resolve()
    write_record(job, tmp_path)
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


@pytest.mark.parametrize(
    "flags",
    [
        "sizes.append=x", "sizes.insert.9=1", "sizes.insert=1", "sizes.remove=5", "sizes.add=1",
        "pair.append=1", "probes.append={size=0}", "probes.aa.size=1", "probes.remove=c",
        "labels.remove=z", "grid.7.append=1", "words.remove=x",
        "probes.append={name=a} probes.a.size=2",
    ],
)  # fmt: skip
def test_wrong_edits_are_explained(flags: str) -> None:
    with refused(ConfigError):
        compose(Root, flags=flags.split()).resolve()


def test_a_key_called_remove_is_refused_everywhere() -> None:
    class Holder(Config):
        labels: dict[str, Mapping[str, int]] = field(factory=dict)

    with refused():
        Holder(labels={"remove": {"a": 1}})


def test_what_is_to_be_removed_may_be_anything() -> None:
    class Outer(Config):
        many: tuple[Root, ...] = ()

    for gone in ({}, [{}], 3, None, [["x"]]):
        with refused(ConfigError):
            compose(Outer, program={"many": [{"labels": {"remove": gone}}]}).resolve()
