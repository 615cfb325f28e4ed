import pytest

from setpoint.config import Config, ConfigError, Free, field
from setpoint.config.composition import compose
from setpoint.config.values.node import chain_of, state_of

from .helpers import flag_problems, resolved
from .sample import (
    AdamW,
    Batch,
    Experts,
    Job,
    Recurrent,
    Sgd,
    Synthetic,
    Text,
    Transformer,
)


def test_hyphens_and_underscores_are_the_same_everywhere() -> None:
    program = {"log-every": 3, "batch": {"sequence-length": 8},
               "sources": [{"type": "text", "paths": ["a"], "weight": 2}]}  # fmt: skip
    job = compose(Job, program=program).resolve()
    assert job.log_every.count == 3
    assert job.batch.sequence_length == 8
    wrong = compose(Job, program={"sources": [{"type": "synthetic", "docu-ments": 3}]})
    assert [problem.path for problem in wrong.problems] == ["sources.0.docu-ments"]
    twice = compose(Job, program={"batch": {"sequence_length": 8, "sequence-length": 9}})
    (problem,) = twice.problems
    assert problem.path == "batch.sequence-length" and "sequence_length once more" in str(problem)


def test_an_optional_section_goes_to_null_and_back() -> None:
    on = resolved("--model.experts.count=4")
    assert on.model.experts == Experts(count=4)
    assert resolved("--model.experts.count=4", "--model.experts=null").model.experts is None
    again = resolved("--model.experts.count=4", "--model.experts=null", "--model.experts.active=3")
    assert again.model.experts == Experts(count=4, active=3)
    draft = Job()
    draft.tracker = {"url": "http://x"}
    draft.tracker = None
    assert draft.tracker is None
    assert [value for _, value in chain_of(draft, "tracker")][-1] is None


def test_a_switch_of_variant_keeps_what_was_set_in_shared_fields() -> None:
    draft = Job(optimizer=AdamW(lr=1e-2, betas=(0.8, 0.9)))
    composition = compose(Job, draft, flags=["--optimizer=sgd"])
    assert composition.draft.optimizer == Sgd(lr=1e-2)
    dropped = state_of(composition.draft.optimizer).dropped
    assert [(name, value) for name, value, _, _ in dropped] == [("betas", (0.8, 0.9))]
    assert chain_of(composition.draft.optimizer, "lr")[0][0].layer == "program"
    assert resolved("--optimizer.type=adamw").optimizer == AdamW()


def test_a_switch_does_not_carry_the_defaults_of_a_factory() -> None:
    class Root(Config):
        optimizer: AdamW | Sgd = field(factory=lambda: AdamW(lr=5.0))

    assert compose(Root, flags=["--optimizer=sgd"]).resolve().optimizer == Sgd()
    assert compose(Root).resolve().optimizer.lr == 5.0


class Inner(Config):
    batch: Batch = field(factory=Batch)
    user: Free = field(factory=Free)


class First(Inner, type="first"):
    pass


class Second(Inner, type="second"):
    pass


class Outer(Config):
    inner: Inner = field(factory=First)


def test_a_switch_keeps_what_was_set_inside_shared_sections() -> None:
    base = Outer()
    base.inner.batch.size = 7
    base.inner.user.a = 1
    switched = compose(Outer, base, flags=["--inner=second"])
    assert isinstance(switched.draft.inner, Second)
    assert switched.draft.inner.batch.size == 7
    assert switched.draft.inner.user.a == 1
    switched.draft.inner.batch.size = 8
    switched.draft.inner.user.a = 2
    assert (base.inner.batch.size, base.inner.user.a) == (7, 1)


def test_items_by_index_and_key() -> None:
    job = resolved(
        "--sources", "[{type: text, paths: [a]}, synthetic]",
        "--sources.0.paths.0", "b",
        "--sources.-1.documents=5",
        "--tags", "a,b,c",
        "--tags.1=x",
        "--thresholds.loss=2",
        "--optimizer.betas.0=0.5",
        "--evaluations.quick", "{size: 2}",
        "--evaluations.quick.sequence-length=9",
        "--user.a.b", "[1, {c: null}]",
        "--user.items.x=3",
    )  # fmt: skip
    assert job.sources == (Text(paths=("b",)), Synthetic(documents=5, length=80))
    assert job.tags == ["a", "x", "c"]
    assert job.thresholds == {"loss": 2.0}
    assert job.optimizer.betas == (0.5, 0.95)
    assert job.evaluations == {"quick": Batch(size=2, sequence_length=9)}
    assert job.user.dump() == {"a": {"b": [1, {"c": None}]}, "items": {"x": 3}}


def test_the_variant_of_an_item() -> None:
    job = resolved("--sources.0=text", "--sources.0.paths=a", "--sources.0.weight=2")
    assert job.sources == (Text(paths=("a",), weight=2.0),)
    job = resolved("--sources.0.weight=2", "--sources.0.type=text", "--sources.0.paths=a")
    assert job.sources == (Text(paths=("a",), weight=2.0),)
    job = resolved("--sources.0", "{type: text, paths: [a]}")
    assert job.sources == (Text(paths=("a",)),)


@pytest.mark.parametrize(
    ("flag", "path", "message"),
    [
        ("--sources.5.weight=1", "sources.5.weight", "sources has 1 item; there is no item 5"),
        ("--sources.x=1", "sources.x", "sources is a list; 'x' names none of its items"),
        ("--sources.0.type=txt", "sources.0.type", "is not one of the valid values: got txt"),
        ("--sources.0.lenght=3", "sources.0.lenght", "unknown key: Synthetic"),
        ("--sources.0.documents.x=3", "sources.0.documents.x", "is a single value; it has no 'x'"),
        ("--optimizer.betas.0=7", "optimizer.betas.0", "is out of range: it must be >= 0, < 1"),
        ("--optimizer.betas.0=x", "optimizer.betas.0", "is not a float: got x"),
        ("--thresholds.loss=-1", "thresholds.loss", "is out of range: it must be > 0"),
        ("--thresholds.loss.x=1", "thresholds.loss.x", "thresholds.loss is a single value"),
        ("--evaluations.q.sise=1", "evaluations.q.sise", "unknown key: Batch has no field 'sise'"),
        ("--seed.x=3", "seed.x", "seed is a single value; it has no 'x' inside"),
        ("--tags.0.x=3", "tags.0.x", "tags has 0 items; there is no item 0"),
        ("--type=x", "type", "the root has no variants, so no type can be chosen"),
        ("--model={dim: 3", "model", "cannot be read at position 8: the mapping is not closed"),
        ("--user._a=3", "user._a", "cannot be a key: it is empty, dotted or begins with _"),
        ("--user={_a: 3}", "user._a", "cannot be a key"),
        ("--batch=3", "batch", "is not a section (Batch): got 3"),
        ("--tracker=web", "tracker", "is not a section (Tracker): got web"),
        ("--batch=null", "batch", "cannot be null"),
    ],
)
def test_what_cannot_be_set(flag: str, path: str, message: str) -> None:
    problems = flag_problems(flag)
    assert list(problems) == [path]
    assert message in problems[path].message


@pytest.mark.parametrize(
    ("flag", "path", "hint"),
    [
        ("--sources=[{typ: text, paths: [a]}]", "sources.0.type", "Write type in place of typ."),
        ("--sources=[{paths: [a]}]", "sources.0.type", ""),
        ("--sources.1=text", "sources.1", "sources.append adds one."),
        ("--sources.extnd=text", "sources.extnd", "Did you mean extend?"),
        ("--sources.text.paths=a", "sources.text.paths", ""),  # which is no `extend`
    ],
)
def test_what_was_meant_for_an_item(flag: str, path: str, hint: str) -> None:
    problems = flag_problems(flag)
    assert {path: problem.hint for path, problem in problems.items()} == {path: hint}


def test_an_item_of_a_mapping_is_made_where_its_fields_are_set() -> None:
    made = resolved("--evaluations.q.size=1").evaluations
    assert made == resolved("--evaluations.q={}", "--evaluations.q.size=1").evaluations
    assert made["q"].size == 1


def test_the_item_of_a_list_is_shown_not_the_whole_list() -> None:
    problems = flag_problems("--optimizer.betas", "[0.1, 7]", "--thresholds", "{a: 1, b: x}")
    assert {path: problem.value for path, problem in problems.items()} == {
        "optimizer.betas.1": "7",
        "thresholds.b": "x",
    }


def test_a_family_without_default_asks_for_its_type() -> None:
    class Root(Config):
        optimizer: AdamW | Sgd

    with pytest.raises(ConfigError, match="choose a variant first") as caught:
        compose(Root, flags=["--optimizer.lr=1"]).resolve()
    problem = caught.value.problems[0]
    assert (problem.path, problem.origin) == ("optimizer.type", "command line --optimizer.lr")
    assert compose(Root, flags=["--optimizer.lr=1", "--optimizer=sgd"]).resolve().optimizer == Sgd(
        lr=1.0
    )


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
    composition = compose(Job, program={"batch": {1: 2}, "thresholds": {3: 1.0}})
    assert sorted(problem.path for problem in composition.problems) == ["batch.1", "thresholds"]


def test_every_layer_that_touched_a_value_is_remembered() -> None:
    draft = Job(model=Recurrent(dim=8))
    composition = compose(
        Job, draft, environ={"SETPOINT__MODEL__DIM": "9"}, flags=["--model.dim=10"]
    )
    chain = chain_of(composition.resolve().model, "dim")
    assert [(origin.layer, value) for origin, value in chain] == [
        ("program", 8),
        ("environment", 9),
        ("command line", 10),
    ]
    assert isinstance(Job().model, Transformer)
