"""See :mod:`hetfl.tables.catalogue`."""

from hetfl.tables.catalogue import ARITHMETIC_TABLES as ARITHMETIC_TABLES
from hetfl.tables.catalogue import PAPER_TABLES as PAPER_TABLES
from hetfl.tables.catalogue import arithmetic_table as arithmetic_table
from hetfl.tables.catalogue import table_spec as table_spec
