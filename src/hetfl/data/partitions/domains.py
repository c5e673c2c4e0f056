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
    """Every domain cut into equal random parts, training and test subset alike; clients in the order of domains.

    Attributes:
        attribute: the attribute that tells the domains apart.
        clients_per_domain: parts of each domain.
        limit: every client keeps that part, rounded down, of the smallest client's number of training samples, a
            random choice; None: it keeps all of its own.
    """

    scheme: Literal["domains"] = "domains"
    attribute: str = "domain"
    clients_per_domain: int = Field(default=1, ge=1)
    limit: float | None = Field(default=None, gt=0, le=1)

    test: ClassVar[Literal["shared", "own"]] = "own"

    @property
    def exhaustive(self) -> bool:
        """Only without a limit."""
        return self.limit is None

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Shuffle each domain and cut it."""
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
