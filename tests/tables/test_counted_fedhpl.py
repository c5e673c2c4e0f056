"""FedHPL's counted tables, against what the paper prints."""

import pytest
from counted_helpers import found, table
from table_helpers import PARAMS

from hetfl.tables.catalogue import arithmetic_table
from hetfl.tables.counted.layout import layout, layouts

MISPRINTS = {
    ("fedhpl-table-5", "CIFAR10_SVHN", "entire-ViT-S"): ("20.57", "20.67"),
    ("fedhpl-table-6", "example-shallow", "ViT-S"): ("4.89", "4.88"),
}


def test_a_table_that_is_counted_anew_is_the_committed_one() -> None:
    # DVC's table has the versions of the libraries that counted it.
    counted, committed = arithmetic_table("fedhpl-table-8", PARAMS), table("fedhpl-table-8")
    assert counted["cells"] == committed["cells"] and counted["footnotes"] == committed["footnotes"]


@pytest.mark.parametrize("name", layouts("fedhpl"))
def test_every_printed_number_is_reproduced_to_the_digit_or_is_a_known_misprint(name: str) -> None:
    cells = [cell for cell in table(name)["cells"] if cell["agrees"] is not None]
    assert {(cell["row"], cell["column"]) for cell in cells} == {*layout(name).printed}
    for cell in cells:
        known = MISPRINTS.get((name, cell["row"], cell["column"]))
        assert cell["agrees"] == (known is None), cell
        if known:
            assert (cell["printed_text"], cell["value_text"]) == known
            assert cell["footnote"] in table(name)["footnotes"]


@pytest.mark.parametrize("name", layouts("fedhpl"))
def test_cells_belong_to_rows_and_columns(name: str) -> None:
    content = table(name)
    places = [(cell["row"], cell["column"]) for cell in content["cells"]]
    remarks = {column for column in content["columns"] if column.endswith("-server")}  # not every method has one
    every = [(row, column) for row in content["rows"] for column in content["columns"] if column not in remarks]
    assert sorted(place for place in places if place[1] not in remarks) == sorted(every)
    assert {row for row, column in places if column in remarks} == (
        {"FedGen", "FedGH", "FedTGP"} if remarks else set()
    )
    assert {cell["status"] for cell in content["cells"]} == {"arithmetic"}
    assert {cell["unit"] for cell in content["cells"]} <= {"M", "K", "elements"}


@pytest.mark.parametrize(
    ("name", "row", "column", "elements"),
    [
        ("fedhpl-table-5", "CIFAR10_SVHN", "backbone-ViT-S", 21_665_664),
        ("fedhpl-table-5", "CIFAR10_SVHN", "backbone-ViT-B", 85_798_656),
        ("fedhpl-table-5", "CIFAR10_SVHN", "backbone-ViT-L", 303_301_632),
        ("fedhpl-table-5", "CIFAR10_SVHN", "pfedpt-vit", 1_076_106),
        ("fedhpl-table-5", "CIFAR100", "pfedpt-vit", 1_087_716),
        ("fedhpl-table-5", "CIFAR10_SVHN", "pfedpg-g2", 1_585_152),
        ("fedhpl-table-9", "FedGen", "CIFAR10_SVHN-server", 531_456),
        ("fedhpl-table-9", "FedGen", "CIFAR100-server", 577_536),
        ("fedhpl-table-9", "FedTGP", "CIFAR10_SVHN-server", 530_432),
        ("fedhpl-table-9", "FedTGP", "CIFAR100-server", 576_512),
    ],
)
def test_counts_are_exact_behind_their_roundings(name: str, row: str, column: str, elements: int) -> None:
    assert found(name, row, column)["value"] * 1024**2 == elements


def test_what_the_paper_leaves_unclear_has_a_footnote() -> None:
    notes = {name: " ".join(table(name)["footnotes"]) for name in layouts("fedhpl")}
    assert '"with 3 prompts"' in notes["fedhpl-table-5"]
    assert "exact sum" in notes["fedhpl-table-5"]
    assert all("3 pixels wide" in notes[name] for name in ("fedhpl-table-7", "fedhpl-table-8"))
