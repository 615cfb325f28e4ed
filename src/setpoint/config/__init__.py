"""The configuration kernel: define, construct, override, validate, compose, serialize.

It knows nothing of training and imports neither torch nor anything heavy. What users and most
packages need of it is listed in `__init__.pyi` and imported from here; what one or two packages
need, from its module. Each part uses only those before it in this list: `words`, `values`, `files`,
`types`, `schema`, `migrations`, `draft`, `component_sections`, `layers`, `resolving`, `record`.
Above them stand `composition`, which puts the layers together, and `other_names`, which answers to
the names of other systems. A name is imported from its module when it is first used, so that a
command pays for what it needs.

Four words beside those of the documentation. *Shared section*: one section that stands in several
places of a tree, by a reference or an assignment; it is written once and built once. *Dead value*:
a value that was given and can have no effect, since another value rules it out; an error, or
dropped if a later layer ruled it out. *Invalid value*: one that is known to be wrong and has been
reported; nothing is concluded from it. *Edit*: what changes an item of a list or mapping that
stands there, such as append, insert or remove.
"""

from .lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
