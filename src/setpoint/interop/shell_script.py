"""Arguments of a command in a shell script or plain list; no part of a script is run.

Variables, arrays and sums assigned in the same file are resolved, an `if` or `case` that compares
them is followed, and the arguments are those after the name of a Python file. Loop variables are
not read.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

from setpoint.config import FileDocument
from setpoint.config.files.file_document import MIB, FileError, FilePosition
from setpoint.config.files.read import decode, read_plain_file

QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*+\""""
NESTED = rf"(?:[^()'\"]|{QUOTED})*+"
for _ in range(4):
    NESTED = rf"(?:[^()'\"]|{QUOTED}|\({NESTED}\))*+"
"""Text of a command in parentheses, with up to four more inside one another."""
DEFAULT = r"(?:\$\{(?:\$\{[^{}]*\}|[^{}])*+\}|[^}])*+"
"""Default of a variable, which may be a variable with a default."""
WORD = re.compile(
    rf"""(?P<skip>[ \t\r]+|\\\r?\n|(?<![^\s(;])\#[^\n]*)
    |(?P<end>\n|;;|;|(?:(?<!\S)\d)?>>?(?:&\d?)?|&>>?|&&?|\|&|\|\|?|<<?<?-?)
    |(?P<open>\()|(?P<close>\))
    |(?P<word>(?:\$\(\([^)\n]*(?:\)[^)\n]+)*\)\)|\$\({NESTED}\)|`[^`]*`|\${{{DEFAULT}\}}|'[^']*'
    |"(?:\\.|\${{{DEFAULT}\}}|\$\({NESTED}\)|[^"\\])*"|\\.|[^\s;&|()<>'"\\])+)|(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
NAME = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
VARIABLE = re.compile(
    r"\$\(\((?P<sum>[^)]*(?:\)[^)]+)*)\)\)|\$\{(?P<name>\w+)(?:\[[@*]\])?"
    rf"(?:(?P<colon>:?)[-=](?P<default>{DEFAULT})|:?\+(?P<other>{DEFAULT}))?\}}"
    r"|\$(?P<plain>\w+)"
)
PIECE = re.compile(rf"'[^']*'|\"[^\"]*\"|(?:\$\({NESTED}\)|`[^`]*`|\\\S|[^\s\\])+")
ASSIGNS = re.compile(r"\"?\$\{(\w+):?=([^}]*)\}\"?")
REDIRECTS = re.compile(r"\||\|&|&|\d?>>?(&\d?)?")
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le,
    "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip
LAUNCHERS = ("torch.distributed.launch", "torch.distributed.run")
"""Modules that run a Python file."""
Word = tuple[str, int]
"""A text and its place in the file."""
Statement = tuple[list[Word], str]
"""Words, and the character that ends them."""


class Script:
    """A shell script with its assignments and its command; no part of it is run.

    If there are several commands, the one with the most arguments counts.

    Arguments:
        limit: maximum number of characters of a variable.
    """

    def __init__(self, name: str, text: str, limit: int = MIB) -> None:
        self.name, self.text, self.limit = name, text, limit
        self.variables: dict[str, list[Word]] = {"PWD": [(".", 0)]}
        self.arguments: list[Word] = []
        self.program = ""
        """The Python file or module that has the arguments."""
        self._branches: list[tuple[str, str | None]] = []
        """State of each enclosing `if` and `case` (followed, next or past), and the subject of a
        case."""
        loops = 0
        for group in self._lists():
            words, end = group[0]
            while words and words[0][0] in ("then", "do", "else", "{"):
                if words[0][0] == "else":
                    self._choose(True)
                words = words[1:]
            group[0] = (words, end)
            first = words[0][0] if words else ""
            state, subject = self._branches[-1] if self._branches else ("followed", None)
            if first in ("for", "while", "until"):
                loops += 1
            elif first == "done":
                loops = max(0, loops - 1)
            elif loops:
                continue
            elif first in ("if", "elif"):
                if first == "if":
                    self._branches.append(("next", None))
                group[0] = (words[1:], end)
                self._choose(self._follow(group, False))
            elif first == "case":
                self._branches.append(("next", self.resolve(words[1][0]) if words[1:] else ""))
                state = "next"
            elif first in ("fi", "esac"):
                self._branches = self._branches[:-1]
            elif subject is not None and state != "followed" and end in ("|", ")"):
                patterns = [self.resolve(text) for text, _ in words]
                if state == "next" and any(fnmatchcase(subject, pattern) for pattern in patterns):
                    self._choose(True)
            elif all(branch == "followed" for branch, _ in self._branches):
                self._follow(group, True)
            if group[-1][1] == ";;" and state == "followed":
                self._choose(False)
        if not self.arguments:  # no Python file: the words are the arguments
            options = [word for words, _ in self._statements() for word in words]
            self.arguments = [w for word in options for w in self.expand(word)]

    def _statements(self) -> Iterator[Statement]:
        """Words up to the end of a line or command; the words of an array follow its name."""
        words: list[Word] = []
        depth = 0
        for match in WORD.finditer(self.text):
            kind, place = match.lastgroup, match.start()
            if kind == "open" and words and words[-1][0].endswith("=") and not depth:
                depth = 1
                words[-1] = (words[-1][0] + "(", words[-1][1])
            elif kind == "close" and depth:
                depth = 0
            elif kind in ("end", "close") and not depth:
                if words or match.group() == ";;":
                    yield words, match.group()
                words = []
            elif kind == "word":
                words.append((match.group(), place))
        if words:
            yield words, ""

    def _lists(self) -> Iterator[list[Statement]]:
        """Statements joined by && or ||."""
        group: list[Statement] = []
        for statement in self._statements():
            group.append(statement)
            if statement[1] not in ("&&", "||"):
                yield group
                group = []
        if group:
            yield group

    def _choose(self, is_true: bool) -> None:
        """Follow the next branch if it is the first with a true condition."""
        if self._branches:
            state, subject = self._branches[-1]
            state = "past" if state != "next" else "followed" if is_true else "next"
            self._branches[-1] = (state, subject)

    def _follow(self, group: list[Statement], default: bool) -> bool:
        """Follow statements until && or || skips one; return whether the last one succeeds."""
        status = runs = True
        for words, end in group:
            if runs and words:
                negated = words[0][0] == "!"
                succeeds = self._statement(words[negated:])
                status = (default if succeeds is None else succeeds) != negated
            runs = status if end == "&&" else not status
        return status

    def _statement(self, words: list[Word]) -> bool | None:
        """Follow an assignment, a comparison, or the command with the arguments.

        Returns:
            the result of a comparison; None for other statements.
        """
        if words and words[0][0] in ("[", "[[", "test"):
            return self._holds(words[1:])
        if words and words[0][0] in ("export", "declare", "local", "readonly", "set", "unset"):
            words = [word for word in words[1:] if not word[0].startswith("-")]
        elif words and words[0][0] == ":":
            for text, place in words[1:]:
                if (match := ASSIGNS.fullmatch(text)) and match[1] not in self.variables:
                    self.variables[match[1]] = [(self.resolve(match[2]), place)]
        while words and (match := NAME.fullmatch(words[0][0])):
            name, adds, value = match.groups()
            if value == "(":  # an array up to the end of the statement
                items, words = [w for word in words[1:] for w in self.expand(word)], []
            else:
                items = [(self.resolve(value), words[0][1] + len(name) + len(adds) + 1)]
                words = words[1:]
            before = self.variables.get(name, []) if adds else []
            if adds and value != "(" and before:
                before, items = before[:-1], [(before[-1][0] + items[0][0], before[-1][1])]
            if sum(len(text) for text, _ in [*before, *items]) > self.limit:
                raise FileError(self.name, None, None, f"the variable {name} is too long")
            self.variables[name] = [*before, *items]
        if not words:
            return None
        expanded: list[Word] = []
        for index, word in enumerate(words):
            is_command = index > 0 and words[index - 1][0] == "-c"  # of a shell
            expanded += (
                self._split(self.resolve(word[0]), word[1]) if is_command else self.expand(word)
            )
        for index, (text, _) in enumerate(expanded):
            is_module = index > 0 and expanded[index - 1][0] == "-m" and text not in LAUNCHERS
            if text.endswith(".py") or is_module:
                arguments = expanded[index + 1 :]
                ends = [n for n, word in enumerate(arguments) if REDIRECTS.fullmatch(word[0])]
                arguments = arguments[: ends[0]] if ends else arguments
                if not self.program or len(arguments) > len(self.arguments):
                    self.arguments, self.program = arguments, text
                break
        return None

    def expand(self, word: Word) -> list[Word]:
        """Expand a word into words; words from a variable keep their positions."""
        text, place = word
        unquoted = text.strip('"')
        match = VARIABLE.fullmatch(unquoted)
        name = match and (match["name"] or match["plain"])
        if name and name in self.variables:
            items = self.variables[name]
            return [piece for item in items for piece in self._split(*item)]
        if text[:1] in ("'", '"') and text[-1:] == text[:1] and not unquoted.startswith("-"):
            return [(self.resolve(text), place)]
        return self._split(self.resolve(text), place)

    def _split(self, text: str, place: int) -> list[Word]:
        """The words of a text without quotes, at their positions in the file if they are in it."""
        pieces: list[Word] = []
        start, end = place, place + 2 * len(text) + 100
        for match in PIECE.finditer(text):
            word = re.sub(r"\\(\S)", r"\1", match.group().strip("'\""))
            position = self.text.find(word, start, end)
            if position < 0 and word.startswith("--"):  # from a variable within the text
                position = max(self.text.rfind(word + char) for char in " \n=")
            pieces.append((word, place if position < 0 else position))
            start = position + len(word) if start <= position < end else start
        return pieces or ([(text, place)] if text else [])

    def resolve(self, text: str) -> str:
        """A text without quotes, with variables from the file and arithmetic substituted."""
        text = re.sub(r"\\\r?\n", " ", text)
        if len(text) > 1 and text[0] == text[-1] == "'":
            return text[1:-1]

        def value(match: re.Match[str]) -> str:
            if match["sum"] is not None:
                inner = re.sub(
                    r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: self._value(m[1]) or m[0], match["sum"]
                )
                try:
                    return str(evaluate(ast.parse(inner.strip(), mode="eval").body))
                except (ValueError, SyntaxError, MemoryError, RecursionError):
                    return match[0]
            known = self._value(match["name"] or match["plain"])
            if match["other"] is not None:
                return self.resolve(match["other"]) if known else ""
            if known or (known is not None and not match["colon"]):  # `:-` is for "", too
                return known
            default = match["default"]
            if default is not None and "<" in default:  # a placeholder such as <Specify path>
                return f"${{{match['name']}}}"
            return match[0] if default is None else self.resolve(default)

        resolved = VARIABLE.sub(value, text) if "$" in text else text
        if len(resolved) > self.limit:
            raise FileError(self.name, None, None, "a variable is too long")
        return (
            re.sub(r"(?<!\\)[\"']", "", resolved)
            if resolved[:1] in "\"'" or '"' in resolved
            else resolved
        )

    def _value(self, name: str) -> str | None:
        items = self.variables.get(name)
        return None if items is None else " ".join(text for text, _ in items)

    def _holds(self, words: list[Word]) -> bool:
        """True if a comparison holds; tests of files, such as `-f`, count as false."""
        texts = [self.resolve(text) for text, _ in words]
        texts = ["" if text.startswith("$") else text for text in texts if text not in ("]", "]]")]
        if texts[:1] == ["!"]:
            return not self._holds(words[1:])
        match texts:
            case [left, "=" | "==", right]:
                return fnmatchcase(left, right)
            case [left, "!=", right]:
                return not fnmatchcase(left, right)
            case [left, word, right] if word in COMPARISONS:
                values = number_of(left), number_of(right)
                return "" not in values and all(
                    isinstance(value, int | float) for value in values
                ) and COMPARISONS[word](*values)  # fmt: skip
            case ["-z", *rest]:
                return not "".join(rest)
            case ["-n", *rest]:
                return bool("".join(rest))
            case [text]:
                return bool(text)
            case _:
                return False


def read_arguments(
    path: str, several: Sequence[str], flags: Collection[str], separator: str = "-"
) -> FileDocument:
    """Read arguments as data: `--name value ...` becomes a number, text, list, or true.

    The Python file or module of a script is `program`.

    Arguments:
        several: names of arguments with several values.
        flags: names of arguments without a value.
        separator: separator of the words in names.

    Raises:
        FileError: the file does not exist, is too large, or is not UTF-8.
    """
    data = read_plain_file(
        path,
        MIB,
        lambda size: f"the file has {size} bytes; at most 1 MiB",
        lambda _: "no such file",
    )
    text = decode(data, "json", path)
    script = Script(path, text)
    values: dict[str, object] = {}
    positions = FilePosition(0)
    if script.program:
        values["program"] = script.program
        positions.add("program", max(0, text.find(script.program)))
    name = ""
    for word, place in script.arguments:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", separator).replace("-", separator)
            values[name] = number_of(value) if equals else ([] if name in several else True)
            positions.children.pop(name, None)
            positions.add(name, place)
        elif name:
            items = values[name]
            if isinstance(items, list):
                cast("list[object]", items).append(number_of(word))
            elif items is True and name not in flags:
                values[name] = number_of(word)
    return FileDocument(path, "json", values, text, lambda: positions)


OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def evaluate(node: ast.expr) -> Any:
    """Evaluate a sum or product of ints and lists of ints, of limited size.

    Raises:
        ValueError: the expression is something else, or too large.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        return [evaluate(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = evaluate(node.left), evaluate(node.right)
        count = right if isinstance(left, list) else left
        is_list = isinstance(left, list) or isinstance(right, list)
        try:
            if is_list and isinstance(node.op, ast.Mult) and not 0 <= int(count) <= 10_000:
                raise ValueError("too long")
            result = OPERATORS[type(node.op)](left, right)
        except (TypeError, ZeroDivisionError) as error:
            raise ValueError(str(error)) from None
        if isinstance(result, int) and result.bit_length() > 128:
            raise ValueError("too large")
        return result
    raise ValueError("neither a number nor a list")


def number_of(word: object) -> Any:
    """The number spelled by a word, or the word itself."""
    if not isinstance(word, str):
        return word
    for kind in (int, float):
        try:
            return kind(word)
        except (ValueError, TypeError, OverflowError):
            continue
    return word
