"""The parameters that a cell's networks have, counted before anything is trained."""

from __future__ import annotations

from functools import cache

from hetfl.data.sets import CATALOGUE
from hetfl.experiments.plan import Cell
from hetfl.methods.base import create
from hetfl.models.outline import outline
from hetfl.schema import Parameters
from hetfl.tables.counted.exchange import Exchange, of_all_classes


def parameters(cell: Cell) -> Parameters:
    """What the cell's record will say of its parameters, from shapes alone.

    Args:
        cell: on data sets of the catalogue; neither these nor weights need be there.
    """
    return _parameters(cell.model_dump_json())


@cache
def _parameters(content: str) -> Parameters:
    """The same of a cell as JSON, counted once: tables, the ledger and the report ask for it."""
    cell = Cell.model_validate_json(content)
    classes = len(CATALOGUE[cell.dataset].class_names)
    public = len(CATALOGUE[cell.public.dataset].class_names) if cell.public else 0
    method, clients = create(cell.method, cell.settings, classes, public), int(cell.partition["clients"])
    models = [outline(name, classes, method.model_options(), cell.input) for name in cell.models]
    sent = Exchange(method, models, [of_all_classes(classes, classes)] * clients)
    learned = method.server_parameters(sent.server)
    return Parameters(
        trainable=[method.trained_elements(model) for model in sent.models],
        total=[model.total_elements for model in sent.models],
        server=sum(tensor.numel() for tensor in learned.values()),
    )
