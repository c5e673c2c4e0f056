"""See :mod:`hetfl.tables.printed`."""

from functools import partial

from hetfl.tables import printed as of_papers

printed = partial(of_papers.printed, "fedhpl")
FRAME_3 = "fedhpl-resnet-frame-3"
