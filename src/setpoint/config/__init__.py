"""The configuration kernel: define, construct, override, validate, compose, serialize.

It is independent of training and imports neither torch nor other heavy packages. `__init__.pyi`
lists the names that users and most packages need, which are imported from here; all other names are
imported from their modules. Each part uses only the parts before it in this list: `words`,
`values`, `files`, `types`, `schema`, `migrations`, `draft`, `component_sections`, `layers`,
`resolving`, `record`. Above them are `composition`, which merges the layers, and `other_names`,
which translates the names of other systems. A name is imported from its module on first use, so a
command loads only what it needs.

Four further terms; the glossary has the rest. *Shared section*: a section at several paths of a
tree, through a reference or an assignment; it is written and built once. *Dead value*: a given
value that can have no effect because another value rules it out; an error, or dropped if a later
layer ruled it out. *Invalid value*: a value already reported as wrong; nothing is concluded from
it. *Edit*: a change to an existing list or mapping, such as appending or removing an item.
"""

from .lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
