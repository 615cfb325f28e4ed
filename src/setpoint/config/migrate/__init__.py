"""From configs of older schemas to those of today.

Imported when an old record, an old file or an unknown key is met, and by modules of migrations.
"""

from .chain import migration as migration
from .meaning import Added as Added
from .meaning import Converted as Converted
from .meaning import Kept as Kept
from .meaning import Meant as Meant
from .moving import Merged as Merged
from .moving import Renamed as Renamed
from .moving import Retired as Retired
from .moving import Split as Split
from .operation import Operation as Operation
