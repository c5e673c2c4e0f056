"""The partitions by domain: Five-Dataset (FGPT), Office-Caltech10 and DomainNet (SGPT, after FedBN)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hetfl.data.partitions.base import Partition, Scheme, Side
from hetfl.data.partitions.shares import floors, members, sorted_parts
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown


class Domains(Scheme):
    """Every domain is divided into equal random parts, one per client, for training and for testing alike.

    Clients are numbered in the order of the domains.

    Attributes:
        attribute: name of the attribute that holds a sample's domain.
        clients_per_domain: number of parts of each domain.
        limit: every client keeps the same number of its training samples, at random: this share, rounded down, of the
            number that the smallest client has. None: clients keep all their samples.
    """

    scheme: Literal["domains"] = "domains"
    attribute: str = "domain"
    clients_per_domain: int = Field(default=1, ge=1)
    limit: float | None = Field(default=None, gt=0, le=1)

    test: ClassVar[Literal["shared", "own"]] = "own"

    @property
    def exhaustive(self) -> bool:
        """True without a limit."""
        return self.limit is None

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Shuffle each domain and divide it among its clients."""
        if self.attribute not in dataset.attributes:
            raise unknown("attribute", self.attribute, dataset.attributes, f"{where}.attribute")
        domains = len(dataset.attributes[self.attribute])
        if self.clients != domains * self.clients_per_domain:
            raise HetflError(
                f"{where}.clients: {self.clients}, but {domains} domains with {self.clients_per_domain} each need "
                f"{domains * self.clients_per_domain}"
            )
        train, test = (self._parts(side, domains, dataset, draws) for side in ("train", "test"))
        if self.limit is not None:
            smallest = min(map(len, train))
            kept = int(floors(self.limit, smallest))
            if kept == 0:
                raise HetflError(
                    f"{where}.limit: {self.limit} of the {smallest} training samples of the smallest client is none; "
                    "use more"
                )
            train = [part[:kept] for part in train]
        return Partition(sorted_parts([part] for part in train), sorted_parts([part] for part in test))

    def _parts(self, side: Side, domains: int, dataset: Dataset, draws: Draws) -> list[np.ndarray]:
        return [
            part
            for domain, indices in enumerate(members(dataset.attribute(self.attribute, (side,)), domains))
            for part in np.array_split(
                draws.numpy_generator(f"partition:domains:{side}", domain).permutation(indices),
                self.clients_per_domain,
            )
        ]
