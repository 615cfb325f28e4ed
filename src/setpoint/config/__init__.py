"""The configuration kernel: define, construct, override, validate, compose, serialize.

It knows nothing of training and imports neither torch nor anything heavy. All that others use of it
is imported from here; its packages are private, and each uses only those above it in this list:
`words`, `values`, `files`, `types`, `schema`, `migrations`, `draft`, `components`, `layers`,
`resolving`, `record`. Above them stand `composition`, which puts the layers together, and
`other_names`, which answers to the names of other systems. A name is imported from its module when
it is first used, so that a command pays for what it needs.

Four words beside those of the documentation. *Shared section*: one section that stands in several
places of a tree, by a reference or an assignment; it is written once and built once. *Dead value*:
a value that was given and can have no effect, since another value rules it out; an error, or
dropped if a later layer ruled it out. *Invalid value*: one that is known to be wrong and has been
reported; nothing is concluded from it. *Edit*: what changes an item of a list or mapping that
stands there, such as append, insert or remove.
"""

from .lazy import exports

<<<<<<< HEAD
__getattr__, __dir__, __all__ = exports(__name__)
=======
if TYPE_CHECKING:
    from .components.arguments import Named as Named
    from .components.partial import Partial as Partial
    from .components.partial import partial as partial
    from .components.section import Foreign as Foreign
    from .components.signature import ANY_NAME as ANY_NAME
    from .components.signature import call_component as call_component
    from .components.signature import converted_argument as converted_argument
    from .components.signature import parameters_of as parameters_of
    from .components.signature import takes_parameter as takes_parameter
    from .components.signature import wrong_arguments as wrong_arguments
    from .composition import HEADERS as HEADERS
    from .composition import SUFFIXES as SUFFIXES
    from .composition import SWEEP_KEY as SWEEP_KEY
    from .composition import Composition as Composition
    from .composition import compose as compose
    from .composition import import_presets as import_presets
    from .draft.argument_errors import need_class as need_class
    from .draft.argument_errors import need_resolved as need_resolved
    from .draft.build import building as building
    from .draft.build import owner_of as owner_of
    from .draft.config import Builds as Builds
    from .draft.config import Config as Config
    from .draft.config import fields_of as fields_of
    from .draft.config import is_set as is_set
    from .draft.copying import draft_of as draft_of
    from .draft.copying import is_changed as is_changed
    from .draft.plain import to_minimal as to_minimal
    from .draft.plain import to_plain as to_plain
    from .draft.shared_sections import entries_of as entries_of
    from .draft.shared_sections import shared as shared
    from .draft.unknown_keys import known_elsewhere as known_elsewhere
    from .draft.unknown_keys import place_of as place_of
    from .draft.walk import TAG as TAG
    from .draft.walk import Leaf as Leaf
    from .draft.walk import dropped_values as dropped_values
    from .draft.walk import leaves as leaves
    from .draft.walk import narrower as narrower
    from .draft.walk import sections as sections
    from .files.document import MAX_BYTES as MAX_BYTES
    from .files.document import Document as Document
    from .files.document import FileError as FileError
    from .files.document import Format as Format
    from .files.document import is_mapping as is_mapping
    from .files.read import parse_bytes as parse_bytes
    from .files.read import read_file as read_file
    from .files.read import read_plain_file as read_plain_file
    from .files.write import write_json as write_json
    from .files.write import write_toml as write_toml
    from .files.write import write_yaml as write_yaml
    from .layers.editor import Editor as Editor
    from .layers.environment import prefix_of as prefix_of
    from .layers.flags import Flag as Flag
    from .layers.flags import Word as Word
    from .layers.flags import deletes as deletes
    from .layers.flags import is_section as is_section
    from .layers.flags import one_word as one_word
    from .layers.flags import put_flags as put_flags
    from .layers.flags import read_flags as read_flags
    from .layers.flags import unexpected as unexpected
    from .layers.flags import with_value as with_value
    from .layers.hints import overridden as overridden
    from .layers.hints import written as written
    from .layers.list_edits import item_index as item_index
    from .layers.presets import load_plugins as load_plugins
    from .layers.presets import modifier as modifier
    from .layers.presets import modifiers as modifiers
    from .layers.presets import preset as preset
    from .layers.presets import preset_named as preset_named
    from .layers.presets import preset_parameters as preset_parameters
    from .layers.presets import preset_summary as preset_summary
    from .layers.presets import presets as presets
    from .layers.presets import unknown_preset as unknown_preset
    from .migrations.chain import HEADER as HEADER
    from .migrations.chain import MigratedDocument as MigratedDocument
    from .migrations.chain import migrate as migrate
    from .migrations.chain import migration as migration
    from .migrations.chain import oldest_schema as oldest_schema
    from .migrations.chain import retired_hint as retired_hint
    from .migrations.chain import schema_of as schema_of
    from .migrations.operations import Added as Added
    from .migrations.operations import Converted as Converted
    from .migrations.operations import Operation as Operation
    from .migrations.operations import Renamed as Renamed
    from .migrations.operations import Retired as Retired
    from .migrations.operations import Tree as Tree
    from .migrations.operations import guessed as guessed
    from .other_names import Converter as Converter
    from .other_names import Given as Given
    from .other_names import Ours as Ours
    from .other_names import answer as answer
    from .record.compare import ABSENT as ABSENT
    from .record.compare import Difference as Difference
    from .record.compare import Entry as Entry
    from .record.compare import Table as Table
    from .record.compare import compare as compare
    from .record.compare import differences as differences
    from .record.compare import leaf_table as leaf_table
    from .record.compare import recorded_differences as recorded_differences
    from .record.compare import recorded_table as recorded_table
    from .record.fingerprint import SHORT as SHORT
    from .record.fingerprint import canonical as canonical
    from .record.fingerprint import canonical_json as canonical_json
    from .record.fingerprint import fingerprint as fingerprint
    from .record.fingerprint import identity_leaves as identity_leaves
    from .record.fingerprint import sha256 as sha256
    from .record.python_source import to_python as to_python
    from .record.record import CONFIG as CONFIG
    from .record.record import MINIMAL as MINIMAL
    from .record.record import NEW_ORIGINS as NEW_ORIGINS
    from .record.record import ORIGINS as ORIGINS
    from .record.record import ROLES as ROLES
    from .record.record import backup_name as backup_name
    from .record.record import is_record as is_record
    from .record.record import load_record as load_record
    from .record.record import read_record as read_record
    from .record.record import record_files as record_files
    from .record.record import recorded_fingerprint as recorded_fingerprint
    from .record.record import recorded_schema as recorded_schema
    from .record.record import take_new_origins as take_new_origins
    from .resolving.checks import Verification as Verification
    from .resolving.checks import cautions_of as cautions_of
    from .resolving.checks import describe_value as describe_value
    from .resolving.checks import known_cautions as known_cautions
    from .resolving.checks import needs_of as needs_of
    from .resolving.checks import verify as verify
    from .resolving.resolve import resolve as resolve
    from .schema.bounds import BUDGET as BUDGET
    from .schema.bounds import IDENTITY as IDENTITY
    from .schema.bounds import RUNTIME as RUNTIME
    from .schema.bounds import Bounds as Bounds
    from .schema.bounds import Role as Role
    from .schema.declare import NEEDS as NEEDS
    from .schema.declare import Need as Need
    from .schema.declare import Rule as Rule
    from .schema.declare import check as check
    from .schema.declare import component as component
    from .schema.declare import dead as dead
    from .schema.declare import derive as derive
    from .schema.declare import derived as derived
    from .schema.declare import field as field
    from .schema.field import FieldInfo as FieldInfo
    from .schema.tree import add_section as add_section
    from .schema.tree import added_sections as added_sections
    from .schema.tree import all_fields as all_fields
    from .schema.tree import classes_at as classes_at
    from .schema.tree import field_of as field_of
    from .schema.tree import known_tags as known_tags
    from .types.base import FieldType as FieldType
    from .types.compiler import Component as Component
    from .types.containers import REMOVE as REMOVE
    from .types.containers import AnyOfType as AnyOfType
    from .types.containers import MappingType as MappingType
    from .types.containers import OptionalType as OptionalType
    from .types.containers import SequenceType as SequenceType
    from .types.containers import TupleType as TupleType
    from .types.scalars import TRUTH as TRUTH
    from .types.scalars import BoolType as BoolType
    from .types.scalars import EnumType as EnumType
    from .types.scalars import FloatType as FloatType
    from .types.scalars import IntType as IntType
    from .types.scalars import LiteralType as LiteralType
    from .types.scalars import PathType as PathType
    from .types.scalars import StrType as StrType
    from .types.sections import SectionType as SectionType
    from .types.sections import section_classes as section_classes
    from .types.special import AnyType as AnyType
    from .types.special import FreeType as FreeType
    from .types.special import ImportPathType as ImportPathType
    from .types.special import PatternType as PatternType
    from .types.special import ScalarType as ScalarType
    from .values.containers import Free as Free
    from .values.node import Node as Node
    from .values.node import chain_of as chain_of
    from .values.node import is_frozen as is_frozen
    from .values.node import value_or_missing as value_or_missing
    from .values.origin import COMMAND_LINE as COMMAND_LINE
    from .values.origin import DEFAULT as DEFAULT
    from .values.origin import DERIVED as DERIVED
    from .values.origin import ENVIRONMENT as ENVIRONMENT
    from .values.origin import FILE as FILE
    from .values.origin import PROGRAM as PROGRAM
    from .values.origin import RECORD as RECORD
    from .values.origin import REFERENCE as REFERENCE
    from .values.origin import SWEEP as SWEEP
    from .values.origin import Origin as Origin
    from .values.origin import Recorded as Recorded
    from .values.origin import short_name as short_name
    from .values.reference import ref as ref
    from .values.scalar import ImportPath as ImportPath
    from .values.scalar import Scalar as Scalar
    from .values.scalar import Secret as Secret
    from .values.user_code import LOG_OF as LOG_OF
    from .values.user_code import allow_imports as allow_imports
    from .values.user_code import error_in_words as error_in_words
    from .values.user_code import find_user_function as find_user_function
    from .values.user_code import import_user_module as import_user_module
    from .values.user_code import log_of as log_of
    from .values.user_code import raised_by_user as raised_by_user
    from .values.user_code import show_all_frames as show_all_frames
    from .values.user_code import traceback_of as traceback_of
    from .values.user_code import traceback_to_show as traceback_to_show
    from .values.user_code import users_traceback as users_traceback
    from .values.user_code import was_quit as was_quit
    from .values.user_code import whole_traceback as whole_traceback
    from .words.errors import HIDDEN as HIDDEN
    from .words.errors import Caution as Caution
    from .words.errors import ConfigError as ConfigError
    from .words.errors import Invalid as Invalid
    from .words.errors import Problem as Problem
    from .words.errors import RunError as RunError
    from .words.errors import SetpointError as SetpointError
    from .words.errors import UnresolvedError as UnresolvedError
    from .words.errors import UserCodeError as UserCodeError
    from .words.errors import hide_secrets as hide_secrets
    from .words.errors import printable as printable
    from .words.names import MAX_NAME as MAX_NAME
    from .words.names import MAX_PATH as MAX_PATH
    from .words.names import Path as Path
    from .words.names import can_be_named as can_be_named
    from .words.names import can_be_path as can_be_path
    from .words.names import did_you_mean as did_you_mean
    from .words.names import nearest as nearest
    from .words.names import within as within
    from .words.plain_data import INFINITIES as INFINITIES
    from .words.plain_data import MAX_BITS as MAX_BITS
    from .words.plain_data import MISSING as MISSING
    from .words.plain_data import PlainScalar as PlainScalar
    from .words.plain_data import guess as guess
    from .words.plain_data import plain as plain
    from .words.plain_data import same as same
    from .words.text import for_error as for_error
    from .words.text import for_flag as for_flag
    from .words.text import for_shell as for_shell
    from .words.text import in_full as in_full
    from .words.text import parse_flow as parse_flow
    from .words.text import parse_list as parse_list
    from .words.text import parsed as parsed

# Where each name lies.
_NAMES = {
    "components.arguments": "Named",
    "components.partial": "Partial partial",
    "components.section": "Foreign",
    "components.signature": (
        "ANY_NAME call_component converted_argument parameters_of takes_parameter wrong_arguments"
    ),
    "composition": "Composition HEADERS SUFFIXES SWEEP_KEY compose import_presets",
    "draft.argument_errors": "need_class need_resolved",
    "draft.build": "building owner_of",
    "draft.config": "Builds Config fields_of is_set",
    "draft.copying": "draft_of is_changed",
    "draft.plain": "to_minimal to_plain",
    "draft.shared_sections": "entries_of shared",
    "draft.unknown_keys": "known_elsewhere place_of",
    "draft.walk": "Leaf TAG dropped_values leaves narrower sections",
    "files.document": "Document FileError Format MAX_BYTES is_mapping",
    "files.read": "parse_bytes read_file read_plain_file",
    "files.write": "write_json write_toml write_yaml",
    "layers.editor": "Editor",
    "layers.environment": "prefix_of",
    "layers.flags": (
        "Flag Word deletes is_section one_word put_flags read_flags unexpected with_value"
    ),
    "layers.hints": "overridden written",
    "layers.list_edits": "item_index",
    "layers.presets": (
        "load_plugins modifier modifiers preset preset_named preset_parameters preset_summary "
        "presets unknown_preset"
    ),
    "migrations.chain": (
        "HEADER MigratedDocument migrate migration oldest_schema retired_hint schema_of"
    ),
    "migrations.operations": "Added Converted Operation Renamed Retired Tree guessed",
    "other_names": "Converter Given Ours answer",
    "record.compare": (
        "ABSENT Difference Entry Table compare differences leaf_table recorded_differences "
        "recorded_table"
    ),
    "record.fingerprint": "SHORT canonical canonical_json fingerprint identity_leaves sha256",
    "record.python_source": "to_python",
    "record.record": (
        "CONFIG MINIMAL NEW_ORIGINS ORIGINS ROLES backup_name is_record load_record read_record "
        "record_files recorded_fingerprint recorded_schema take_new_origins"
    ),
    "resolving.resolve": "resolve",
    "resolving.checks": ("Verification cautions_of describe_value known_cautions needs_of verify"),
    "schema.bounds": "BUDGET Bounds IDENTITY RUNTIME Role",
    "schema.declare": "NEEDS Need Rule check component dead derive derived field",
    "schema.field": "FieldInfo",
    "schema.tree": "add_section added_sections all_fields classes_at field_of known_tags",
    "types.base": "FieldType",
    "types.compiler": "Component",
    "types.containers": "AnyOfType MappingType OptionalType REMOVE SequenceType TupleType",
    "types.scalars": ("BoolType EnumType FloatType IntType LiteralType PathType StrType TRUTH"),
    "types.sections": "SectionType section_classes",
    "types.special": "AnyType FreeType ImportPathType PatternType ScalarType",
    "values.containers": "Free",
    "values.node": "Node chain_of is_frozen value_or_missing",
    "values.origin": (
        "COMMAND_LINE DEFAULT DERIVED ENVIRONMENT FILE Origin PROGRAM RECORD REFERENCE Recorded "
        "SWEEP short_name"
    ),
    "values.reference": "ref",
    "values.scalar": "ImportPath Scalar Secret",
    "values.user_code": (
        "LOG_OF allow_imports error_in_words find_user_function import_user_module log_of "
        "raised_by_user show_all_frames traceback_of traceback_to_show users_traceback "
        "was_quit whole_traceback"
    ),
    "words.errors": (
        "Caution ConfigError HIDDEN Invalid Problem RunError SetpointError UnresolvedError "
        "UserCodeError hide_secrets printable"
    ),
    "words.names": "MAX_NAME MAX_PATH Path can_be_named can_be_path did_you_mean nearest within",
    "words.plain_data": "INFINITIES MAX_BITS MISSING PlainScalar guess plain same",
    "words.text": "for_error for_flag for_shell in_full parse_flow parse_list parsed",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
>>>>>>> 33862622 (Make text and plain data of values in one module each)
