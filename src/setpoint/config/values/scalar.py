"""Values with their own readers and writers: `Scalar`, `Secret` and `ImportPath`.

Secrets must never be written: a `Secret` is a reference to a secret, not the secret itself.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, Self, SupportsIndex, cast, dataclass_transform

from ..words.errors import HIDDEN, WRONG_KIND, Invalid, SetpointError
from ..words.names import did_you_mean
from ..words.text import for_error
from .user_code import allowed_modules, import_user_module, is_allowed, not_allowed

EXAMPLES = ('"torch.optim.Adagrad"', '"package.module:Class.method"')
LENGTH = 300


@dataclass_transform(eq_default=False)
class Struct:
    """A class whose constructor takes the annotated attributes, by name or in their order."""

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._names = tuple(dict.fromkeys((*cls._names, *cls.__annotations__)))

    def __init__(self, *args: Any, **options: Any) -> None:
        values = dict(zip(self._names, args, strict=False)) | options
        wrong = [name for name in self._names if name not in values and not hasattr(self, name)]
        wrong += [name for name in options if name not in self._names]
        if wrong or len(values) != len(args) + len(options):
            takes, hint = ", ".join(self._names), f": see {', '.join(wrong)}" if wrong else ""
            raise TypeError(f"{type(self).__name__} takes {takes}{hint}")
        vars(self).update(values)


class Scalar:
    """A value that its class reads from a file or a flag, and writes as plain data.

    Values with the same plain data are equal. A subclass defines `__setpoint_scalar__`, its
    description, which also marks classes without this base; and `__setpoint_json_schema__`, a
    schema of the values that `read` accepts from a file, for editors.
    """

    __slots__ = ()
    __setpoint_scalar__: str

    @classmethod
    def read(cls, value: Any) -> Self:
        """Read the value given by a layer.

        Raises:
            Invalid: the value cannot be read.
        """
        return value if isinstance(value, cls) else cast(Any, cls)(value)

    def dump(self) -> Any:
        """Convert the value to plain data, from which `read` makes an equal one."""
        raise AssertionError(f"{type(self).__name__} does not define its form in plain data")

    def __str__(self) -> str:
        return str(self.dump())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dump()!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.dump() == other.dump()

    def __hash__(self) -> int:
        return hash(str(self.dump()))


class Revealed(str):
    """A revealed secret: a str whose repr is hidden.

    Its `repr`, which debuggers, tracebacks and logs of objects print, hides it, and it cannot be
    pickled. Formatted into another text, it is not hidden.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Revealed({HIDDEN!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        raise SetpointError("a revealed secret cannot be pickled; pass on the Secret instead")


class Secret(Scalar):
    """A reference to a secret, which is read only on use.

    Arguments:
        reference: `"env:NAME"` for an environment variable or `"file:PATH"` for the first line of a
            file.

    Raises:
        Invalid: the text has another form; it is not repeated, since it may be the secret itself.
    """

    __slots__ = ("reference",)
    __setpoint_scalar__ = "a reference to a secret: 'env:NAME' or 'file:PATH'"
    __setpoint_secret__ = True
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "type": "string",
        "pattern": r"^(env|file):[\s\S]*\S",
    }

    def __init__(self, reference: str) -> None:
        text = reference if isinstance(cast(object, reference), str) else ""
        kind, separator, name = text.partition(":")
        if kind not in ("env", "file") or not separator or not name.strip():
            raise Invalid(
                "is not a reference to a secret (its text is not shown); a configuration "
                "never contains the secret itself",
                ("env:NAME", "file:PATH"),
                secret=True,
            )
        self.reference = str(text)

    def dump(self) -> str:
        """The secret as plain data."""
        return self.reference

    def reveal(self) -> Revealed:
        """Read the secret, without surrounding white space; the `repr` of the text hides it.

        Raises:
            SetpointError: the variable is not set or the file cannot be read.
        """
        import os

        kind, _, name = self.reference.partition(":")
        if kind == "env":
            if not os.environ.get(name):
                raise SetpointError(f"the environment variable {name} of a secret is not set")
            return Revealed(os.environ[name].strip())
        try:
            with open(os.path.expanduser(name), encoding="utf-8") as file:
                return Revealed(file.readline().strip())
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise SetpointError(f"the secret's file {name} cannot be read: {reason}") from None
        except ValueError:
            raise SetpointError(f"the secret's file {name} is not UTF-8 text") from None

    def __str__(self) -> str:
        return repr(self)


_PASSED: set[str] = set()
"""The paths of objects that this program passed in; records of its runs may name them."""


class ImportPath(Scalar):
    """The import path of a callable: `module.name`, or `module:Class.name` inside a class.

    Its form is checked immediately; it is imported by `load`, by calling it, or by `build`, and
    only from allowed modules (see `allow_imports`).

    Arguments:
        trusted: modules that are allowed for this path.

    Raises:
        Invalid: the text is not a path, or no path leads to the callable.
    """

    __slots__ = ("base", "imported", "text", "trusted")
    __setpoint_scalar__ = "an import path such as 'torch.optim.Adagrad' or 'module:Class.method'"

    text: str
    trusted: tuple[str, ...]
    base: type | None
    imported: str | None

    def __init__(self, target: str | Callable[..., Any], trusted: Sequence[str] = ()) -> None:
        self.base, self.trusted = None, tuple(trusted)
        self.text = _canonical(str(target)) if isinstance(target, str) else path_of(target)
        # An object is imported already, so its module is allowed.
        if not isinstance(target, str):
            _PASSED.add(self.text)
        self.imported = self.module if self.text in _PASSED else None

    @classmethod
    def read(cls, value: object) -> Self:
        """Read the value given by a layer.

        Raises:
            Invalid: the value cannot be read.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) or callable(value):
            return cls(cast(Any, value))
        raise Invalid(f"is not an import path: got {for_error(value)}", EXAMPLES, kind=WRONG_KIND)

    @property
    def module(self) -> str:
        """The module named in the text; the one imported may be a package above it."""
        module, colon, _ = self.text.partition(":")
        return module if colon else self.text.rpartition(".")[0]

    def trusting(self, modules: Sequence[str], base: type | None = None) -> ImportPath:
        """The path as stored by a field, which requires a base class, or None for any callable."""
        path = ImportPath(self.text, tuple(dict.fromkeys((*self.trusted, *modules))))
        path.base, path.imported = base or self.base, self.imported
        return path

    def allowed(self) -> tuple[str, ...]:
        """The modules that may be imported for this path."""
        modules = allowed_modules(self.trusted)
        return modules if self.imported is None else (*modules, self.imported)

    def dump(self) -> str:
        """The path as plain data."""
        return self.text

    def refusal(self) -> str:
        """Reason why the path may not be imported; empty if it may. Imports nothing."""
        modules = self.allowed()
        name = self.text.replace(":", ".")
        return "" if is_allowed(name, modules) else not_allowed(self.text, modules)

    def load(self) -> Any:
        """Import the object named by the path.

        The module that defines the object must also be allowed: allowing `torch.optim` does not
        allow other packages that its modules import.

        Raises:
            SetpointError: the object is not allowed, does not exist, or is not callable.
        """
        refused = self.refusal()
        if refused:
            raise SetpointError(refused)
        module, colon, rest = self.text.partition(":")
        qualname, *names = [module, *rest.split(".")] if colon else module.split(".")
        value: Any = import_user_module(qualname, self.text, trusted=False)
        for name in names:
            qualname = f"{qualname}.{name}"
            # A package has its modules as attributes only once imported; torch.optim deletes some.
            if not colon and not hasattr(value, name) and _is_module(value, qualname):
                value = import_user_module(qualname, self.text, trusted=False)
            elif hasattr(value, name):
                value = getattr(value, name)
            else:
                public = [key for key in dir(value) if key[:1] != "_"]
                parent = getattr(value, "__name__", type(value).__name__)
                hint = did_you_mean(name, public, " ")
                raise SetpointError(f"{self}: {parent} has no {name!r}.{hint}")
            # The packages that enclose an allowed module are passed through; other modules imported
            # by one of them are refused.
            other = isinstance(value, ModuleType) and value.__name__ != qualname
            if other and not is_allowed(value.__name__, self.allowed()):
                raise SetpointError(f"{self}: {not_allowed(value.__name__, self.allowed())}")
        home = getattr(value, "__module__", None)
        if isinstance(home, str) and not is_allowed(home, self.allowed()):
            package, _, core = home.partition(".")  # the private core of an allowed package
            packages = {path.partition(".")[0] for path in self.allowed()}
            if not core.startswith("_") or package not in packages:
                raise SetpointError(f"{self}: {not_allowed(home, self.allowed())}")
        if not callable(value):
            name = type(value).__name__
            kind = "a module" if isinstance(value, ModuleType) else f"an object of type {name}"
            raise SetpointError(f"{self} is {kind}, which cannot be called")
        if self.base is not None and not (isinstance(value, type) and issubclass(value, self.base)):
            raise SetpointError(f"{self} is not a subclass of {self.base.__name__}")
        return value

    def loaded(self) -> Any:
        """The object, if its module is already imported and allowed."""
        if self.module not in sys.modules:
            return None
        try:
            return self.load()
        except SetpointError:
            return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)


def path_of(target: Any) -> str:
    """The shortest path to a callable: `torch.optim.Adagrad`, defined in `torch.optim.adagrad`.

    Raises:
        Invalid: no path leads to it.
    """
    module: object = getattr(target, "__module__", None)
    name: object = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise Invalid(
            f"has no import path: a {type(target).__name__} has no name; give a function or a class"
        )
    reason = ""
    if "<lambda>" in name:
        reason = "a lambda has no name to import it by"
    elif "<locals>" in name:
        reason = f"{name.replace('.<locals>', '')} is defined inside a function"
    elif module == "__main__":
        reason = f"{name} is defined in the script itself, which no other process can import"
    elif _imported(module, name) is not target:
        reason = f"{module} has no {name}, or another object of that name"
    if reason:
        raise Invalid(f"has no import path: {reason}; move it into a module")
    if "." in name:
        return f"{module}:{name}"
    parts = module.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if (
            not any(part.startswith("_") for part in parts[:end])
            and _imported(package, name) is target
        ):
            return f"{package}.{name}"
    return f"{module}.{name}"


def _imported(module: str, name: str) -> Any:
    node: Any = sys.modules.get(module)
    for part in name.split("."):
        node = getattr(node, part, None)
    return node


def _canonical(text: str) -> str:
    """Format a path canonically: a colon only before a name of several parts."""
    module, colon, name = text.strip().partition(":")
    parts = [*module.split("."), *(name.split(".") if colon else [])]
    right = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    if len(text) > LENGTH or len(parts) < 2 or not right:
        hint = "Give its module too, as in package.module.name." if right else ""
        message = f"is not an import path: got {for_error(text)}"
        raise Invalid(message, EXAMPLES, hint=hint, kind=WRONG_KIND)
    return f"{module}:{name}" if colon and "." in name else ".".join(parts)


def _is_module(package: object, name: str) -> bool:
    """True if a package contains a module with that full name."""
    if not hasattr(package, "__path__"):
        return False
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # the package has another name there
        return False
