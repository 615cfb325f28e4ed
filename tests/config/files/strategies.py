"""Any data that a configuration file can hold."""

from hypothesis import strategies as st

_WORDS = [
    *("null", "~", "true", "No", "y", "1", "1_0", "0o7", "0x1", "1e5", ".5", ".inf", "-", "- a"),
    *("a: b", "a #b", "a ", " a", "a\nb", "#", "<<", "---", "...", "a:", "*a", "&a", "!a", "@"),
    *("2024-01-31", "12:30:45", "=", "[", "{", "a,b", "\x85", "\u2028", "\ufeff", "\x7f", "%a"),
    *("C:\\new", '"', "'", "/a/b c.txt", "300 steps", "é", "\U0001f600", "\uffff", "?", "a\tb"),
]
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(_WORDS))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
KEYS = st.one_of(st.sampled_from(["a", "b", "a.b", "1", "null", ""]), TEXTS)
DATA = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)
        ),
        max_leaves=12,
    ),
    max_size=5,
)
COMMENTS = st.text(max_size=8)


def paths(value, path=()):
    """The paths of everything inside a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, (dict, list)):
            yield from paths(child, (*path, key))


def canonical(value, null=None, special=False):
    """A value that compares equal to another only if types, and NaNs, are equal too."""
    if isinstance(value, dict):
        return {key: canonical(item, null, special) for key, item in value.items()}
    if isinstance(value, list):
        return [canonical(item, null, special) for item in value]
    if value is None and null is not None:
        value = null
    if special and isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
        value = repr(value)
    return type(value).__name__, repr(value)
