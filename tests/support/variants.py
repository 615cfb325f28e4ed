"""Variants that tests declare, known only while these tests run."""

from collections.abc import Iterator
from contextlib import contextmanager

from setpoint.config import Config, add_section


def forget(family: type[Config], module: str) -> dict[str, type[Config]]:
    """Take the variants of a module out of their family, so that other tests do not meet them."""
    variants = family.__setpoint__.variants
    own = {tag: cls for tag, cls in variants.items() if cls.__module__ == module}
    for tag in own:
        del variants[tag]
    return own


@contextmanager
def known(family: type[Config], variants: dict[str, type[Config]]) -> Iterator[None]:
    """Put variants back for a while."""
    family.__setpoint__.variants.update(variants)
    try:
        yield
    finally:
        for tag in variants:
            del family.__setpoint__.variants[tag]


@contextmanager
def sections(job: type[Config], **added: type[Config]) -> Iterator[None]:
    """Add sections to a job for a while."""
    for name, section in added.items():
        add_section(job, name, section)
    try:
        yield
    finally:
        for name in added:
            del job.__setpoint__.fields[name], job.__setpoint__.added[name]
