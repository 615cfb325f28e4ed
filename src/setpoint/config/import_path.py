"""`ImportPath`: a callable by the path it is imported from, imported only when it is used."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

from .errors import Invalid, SetpointError
from .types.base import shown

EXAMPLES = ('"torch.optim.Adagrad"', '"package.module:Class.method"')
LENGTH = 300


class ImportPath:
    """Where a callable is found: `module.name`, or `module:Class.name` for what lies in a class.

    Its form is checked at once; it is imported by `load`, by calling it, or by `build`, and only
    from modules that are allowed (see `allow_imports`).

    Arguments:
        target: the path, or the callable itself, which is kept by its path.
        trusted: modules that need not be allowed by anybody else.

    Raises:
        Invalid: if it is no path, or the callable cannot be found again by one.
    """

    __slots__ = ("base", "held", "text", "trusted")
    __setpoint_scalar__ = "an import path such as 'torch.optim.Adagrad' or 'module:Class.method'"

    text: str
    trusted: tuple[str, ...]
    base: type | None
    held: str | None

    def __init__(self, target: str | Callable[..., Any], trusted: Sequence[str] = ()) -> None:
        self.base, self.trusted = None, tuple(trusted)
        self.text = _form(str(target)) if isinstance(target, str) else path_of(target)
        # Whoever holds the object has imported it: there is nothing to be allowed any more.
        self.held = None if isinstance(target, str) else self.module

    @classmethod
    def read(cls, value: object) -> Self:
        """Make a value from what a layer holds.

        Arguments:
            value: a path as text, or a callable.

        Returns:
            the path.

        Raises:
            Invalid: if it cannot be read.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) or callable(value):
            return cls(cast(Any, value))
        raise Invalid(f"is not an import path: got {shown(value)}", EXAMPLES)

    @property
    def module(self) -> str:
        """The module as far as the text says it; what is imported may be a package above it."""
        module, colon, _ = self.text.partition(":")
        return module if colon else self.text.rpartition(".")[0]

    def trusting(self, modules: Sequence[str], base: type | None = None) -> ImportPath:
        """The same path as a field holds it.

        Arguments:
            modules: what the field's class trusts beside what the path does.
            base: the class that it must be or derive from; None for any callable.

        Returns:
            a path of the field's own.
        """
        path = ImportPath(self.text, tuple(dict.fromkeys((*self.trusted, *modules))))
        path.base, path.held = base or self.base, self.held
        return path

    def allowed(self) -> tuple[str, ...]:
        """The modules that may be imported for this path.

        Returns:
            the modules, as `allowed_modules` gives them.
        """
        from .foreign.allow import allowed_modules

        modules = allowed_modules(self.trusted)
        return modules if self.held is None else (*modules, self.held)

    def dump(self) -> str:
        """The path in plain data.

        Returns:
            its text.
        """
        return self.text

    def refusal(self) -> str:
        """Why the path may not be imported; nothing is imported to find out.

        Returns:
            a sentence; empty if it may.
        """
        from .foreign.allow import is_allowed, not_allowed

        modules = self.allowed()
        name = self.text.replace(":", ".")
        return "" if is_allowed(name, modules) else not_allowed(self.text, modules)

    def load(self) -> Any:
        """Import what the path names.

        Returns:
            the callable.

        Raises:
            SetpointError: if it may not be imported, is not there, or cannot be called.
        """
        from .foreign.load import load

        return load(self)

    def loaded(self) -> Any:
        """What the path names, if its module has been imported by somebody and it may be.

        Returns:
            the callable, or None.
        """
        parts = self.text.replace(":", ".").split(".")
        if any(".".join(parts[:at]) in sys.modules for at in range(len(parts) - 1, 0, -1)):
            try:
                return self.load() if self.module in sys.modules else None
            except SetpointError:
                return None
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"ImportPath({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, ImportPath) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)


def path_of(target: Any) -> str:
    """The shortest path by which a callable is found.

    Arguments:
        target: a function or class of a module.

    Returns:
        for instance `torch.optim.Adagrad`, although it is defined in `torch.optim.adagrad`.

    Raises:
        Invalid: if no path leads to it.
    """
    module: object = getattr(target, "__module__", None)
    name: object = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise Invalid(
            f"cannot be kept: a {type(target).__name__} has no name to import it by; give a "
            f"function or a class"
        )
    reason = ""
    if "<lambda>" in name:
        reason = "a lambda has no name to import it by"
    elif "<locals>" in name:
        reason = f"{name.replace('.<locals>', '')} is defined inside a function"
    elif module == "__main__":
        reason = f"{name} is defined in the script itself, which no other process can import"
    elif _found(module, name) is not target:
        reason = f"{module} has no {name}, or another object of that name"
    if reason:
        raise Invalid(f"cannot be kept by its import path: {reason}; put it into a module")
    if "." in name:
        return f"{module}:{name}"
    parts = module.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if (
            not any(part.startswith("_") for part in parts[:end])
            and _found(package, name) is target
        ):
            return f"{package}.{name}"
    return f"{module}.{name}"


def _found(module: str, name: str) -> Any:
    node: Any = sys.modules.get(module)
    for part in name.split("."):
        node = getattr(node, part, None)
    return node


def _form(text: str) -> str:
    """The canonical text of a path: a colon only where the name has several parts."""
    module, colon, name = text.strip().partition(":")
    parts = [*module.split("."), *(name.split(".") if colon else [])]
    right = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    if len(text) > LENGTH or len(parts) < 2 or not right:
        hint = "Say the module as well, in which it is found." if right else ""
        raise Invalid(f"is not an import path: got {shown(text)}", EXAMPLES, hint=hint)
    return f"{module}:{name}" if colon and "." in name else ".".join(parts)
