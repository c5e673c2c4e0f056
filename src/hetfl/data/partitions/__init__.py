"""Partitions of a data set among clients: one settings class per scheme, and a list of indices per client.

A new scheme is a subclass of :class:`Scheme` with a method ``cut``, and a member of ``PartitionSettings``.
"""

from typing import Annotated

from pydantic import Field

from hetfl.data.partitions.base import Partition, Scheme, check_partition, make_partition
from hetfl.data.partitions.domains import Domains
from hetfl.data.partitions.fedhpl import ClassSubsets, Dirichlet, DirichletOverlap, Iid
from hetfl.data.partitions.fedtgp import Blocks, Practical
from hetfl.data.partitions.fgpt import Pachinko, Pathological
from hetfl.data.partitions.files import class_counts, read_partition, write_partition

PartitionSettings = Annotated[
    Iid | DirichletOverlap | Dirichlet | ClassSubsets | Practical | Blocks | Pathological | Pachinko | Domains,
    Field(discriminator="scheme"),
]

__all__ = [
    "Blocks",
    "ClassSubsets",
    "Dirichlet",
    "DirichletOverlap",
    "Domains",
    "Iid",
    "Pachinko",
    "Partition",
    "PartitionSettings",
    "Pathological",
    "Practical",
    "Scheme",
    "check_partition",
    "class_counts",
    "make_partition",
    "read_partition",
    "write_partition",
]
