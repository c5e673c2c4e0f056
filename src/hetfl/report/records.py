"""See :mod:`hetfl.tables.records`."""

from hetfl.tables.records import Record as Record
from hetfl.tables.records import accuracy_of as accuracy_of
from hetfl.tables.records import missing as missing
from hetfl.tables.records import read_record as read_record
