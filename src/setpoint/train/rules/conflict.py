"""A setting that is refused beside others: its terms, and what is said of it.

A term is `path = words`, where the words are values joined by ` or `, and `set` stands for anything
but null, false and 0; or `path that words`, which only people read, for what `where` asks. A job is
`Any` here, as its class is declared with rules that look into the table of `support`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from setpoint.config import Config, Problem, fields_of

NO_GPU = "parallel.device = cpu, or auto without a GPU"
"""The term that holds for `device = cpu`, and where torch finds no GPU for `device = auto`."""
WORDS: dict[Any, str] = {None: "null", True: "true", False: "false"}


class Conflict:
    """A setting that is refused beside others.

    Arguments:
        setting: the term whose field the problem is about.
        others: the terms that it conflicts with; their fields are shown with the problem.
        why, valid: what the problem says; `{section.field}` stands for a value of the job,
            `{section.type}` for a variant, and `{device}` for why the model is on a CPU.
        where: what holds beside the terms; None: no more.
        also: the fields shown with the problem; None: those of `others`.
    """

    __slots__ = ("also", "hint", "others", "path", "setting", "terms", "valid", "where", "why")

    def __init__(
        self,
        setting: str,
        others: tuple[str, ...],
        why: str,
        valid: tuple[str, ...] = (),
        where: Callable[[Any], bool] | None = None,
        hint: str = "",
        also: tuple[str, ...] | None = None,
    ) -> None:
        self.setting, self.others, self.why, self.valid = setting, others, why, valid
        self.where, self.hint = where, hint
        paths = [term.partition(" = ")[0].partition(" that ")[0] for term in (setting, *others)]
        self.path = paths[0]
        self.also = paths[1:] if also is None else also
        self.terms = [
            (path.split("."), term.partition(" = ")[2].split(" or "))
            for path, term in zip(paths, (setting, *others), strict=True)
            if " = " in term and term != NO_GPU
        ]

    @property
    def on_cpu(self) -> bool:
        """Whether it conflicts with a CPU."""
        return NO_GPU in self.others

    @property
    def is_about_ranks(self) -> bool:
        """Whether it conflicts with how ranks divide the work, and with nothing else."""
        ranks = [path.startswith("parallel") and path != "parallel.device" for path in self.also]
        return bool(ranks) and all(ranks)

    def applies(self, job: Any) -> bool:
        """Whether a job has the setting and the others, its device aside if `on_cpu`."""
        return all(_holds(job, *term) for term in self.terms) and (
            self.where is None or self.where(job)
        )

    def problem(self, job: Any, device: str) -> Problem:
        """The finding; `device` stands for `{device}`."""
        values = _Values(job, device)
        valid = [each.format_map(values) for each in self.valid]
        why = self.why.format_map(values)
        path, *_ = _fields(job, self.path)
        also = tuple(field for each in self.also for field in _fields(job, each))
        return Problem(path, why, valid=valid, also=also, hint=self.hint)


def _fields(job: Any, path: str) -> Iterator[str]:
    """The fields that a term is about: of `parallel`, those that divide a copy of the model."""
    parallel = job.parallel
    experts = [name for name in ("expert", "expert_tensor") if getattr(parallel, name) > 1]
    if path == "parallel" or (path == "parallel.shard" and parallel.degrees["shard"] == 1):
        axes = [axis for axis, degree in parallel.degrees.items() if degree > 1]
        yield from (f"parallel.{axis}" for axis in (*axes, *experts) if axis != "replicate")
    elif path == "parallel.expert" and experts == ["expert_tensor"]:
        yield "parallel.expert_tensor"
    else:
        yield path


def _holds(job: Any, path: list[str], words: list[str]) -> bool:
    """Whether a field is there and has one of the values."""
    value: Any = job
    for name in path:
        # The section may be null, or a variant without such a field.
        if value is None or (isinstance(value, Config) and name not in fields_of(value)):
            return False
        value = getattr(value, name)
    if words == ["set"]:
        return isinstance(value, Config) or bool(value)
    if isinstance(value, tuple):
        return any(item in words for item in value)
    if isinstance(value, Config):
        return type(value).__setpoint__.tag in words
    if value is None or isinstance(value, bool):
        return WORDS[value] in words
    return (f"{value:g}" if isinstance(value, float) else str(value)) in words


class _Values(dict[str, Any]):
    """What the fields of a message stand for."""

    def __init__(self, job: Any, device: str) -> None:
        super().__init__(device=device)
        self.job = job

    def __missing__(self, section: str) -> _Section:
        return _Section(getattr(self.job, section))


class _Section:
    def __init__(self, section: Any) -> None:
        self.section = section

    def __getattr__(self, name: str) -> Any:
        cls = type(self.section)
        return cls.__setpoint__.tag if name == "type" else getattr(self.section, name)
