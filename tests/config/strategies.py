"""Random sample jobs, made in Python from valid values of every kind."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from setpoint.config import Secret
from setpoint.config.words.plain_data import escaped
from setpoint.units import Duration, Period

from .sample import (
    AdamW,
    Batch,
    Experts,
    Job,
    Mode,
    Recurrent,
    Sgd,
    Synthetic,
    Text,
    Tracker,
    Transformer,
)

# Half a surrogate pair is not a character, and "${" begins a reference unless it is escaped.
# Zero bytes are refused, as halves of surrogate pairs are.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
texts = texts.map(escaped)
special = st.sampled_from(
    ["null", "true", "no", "1", "1e3", "~", "#", "{a: 1}", "[x]", "'", '"', "", "$${a}", "$$${"]
)
words = texts | special
keys = st.text("abc_-xyz019", min_size=1, max_size=6)
names = keys.filter(lambda key: key[0] != "_")  # the free area keeps the others for Python
counts = st.integers(1, 10**6)
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False)
shares = st.floats(min_value=0, max_value=1, exclude_max=True)
units = st.sampled_from(["steps", "epochs", "tokens", "s", "min", "h", "days"])
amounts = st.builds(lambda count, unit: f"{count} {unit}", counts, units) | st.builds(
    lambda count, unit: f"{count!r} {unit}",
    st.floats(min_value=1e-3, max_value=1e6),
    st.sampled_from(["epochs", "s", "min", "h"]),
)
periods = st.builds(Period, amounts | st.sampled_from(["never", "last_step"]) | counts)


def _duration(limits: list[str]) -> Duration:
    by_unit = {Period(text).unit: text for text in limits}
    return Duration(*by_unit.values())


durations = st.builds(_duration, st.lists(amounts, min_size=1, max_size=4))


def given(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values for some of the fields; the others keep their defaults."""
    return st.fixed_dictionaries({}, optional=fields)


experts = st.builds(lambda values: Experts(**values), given(count=st.integers(9, 99)))
transformers = st.builds(
    lambda dim, values: Transformer(dim=dim * 12, **values),
    st.integers(1, 99),
    given(
        heads=st.sampled_from([1, 2, 3, 4, 6, 12]),
        head_dim=counts,
        context=counts,
        dropout=shares,
        experts=st.none() | experts,
    ),
)
recurrents = st.builds(
    lambda values: Recurrent(**values), given(dim=counts, cell=st.sampled_from(["gru", "lstm"]))
)
optimizers = st.builds(
    lambda values: AdamW(**values),
    given(lr=positive, clip_norm=st.none() | positive, betas=st.tuples(shares, shares)),
) | st.builds(
    lambda values: Sgd(**values),
    given(lr=positive, momentum=st.floats(0.1, 0.9), nesterov=st.booleans()),
)
sources = st.lists(
    st.builds(
        lambda paths, values: Text(paths=paths, **values),
        st.lists(words, max_size=3),
        given(weight=positive, separator=st.none() | words),
    )
    | st.builds(
        lambda values: Synthetic(**values), given(weight=positive, documents=counts, length=counts)
    ),
    max_size=3,
)
batches = st.builds(lambda values: Batch(**values), given(size=counts, sequence_length=counts))
trackers = st.builds(
    lambda host, token: Tracker(url=f"https://{host}", token=token),
    st.text("abc.", max_size=5),
    st.none() | st.builds(Secret, st.sampled_from(["env:TOKEN", "file:/a b"])),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=5,
)  # fmt: skip
jobs = st.builds(
    lambda values: Job(**values),
    given(
        name=st.text("abc-09", min_size=1, max_size=5),
        seed=st.none() | st.integers(0, 2**64),
        duration=durations,
        deterministic=st.booleans(),
        mode=st.sampled_from(Mode),
        compute=st.sampled_from(["bf16", "fp32"]),
        warmup=st.just("auto") | counts,
        log_every=periods,
        folder=st.sampled_from(["null", "a/b", "~/x y", "..", "é", "/"]).map(Path),
        model=transformers | recurrents,
        optimizer=optimizers,
        sources=sources,
        batch=batches,
        tracker=st.none() | trackers,
        evaluations=st.dictionaries(keys, batches, max_size=2),
        tags=st.lists(words, max_size=3),
        thresholds=st.dictionaries(words, positive, max_size=2),
        user=st.dictionaries(names, plain, max_size=3),
    ),
)
