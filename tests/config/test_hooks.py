from setpoint.config import Config, Free, Problem, dead, derive, derived, field, resolve, rule

from .helpers import problems_of


class Root(Config):
    a: int = 1
    b: int = derived()
    c: int = 0
    d: int = 0

    @derive("b")
    def double(self) -> int:
        """Methods with a mark can still be called."""
        return 2 * self.a

    @rule
    def problems(self) -> list[Problem]:
        """A list is as good as a generator."""
        return [Problem("a", "is thirteen")] if self.a == 13 else []

    @dead("c", "d")
    def reason(self) -> str | None:
        """Of two fields at once."""
        return "a is zero" if self.a == 0 else None


def test_marked_methods_stay_methods() -> None:
    root = resolve(Root(a=3))
    assert (root.b, root.double()) == (6, 6)
    assert root.problems() == []
    assert root.reason() is None


def test_one_reason_for_several_fields() -> None:
    problems = problems_of(lambda: resolve(Root(a=0, c=1, d=1)))
    assert [problem.path for problem in problems] == ["c", "d"]
    assert problems_of(lambda: resolve(Root(a=13)))[0].message == "is thirteen"


def test_a_subclass_can_derive_anew() -> None:
    class Child(Root):
        @derive("b")
        def triple(self) -> int:
            return 3 * self.a

    assert resolve(Child(a=3)).b == 9
    assert resolve(Root(a=3)).b == 6


def test_a_check_may_ask_for_a_key_of_the_user_area() -> None:
    class Wants(Config):
        user: Free = field(factory=Free)

        @rule
        def _check(self):
            yield Problem("user.probe.width", "must be set for this job")

    problems = problems_of(lambda: resolve(Wants()))
    assert [(problem.path, problem.value) for problem in problems] == [("user.probe.width", None)]
    draft = Wants(user=Free(probe={"depth": 1}))
    assert problems_of(lambda: resolve(draft))[0].value is None
