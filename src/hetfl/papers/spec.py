"""See :mod:`hetfl.tables.spec`."""

from hetfl.tables.spec import Entry as Entry
from hetfl.tables.spec import TableSpec as TableSpec
from hetfl.tables.spec import entry as entry
