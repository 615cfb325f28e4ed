"""The file and line from which Python sets a value."""

from pathlib import Path

from setpoint.config import field
from setpoint.config.draft.config import Config
from setpoint.config.values.node import chain_of

from .sample import AdamW, Batch, Job, Sgd, Synthetic, Transformer


def line_of(config: Config, name: str) -> int:
    """The line that the last origin of a field names."""
    place = chain_of(config, name)[-1][0].place((name,))
    assert place is not None
    assert "test_origin.py" in place
    return int(place.rpartition(":")[2])


FIRST = 1 + Path(__file__).read_text().splitlines().index("JOB = Job(")
JOB = Job(
    name="x",
    optimizer=Sgd(
        lr=1.0,
        momentum=0.5,
    ),
    seed=3, deterministic=True,
    batch=Batch(size=1,
                sequence_length=2),
    model=Transformer(dim=5),
    sources=[
        Synthetic(
            weight=2.0,
            documents=7),
    ],
)  # fmt: skip


def test_each_keyword_of_a_constructor_over_many_lines_has_its_line() -> None:
    assert {name: line_of(JOB, name) for name in
            ("name", "optimizer", "seed", "deterministic", "batch", "model", "sources")} == {
        "name": FIRST + 1, "optimizer": FIRST + 2, "seed": FIRST + 6, "deterministic": FIRST + 6,
        "batch": FIRST + 7, "model": FIRST + 9, "sources": FIRST + 10,
    }  # fmt: skip
    assert line_of(JOB.optimizer, "lr") == FIRST + 3
    assert line_of(JOB.optimizer, "momentum") == FIRST + 4
    assert line_of(JOB.batch, "size") == FIRST + 7
    assert line_of(JOB.batch, "sequence_length") == FIRST + 8
    assert line_of(JOB.model, "dim") == FIRST + 9
    assert line_of(JOB.sources[0], "documents") == FIRST + 13


def here() -> int:
    """The line after the caller's."""
    import sys

    return sys._getframe(1).f_lineno + 1


class Outer(Config):
    inner: AdamW = field(factory=AdamW)
    lr: float = 1.0


def test_the_line_of_a_keyword_that_an_inner_call_has_as_well() -> None:
    line = here()
    outer = Outer(inner=AdamW(
        lr=2.0),
        lr=3.0,
    )  # fmt: skip
    assert (line_of(outer.inner, "lr"), line_of(outer, "lr")) == (line + 1, line + 2)


def test_assignments_and_changes_in_place() -> None:
    job = Job()
    line = here()
    job.seed = 4
    assert line_of(job, "seed") == line
    line = here()
    job.tags.append("x")
    assert line_of(job.evolve(), "tags") == line
    line = here()
    job.tags.extend(["y", "z"])
    assert line_of(job.evolve(), "tags") == line
    line = here()
    job.tags += ["w"]
    assert line_of(job.evolve(), "tags") == line
    line = here()
    job.thresholds.update(loss=3.0)
    assert line_of(job.evolve(), "thresholds") == line
    line = here()
    job.user.a.b = 3
    origin = job.user.a.chain("b")[-1][0]
    assert str(origin.place(("user", "a", "b"))).endswith(f"test_origin.py:{line}")


def test_code_without_source_has_the_line_of_the_call() -> None:
    space: dict[str, object] = {"Job": Job}
    exec(compile("job = Job(\n  seed=1,\n  name='a')", "<made up>", "exec"), space)
    job = space["job"]
    assert isinstance(job, Job)
    assert chain_of(job, "name")[0][0].describe(("name",)) == "program (<made up>:1)"
