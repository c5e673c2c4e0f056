"""See :mod:`hetfl.tables.printed`."""

from functools import partial
from typing import NamedTuple

from hetfl.tables import printed as of_papers

printed = partial(of_papers.printed, "fgpt")
METHODS = of_papers.methods("fgpt")
READINGS = {"fgpt-u": "top-5"}


class Setting(NamedTuple):
    title: str
    experiment: str
    split: str


S10 = Setting("CIFAR-100, s = 10", "fgpt-cifar100-s10", "s10")
S5 = Setting("CIFAR-100, s = 5", "fgpt-cifar100-s5", "s5")
FIVE = Setting("Five-Dataset", "fgpt-five", "domains")
