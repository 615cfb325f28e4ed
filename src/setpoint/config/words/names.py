"""Paths of fields, the valid names or numbers nearest to a typed one, and names of files."""

from __future__ import annotations

from collections.abc import Iterable

SHORT = 2  # letters of a name without abbreviations
PREFIX = 4  # minimum letters of an abbreviation
# Bytes of a path and of each of its parts; Linux allows 4096, and files are put below it.
MAX_PATH = 4000
MAX_NAME = 255
FORGOTTEN = "For one of your own, import its module: --import MODULE"
Path = tuple[str | int, ...]


def nearest(
    name: str, candidates: Iterable[str], count: int = 3, likeness: float = 0.6
) -> list[str]:
    """The names nearest to a typed one.

    Arguments:
        count: the maximum number to return.
        likeness: the minimum similarity of two names, between 0 and 1 (difflib's ratio); higher if
            many candidates make chance matches likely.
    """
    import difflib

    word = folded(name)
    options = {folded(option): option for option in reversed(list(candidates))}
    matches = difflib.get_close_matches(word, [*options][::-1], n=count, cutoff=likeness)
    swapped = [option for option in [*options][::-1] if sorted(option) == sorted(word)]
    # A part of the typed name, or whole words of it: `dataloader` does not mean `data`.
    inside = [option for option in [*options][::-1] if _is_part(word, option)]
    return [options[option] for option in dict.fromkeys([*swapped, *matches, *inside])][:count]


def folded(name: str) -> str:
    """Spell a name like a field: lower case and underscores."""
    return name.lower().replace("-", "_")


def _words(name: str) -> str:
    return "_" + name.replace(".", "_").replace("/", "_") + "_"


def _is_part(word: str, option: str) -> bool:
    """True if one name consists of words of the other, or of the beginning of a word.

    The typed name may have one more word: `data_dir` means `data`, `sample_packing_size` not
    `packing`.
    """
    inside, option_words = _words(word), _words(option)
    if not word:
        return False
    begins = inside[:-1] if len(word) >= PREFIX else inside
    is_longer = len(option) > SHORT and inside.count("_") - option_words.count("_") <= 1
    return begins in option_words or (is_longer and option_words in inside)


def did_you_mean(name: str, candidates: Iterable[str], before: str = "") -> str:
    """Suggest the nearest valid name, after the text `before`; empty if nothing is close."""
    matches = nearest(name, candidates, 1)
    return f"{before}Did you mean {matches[0]}?" if matches else ""


def plural(number: int, noun: str) -> str:
    """Format a count, for example `1 point` or `1,234 points`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def dotted(path: Path) -> str:
    """Format a path, for example `data.sources.0.type`."""
    return ".".join(map(str, path))


def within(path: str, section: str) -> bool:
    """True if a path is that of a section or field, or leads into it: `model.dim`, not `models`."""
    return path == section or path.startswith(f"{section}.")


def can_be_named(text: str) -> bool:
    """True if a text can name a file, module or user: no zero byte, and only valid Unicode."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    from os import fsencode

    try:
        fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def can_be_path(text: str) -> bool:
    """True if a text can be the path of a file or folder."""
    if not can_be_named(text):
        return False
    from os import fsencode

    data = fsencode(text)
    return len(data) < MAX_PATH and all(len(part) <= MAX_NAME for part in data.split(b"/"))


def not_of(value: object, root: type) -> str:
    """Describe a value that is not a config of some root, for example `a Motor, not a Job`."""
    if value is None:
        return f"nothing, not {with_article(root.__name__)}"
    given, expected = type(value).__name__, root.__name__
    if given == expected:
        given = f"{type(value).__module__}.{type(value).__qualname__}"
        expected = f"{root.__module__}.{root.__qualname__}"
        if given == expected:
            reason = "the class was defined again since, for example by importing its module twice"
            return f"a {given} from another definition than this one: {reason}"
        return f"a {given}, not a {expected}"
    return f"{with_article(given)}, not {with_article(expected)}"


def with_article(name: str) -> str:
    """A class's name with its article: `a Job` or `an Inference`."""
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


REACH = 100_000
"""Maximum distance of divisors from the value."""


def nearest_divisors(number: int, target: int, count: int = 3) -> tuple[int, ...]:
    """Find the divisors of a number nearest to a value.

    Returns:
        Divisors, nearest first; if two are equally near, the smaller first. () for a number below
        1.
    """
    divisors: list[int] = []
    # Outwards from the value, so a huge number, most likely a typo, costs no more.
    start = min(max(target, 1), number)
    for distance in range(REACH):
        pair = dict.fromkeys((start - distance, start + distance))
        divisors += [d for d in pair if 1 <= d <= number and number % d == 0]
        if len(divisors) >= count or (start - distance <= 1 and start + distance >= number):
            break
    return tuple(sorted(divisors, key=lambda d: (abs(d - target), d))[:count])


def nearest_multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` just below and above a value."""
    below = value // step * step
    multiples = [size for size in (below, below + step) if size > 0]
    return sorted(multiples, key=lambda size: abs(size - value))
