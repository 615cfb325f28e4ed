from setpoint.config import Config, Problem, dead, field, resolve, rule
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import describe_value

from .helpers import flag_problems, problems_of, resolved
from .sample import AdamW, Batch, Experts, Job, Sgd, Synthetic, Transformer


def test_resolving_twice_changes_nothing() -> None:
    config = resolved("--model.dim=64", "--model.heads=4", "--seed=${batch.size}")
    assert resolve(config) == config
    assert hash(resolve(config)) == hash(config)


def test_everything_is_reported_together() -> None:
    problems = flag_problems(
        "--optimizer.lrr=3", "--seed=x", "--model.heads=5", "--sources", "[{type: text}]",
        "--model.dropout", "${nothing}", "--model.experts", "{count: 2, active: 3}",
        "--optimizer=sgd", "--optimizer.momentum=0", "--optimizer.nesterov",
    )  # fmt: skip
    assert list(problems) == [
        "model.dropout",
        "model.experts.active",
        "model.heads",
        "optimizer.lrr",
        "optimizer.nesterov",
        "seed",
        "sources.0.paths",
    ]


def test_two_layers_that_contradict_are_both_named() -> None:
    draft = Job(model=Transformer(dim=64))
    (problem,) = problems_of(
        lambda: compose(Job, draft, environ={"SETPOINT__MODEL__HEADS": "5"}).resolve()
    )
    assert problem.origin == "environment variable SETPOINT__MODEL__HEADS"
    assert problem.also[0].startswith("model.dim = 64 (program (")
    assert "test_resolve.py:" in problem.also[0]


def test_dead_knobs_only_count_when_they_were_set() -> None:
    assert resolve(Job(optimizer=Sgd(momentum=0))).optimizer.nesterov is False
    # A complete file names every value; one that equals its default does no harm.
    assert resolve(Job(optimizer=Sgd(momentum=0, nesterov=False))).optimizer.momentum == 0
    (problem,) = problems_of(lambda: resolve(Job(optimizer=Sgd(momentum=0, nesterov=True))))
    assert problem.path == "optimizer.nesterov"
    assert problem.message.startswith("has no effect: without momentum")

    class Root(Config):
        optimizer: Sgd = field(factory=lambda: Sgd(momentum=0, nesterov=True))

    assert resolve(Root()).optimizer.nesterov


def test_items_that_were_changed_in_place_are_checked() -> None:
    draft = Job(thresholds={"loss": 1.0})
    draft.thresholds["loss"] = -1.0
    (problem,) = problems_of(lambda: resolve(draft))
    assert (problem.path, problem.value) == ("thresholds.loss", "-1.0")
    assert "test_resolve.py" in str(problem.origin)


def test_a_section_in_two_places_is_checked_once() -> None:
    shared = Experts(count=2, active=3)

    class Root(Config):
        a: Experts = field(factory=Experts)
        b: Experts = field(factory=Experts)

    (problem,) = problems_of(lambda: resolve(Root(a=shared, b=shared)))
    assert problem.path == "a.active"


def test_a_check_that_reads_a_wrong_value_says_nothing_more() -> None:
    class Root(Config):
        a: int = field(default=1, ge=1)
        b: tuple[int, ...] = (1, 2)

        @rule
        def _check_first(self) -> list[Problem]:
            return [Problem("a", "is odd")] if self.a % 2 else []

        @rule
        def _check_second(self) -> list[Problem]:
            return [Problem("b.1", "is two", also=("a",), valid=["3"])] if self.b[1] == 2 else []

        @dead("a")
        def _dead_a(self) -> str | None:
            return "b is empty" if not self.b else None

    assert [p.path for p in problems_of(lambda: resolve(Root()))] == ["a", "b.1"]
    problems = problems_of(lambda: compose(Root, flags=["--a=0", "--b=[x]"]).resolve())
    assert [problem.path for problem in problems] == ["a", "b.0"]
    assert problems_of(lambda: resolve(Root(b=[1, 2])))[1].value == "2"


def test_values_and_origins_as_texts() -> None:
    job = resolve(Job(sources=[Synthetic(weight=2)], evaluations={"q": Batch(size=3)}))
    for path, value in (
        ("seed", "1234"),
        ("model", "transformer"),
        ("sources.0.weight", "2.0"),
        ("sources.0", "synthetic"),
        ("evaluations.q.size", "3"),
        ("duration", "'300 steps'"),
        ("optimizer.betas", "[0.9, 0.95]"),
    ):
        assert describe_value(job, (), path)[0] == value, path
    assert describe_value(job, (), "seed")[1] == "default"
    assert describe_value(job, (), "") == (None, None)
    assert isinstance(job.optimizer, AdamW)
