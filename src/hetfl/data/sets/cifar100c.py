"""CIFAR-100-C: corrupted test images of CIFAR-100, generated here or read from its authors' arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from hetfl.config import Settings
from hetfl.data.archive import decode, members
from hetfl.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, frost_texture, synthetic_frost
from hetfl.data.entry import Entry
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import held_out, reading
from hetfl.data.sets.cifar import ENTRIES as CIFAR
from hetfl.data.store import Subset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown

CIFAR100 = next(entry for entry in CIFAR if entry.name == "cifar100")
PHOTOGRAPHS = 10_000
"""Number of CIFAR-100's test images. Row (v - 1) * 10,000 + i of a published array is photograph i at severity v."""

ARCHIVE = RemoteFile(
    "CIFAR-100-C.tar",
    ("https://zenodo.org/records/3555552/files/CIFAR-100-C.tar",),
    "md5:11f0ed0f1191edbf9fa23466ae6021d3",
    2_918_473_216,
)
_REPOSITORY = "https://raw.githubusercontent.com/hendrycks/robustness"
FROST = tuple(
    RemoteFile(
        name,
        tuple(
            f"{_REPOSITORY}/{version}/ImageNet-C/imagenet_c/imagenet_c/frost/{name}"
            for version in ("0c17345505fc94f1affa8923cd1333a5cbffe139", "master")
        ),
        f"sha256:{sha256}",
        size,
    )
    for name, sha256, size in (
        ("frost1.png", "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755", 1_199_930),
        ("frost2.png", "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137", 299_002),
        ("frost3.png", "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504", 299_002),
        ("frost4.jpg", "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e", 36_734),
        ("frost5.jpg", "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2", 155_150),
    )
)
"""The frost photographs. The generator has six and draws from these five only."""


def _known(domain: str) -> str:
    if domain not in CORRUPTIONS:
        _, _, hint = str(unknown("domain", domain, CORRUPTIONS)).partition("; ")
        raise ValueError(f"is no corruption; {hint}")
    return domain


class Cifar100CSettings(Settings):
    """Which images are drawn from 19 corruptions, five severities and 10,000 photographs.

    The paper (FGPT) takes 1,000 random images of each of ten domains. It does not state the severities, the division
    into training and test, or which ten domains it takes. ``per_domain: 50000, leak_free: false, test: 1`` is the
    whole published set, every image at every severity.

    Attributes:
        source: ``generated`` from CIFAR-100 by the published formulas, with draws of our own, or ``official``.
        domains: names of corruptions; the default is the generator's first ten.
        severities: each image's severity is drawn from these, uniformly.
        leak_free: whether each photograph appears only once. Otherwise each domain draws independently, so that
            versions of one photograph can be in training and in test.
        per_domain: number of images of each domain.
        test: share of every class that is held out for the test subset; with 1 there is no training subset.
        seed: of all draws.
        frost: textures of the generated corruption ``frost``: the published ``photographs``, or ``synthetic`` ones,
            which deviate from the publication.
    """

    source: Literal["generated", "official"] = "generated"
    domains: tuple[Annotated[str, AfterValidator(_known)], ...] = Field(tuple(CORRUPTIONS)[:10], min_length=1)
    severities: tuple[Annotated[int, Field(ge=1, le=5)], ...] = Field(SEVERITIES, min_length=1)
    leak_free: bool = True
    per_domain: int = Field(default=1000, gt=0, validate_default=True)
    test: float = Field(default=0.2, gt=0, le=1)
    seed: int = 0
    frost: Literal["photographs", "synthetic"] = "photographs"

    @field_validator("domains", "severities")
    @classmethod
    def _differ(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) < len(values):
            raise ValueError("names one twice")
        return values

    @field_validator("per_domain")
    @classmethod
    def _can_be_drawn(cls, per_domain: int, info: ValidationInfo) -> int:
        domains, severities = (len(info.data.get(key, ("",))) for key in ("domains", "severities"))
        if info.data.get("leak_free", True):
            if per_domain * domains > PHOTOGRAPHS:
                raise ValueError(
                    f"times {domains} domains is more than the {PHOTOGRAPHS} photographs; use at most "
                    f"{PHOTOGRAPHS // domains}, or leak_free: false"
                )
        elif per_domain > PHOTOGRAPHS * severities:
            raise ValueError(f"is more than the {PHOTOGRAPHS * severities} images of a domain; use at most these")
        return per_domain


def prepare(settings: Cifar100CSettings, sources: Sources) -> Mapping[str, Subset]:
    """Make one or two subsets of images uint8 [N, 32, 32, 3], sorted by domain, severity and photograph.

    An image depends only on seed, domain, severity and photograph, so a smaller set is a part of the complete one.
    Memory holds the subsets and the images of one more domain.
    """
    draws = Draws(settings.seed)
    rows = _rows(settings, draws)
    classes, images = (_generated if settings.source == "generated" else _official)(settings, sources, draws, rows)
    row = np.concatenate(list(rows.values()))
    domain = np.repeat([list(CORRUPTIONS).index(name) for name in rows], settings.per_domain)
    labels = classes[row % PHOTOGRAPHS].astype(np.int64)
    train, test = held_out(labels, settings.test, draws, "data:cifar100c:test")
    subsets, places = {}, {"train": train, "test": test} if settings.test < 1 else {"test": test}
    for name, place in places.items():
        attributes = {"domain": domain[place], "severity": row[place] // PHOTOGRAPHS}
        subsets[name] = Subset(np.empty((len(place), 32, 32, 3), np.uint8), labels[place], attributes)
    for name, found in images:
        start = list(rows).index(name) * settings.per_domain
        for subset, place in zip(subsets.values(), places.values(), strict=True):
            mine = slice(*np.searchsorted(place, (start, start + settings.per_domain)))
            subset.images[mine] = found[place[mine] - start]
    return subsets


def _rows(settings: Cifar100CSettings, draws: Draws) -> dict[str, np.ndarray]:
    """The rows to take of each domain's array, sorted, int64 [per_domain]."""
    photographs = draws.numpy_generator("data:cifar100c:photographs").permutation(PHOTOGRAPHS)
    offsets = PHOTOGRAPHS * (np.array(settings.severities) - 1)
    rows = {}
    for position, domain in enumerate(settings.domains):
        rng = draws.numpy_generator(f"data:cifar100c:rows:{domain}")
        if settings.leak_free:
            mine = photographs[position * settings.per_domain :][: settings.per_domain]
            taken = mine + rng.choice(offsets, settings.per_domain)
        else:
            every = (offsets[:, None] + np.arange(PHOTOGRAPHS)).reshape(-1)
            taken = rng.choice(every, settings.per_domain, replace=False)
        rows[domain] = np.sort(taken)
    return rows


Images = Iterator[tuple[str, np.ndarray]]
"""Names of domains in any order, each with its images, uint8 [per_domain, 32, 32, 3]."""


def _generated(
    settings: Cifar100CSettings, sources: Sources, draws: Draws, rows: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, Images]:
    """Labels of the photographs, and images generated from them."""
    test = CIFAR100.prepare(CIFAR100.settings(), sources)["test"]
    textures = _textures(settings.frost, sources, draws) if "frost" in rows else None

    def image(domain: str, row: int) -> np.ndarray:
        severity, photograph = divmod(row, PHOTOGRAPHS)
        rng = draws.numpy_generator(f"data:cifar100c:{domain}", row)
        return corrupt(test.images[photograph], domain, severity + 1, rng, textures)

    return test.labels, ((name, np.stack([image(name, int(row)) for row in taken])) for name, taken in rows.items())


def _textures(kind: str, sources: Sources, draws: Draws) -> list[np.ndarray]:
    if kind == "synthetic":
        return [
            synthetic_frost(draws.numpy_generator("data:cifar100c:texture", number)) for number in range(len(FROST))
        ]
    paths = [sources.get("cifar100c", file) for file in FROST]
    return [frost_texture(decode(path.read_bytes(), str(path))) for path in paths]


def _official(
    settings: Cifar100CSettings, sources: Sources, draws: Draws, rows: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, Images]:
    """Labels of the photographs, and the published images."""
    path = sources.get("cifar100c", ARCHIVE)

    def arrays(names: set[str], *shape: int) -> Images:
        missing = set(names)
        for member, content in members(path, lambda member: _domain(member) in names):
            with reading(f"{path}: {member}"):
                array = np.load(BytesIO(content), allow_pickle=False)
                if array.dtype != np.uint8 or array.shape != (len(SEVERITIES) * PHOTOGRAPHS, *shape):
                    raise ValueError(f"is {array.dtype} {list(array.shape)}")
            missing.discard(_domain(member))
            yield _domain(member), array
        if missing:
            raise HetflError(f"{path}: lacks {', '.join(sorted(missing))}; delete it and fetch it again")

    [(_, labels)] = arrays({"labels"})
    return labels[:PHOTOGRAPHS], ((name, array[rows[name]]) for name, array in arrays(set(rows), 32, 32, 3))


def _domain(member: str) -> str:
    return PurePosixPath(member).name.removesuffix(".npy")


ENTRY = Entry(
    name="cifar100c",
    title="CIFAR-100-C",
    origin="D. Hendrycks, T. Dietterich, https://zenodo.org/records/3555552 and "
    "https://github.com/hendrycks/robustness",
    licence="CC BY 4.0; the frost photographs: Apache 2.0",
    citation="D. Hendrycks and T. Dietterich. Benchmarking Neural Network Robustness to Common Corruptions and "
    "Perturbations. ICLR, 2019.",
    class_names=CIFAR100.class_names,
    settings=Cifar100CSettings,
    prepare=prepare,
    files=(ARCHIVE, *FROST),
    attributes={"domain": tuple(CORRUPTIONS), "severity": tuple(map(str, SEVERITIES))},
)
