"""FGPT's counted tables, against sections 5 and 16 of its sheets and against pencil and paper."""

from __future__ import annotations

import pytest
import torch
from counted_helpers import found, table
from table_helpers import PARAMS

from hetfl.data.batches import Batch
from hetfl.metrics.flops import flops, step_flops
from hetfl.report.formats import blocks, filled, footnotes, render_markdown, render_text
from hetfl.report.table import write_table
from hetfl.tables.counted.exchange import SampleCost, fitted, float_elements
from hetfl.tables.counted.fgpt import (
    COSTS,
    SENDERS,
    SGPTS,
    STAGES,
    VIT,
    Family,
    gmac,
    image_gradient,
    server_cost,
)
from hetfl.tables.counted.layout import layout, layouts

TOKENS, WIDTH = 197, 768
PATCHES = 196 * WIDTH * WIDTH

EMPTY = {
    *((row, "embedding") for row in ("fedmix", "fedmoon", "pfedhn", "pt-fedavg", "pt-fedavg-share")),
    *((row, column) for row in STAGES for column in ("testing", "testing-ratio", "embedding", "constant", "slope")),
}
"""Where samples are not sorted there is no embedding, and SGPT's stages have steps alone."""

FAMILY = Family(PARAMS)
PRINTED = [*layout("fgpt-table-10").parts[0].rows]


def test_committed_numbers_are_what_is_counted():
    sent = FAMILY.exchange("fgpt")
    cost = SampleCost(sent)
    assert found("fgpt-table-2", "fgpt", "cifar100-20-up")["value"] == float_elements(sent.up)
    assert found("fgpt-table-2", "vit_b16-fgpt", "params")["value"] == float_elements(sent.up) / 1e6
    assert found("fgpt-table-10", "fgpt", "embedding")["value"] == gmac(cost.embedding)
    assert found("fgpt-table-10", "fgpt", "testing")["value"] == gmac(cost.embedding) + gmac(cost.prediction)
    assert found("fgpt-table-10", "fgpt", "training")["value"] == sum(gmac(sum(step)) for step in cost.steps)


def block(tokens: int, attention: bool = True) -> int:
    """Multiply-adds of a transformer block of ViT-B."""
    return 12 * tokens * WIDTH**2 + (2 * tokens**2 * WIDTH if attention else 0)


PLAIN = 12 * block(TOKENS) + PATCHES
HEAD = 100 * WIDTH
PROMPTED = PATCHES + 5 * block(TOKENS + 5) + 7 * block(TOKENS + 6) + HEAD


def test_a_changed_setting_changes_what_is_counted():
    protocol = PARAMS.protocols["fgpt"]
    changed = protocol.model_copy(update={"settings": protocol.settings | {"groups": 30}})
    params = PARAMS.model_copy(update={"protocols": {**PARAMS.protocols, "fgpt": changed}})
    before, after = (family.exchange("fgpt").up[0].size.elements for family in (FAMILY, Family(params)))
    # A prompt and a count of each group.
    assert after - before == 10 * (WIDTH + 1)
    assert FAMILY.method("sgpt", "sgpt-office").settings.vote


@pytest.mark.parametrize(
    ("row", "printed", "text", "exact"),
    [
        ("resnet18", 11, "11", "11,227,812"),
        ("resnet50", 24, "24", "23,712,932"),
        ("vit_b16", 86, "86", "85,875,556"),
        ("vit_b16-fgpt", 0.1, "0.1", "96,100"),
    ],
)
def test_table_2_agrees_at_the_printed_precision(row, printed, text, exact):
    cell = found("fgpt-table-2", row, "params")
    assert (cell["printed"], cell["value_text"], cell["agrees"]) == (printed, text, True)
    for column in ("trained", "up", "down"):
        assert found("fgpt-table-2", row, column)["value_text"] == exact
    assert found("fgpt-table-2", row, "bytes")["value"] == 4 * int(exact.replace(",", ""))


@pytest.mark.parametrize(
    ("row", "column", "text"),
    [
        ("vit_b16", "run", "206101.3"),
        ("fgpt", "cifar100-20-up", "96,100"),
        ("fgpt", "cifar100-20-up-bytes", "384,400"),
        ("fgpt", "cifar100-20-up-integers", "80"),
        ("fgpt", "cifar100-20-run", "230.6"),
        ("pt-fedavg", "cifar100-20-run", "195.6"),
        ("sgpt-s10", "sgpt-run", "339.4"),
        ("sgpt-s10", "sgpt-down-integers", "80"),
        ("sgpt-office", "sgpt-up", "20,746"),
        ("fed-dualprompt", "cifar100-25-down-bytes", "476,560"),
        ("fgpt-fedmix", "five-up-bytes", "184,520"),
        ("fedpr", "cifar100-20-down-integers", "4"),
        ("pool", "once-up", "12,688"),
        ("pool", "once-down", "1,268,800"),
        ("fgpt-keys", "kept", "61,440"),
        ("fgpt-resnet-keys", "kept", "163,840"),
        ("previous", "kept", "18,432"),
        ("network", "kept", "3,183,632"),
        ("query", "kept", "3,072"),
    ],
)
def test_table_2_holds_what_the_messages_hold(row, column, text):
    assert found("fgpt-table-2", row, column)["value_text"] == text


def test_table_2_tells_the_backbone():
    assert "85,798,656 numbers, 343.2 MB" in " ".join(footnotes(filled(table("fgpt-table-2"))))


@pytest.mark.parametrize(
    ("row", "column", "text"),
    [
        ("fgpt", "embedding", "17.56"),
        ("pt-fedavg", "testing", "18.08"),
        ("pt-fedavg-share", "testing", "18.02"),
        ("fgpt", "testing", "35.64"),
        ("fgpt-resnet", "testing", "22.17"),
        ("fgpt-u2", "testing", "46.14"),
        # The sheet's 77.65 is one unit of the last place off: the count is 77.6449.
        ("fgpt-u5", "testing", "77.64"),
        ("fgpt", "training", "36.80"),
        ("pt-fedavg", "training", "36.80"),
        ("pfedhn", "training", "36.80"),
        # 76.10 in the sheet, which takes no gradient of the images; see below.
        ("fedmix", "training", "76.21"),
        # 72.96 in the sheet, the sum of rounded 36.80 and twice 18.08.
        ("fedmoon", "training", "72.95"),
        ("sgpt-first", "training", "36.40"),
        ("sgpt-second", "training", "30.60"),
        ("sgpt", "testing", "35.61"),
    ],
)
def test_costs_are_the_sheets(row, column, text):
    assert found("fgpt-table-10", row, column)["value_text"] == text


def test_forward_passes_by_hand():
    def multiplications(row: str, column: str) -> float:
        return found("fgpt-table-10", row, column)["value"] * 1e9

    keys = 20 * WIDTH
    assert multiplications("fgpt", "embedding") == pytest.approx(PLAIN, abs=1)
    assert multiplications("pt-fedavg", "testing") == pytest.approx(PROMPTED, abs=1)
    shared = PATCHES + 12 * block(TOKENS + 5) + HEAD
    assert multiplications("pt-fedavg-share", "testing") == pytest.approx(shared, abs=1)
    assert multiplications("fgpt", "testing") == pytest.approx(PLAIN + PROMPTED + keys, abs=1)
    branch = 7 * block(TOKENS + 6) + HEAD
    for row, many in (("fgpt-u2", 2), ("fgpt-u5", 5)):
        assert multiplications(row, "testing") == pytest.approx(PLAIN + PROMPTED + keys + (many - 1) * branch, abs=1)
    placed = [*(block(TOKENS + n) for n in (1, 2, 3, 4)), *(block(TOKENS + 4 + n) for n in (1, 2)), 6 * block(204)]
    assert multiplications("sgpt", "testing") == pytest.approx(PLAIN + PATCHES + sum(placed) + HEAD + keys, abs=1)


def test_attention_is_counted():
    without = 12 * block(TOKENS, attention=False) + PATCHES
    assert round(without / 1e9, 2) == 16.85
    notes = " ".join(footnotes(filled(table("fgpt-table-10"))))
    assert "takes 17.56, and 16.85 without the products of attention, where 16.55 is printed" in notes


def test_references_of_fedmoon_cost_two_passes():
    step = found("fgpt-table-10", "pt-fedavg", "training")["value"]
    assert found("fgpt-table-10", "fedmoon", "training")["value"] == pytest.approx(step + 2 * PROMPTED / 1e9)
    assert "leave 44.03 with 5 epochs" in found("fgpt-table-10", "fedmoon", "training")["footnote"]


def test_fedmix_takes_the_gradient_of_the_images_along():
    sent = FAMILY.exchange("fedmix")
    method, model = sent.method, fitted(sent.method, VIT)
    received = {name: tensor.to("meta") for name, tensor in method.receive(sent.down[0], sent.kept).items()}
    params = method.adopt({}, received)
    images = torch.zeros(1, 3, 224, 224, device="meta", requires_grad=True)
    batch = Batch(images, torch.zeros(1, dtype=torch.int64, device="meta"))
    whole = sum(step_flops(method, model, params, batch, received))
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in params.items()}
    loss: list[torch.Tensor] = []

    def forward() -> None:
        loss.append(method.objective(model, leaves, batch, received, method.phase()))

    needed = flops(forward) + flops(lambda: torch.autograd.grad(loss[0], list(leaves.values())))
    assert whole - needed == 2 * PATCHES
    assert image_gradient(FAMILY) == PATCHES / 1e9
    assert f"{needed / 2e9:.2f}" == "76.10"
    assert "76.10 without 0.12" in found("fgpt-table-10", "fedmix", "training")["footnote"]


def test_server_of_pfedhn_costs_next_to_nothing():
    # Two products of each layer's size for each of five clients backward and one, made twice, forward, at least.
    layers = 128 * 150 + 3 * 150 * 150 + 150 * 6 * WIDTH
    assert 2 * 5 * layers < server_cost(FAMILY) * 1e9 < 5 * 5 * layers
    assert server_cost(FAMILY) < 0.02


def test_a_batch_costs_as_much_as_its_samples():
    method, width = FAMILY.method("fgpt"), WIDTH
    model = fitted(method, VIT)
    params = {name: tensor.to("meta") for name, tensor in FAMILY.exchange("fgpt").down[0].items()}
    counts = []
    for size in (1, 3):
        with torch.device("meta"):
            labels = torch.zeros(size, dtype=torch.int64)
            batch = Batch(torch.zeros(size, 3, 224, 224), labels, queries=torch.zeros(size, width))
        counts.append(step_flops(method, model, params, batch, params))
    assert [3 * count for count in counts[0]] == [*counts[1]]


def test_verdicts_of_table_10():
    agrees = {column: found("fgpt-table-10", "fgpt", column)["agrees"] for column in ("testing", "training")}
    assert agrees == {"testing": False, "training": False}
    ratios = {
        row: tuple(found("fgpt-table-10", row, f"{column}-ratio") for column in ("testing", "training"))
        for row in PRINTED
    }
    assert {row: tuple(cell["value_text"] for cell in cells) for row, cells in ratios.items()} == {
        "fgpt": ("1.97", "1.00"),
        "fgpt-resnet": ("1.23", "1.00"),
        "fedmix": ("1.00", "2.07"),
        "fedmoon": ("1.00", "1.98"),
        "pfedhn": ("1.00", "1.00"),
    }
    # The paper prints none.
    assert {cell["agrees"] for cells in ratios.values() for cell in cells} == {None}
    totals = {row: found("fgpt-table-10", row, "constant") for row in PRINTED}
    assert totals["fgpt"]["printed_text"] == "33.11 + 16.55"
    assert totals["fgpt-resnet"]["printed_text"] == "22.44 + 4.12"
    assert totals["fgpt"]["value_text"] == "35.64 + 17.56"
    assert totals["fedmix"]["value_text"] == "18.08"
    assert found("fgpt-table-10", "fgpt", "slope")["value"] == found("fgpt-table-10", "fgpt", "training")["value"]
    assert not any(cell["printed_text"] for cell in table("fgpt-table-10")["cells"] if cell["row"] not in PRINTED)


@pytest.mark.parametrize("name", layouts("fgpt"))
def test_cells_fill_the_blocks(name, tmp_path):
    content = filled(table(name))
    places = [(cell["row"], cell["column"]) for cell in content["cells"]]
    assert len(set(places)) == len(places)
    shown = {(row, column) for part in blocks(content) for row in part.rows for column in part.columns}
    assert set(places) <= shown
    assert shown - set(places) == (EMPTY if name == "fgpt-table-10" else set())
    assert {cell["status"] for cell in content["cells"]} == {"arithmetic"}
    assert all(len(line) <= 150 for line in render_text(content).splitlines())
    assert ("agrees" if name == "fgpt-table-2" else "differs") in render_markdown(content)
    assert all(path.stat().st_size for path in write_table(table(name), tmp_path))
    assert (tmp_path / f"{name}.tex").read_text().isascii()


def test_rows_are_all_there():
    rows = table("fgpt-table-2")["rows"]
    assert {"resnet18", "resnet50", "vit_b16", *SENDERS, *SGPTS} < set(rows)
    assert [*table("fgpt-table-10")["rows"]] == [*COSTS, *STAGES]
