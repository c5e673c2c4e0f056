"""See :mod:`hetfl.tables.printed`."""

from functools import partial

from hetfl.tables import printed as of_papers

printed = partial(of_papers.printed, "fedtgp")
METHODS = of_papers.methods("fedtgp")
CIFAR100 = "fedtgp-htfe8-cifar100-practical"
