"""FedTGP's counted tables, against section 3.4 to 7 of its setup sheet and against what the methods send."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from counted_helpers import found, table
from table_helpers import PARAMS
from wire import payload

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.metrics.flops import step_flops
from hetfl.report.formats import blocks, filled, footnotes, render_text
from hetfl.tables.counted.exchange import fitted, float_elements
from hetfl.tables.counted.fedtgp import (
    exchange,
    formulas,
    gathered_labels,
    held_classes,
    models_of,
    quick,
    setting,
    step,
)
from hetfl.tables.counted.layout import layout, layouts
from hetfl.tables.notation import methods

METHODS = methods("fedtgp")

OWNED = [33, 47, 54, 47, 57, 42, 41, 32, 39, 46, 47, 47, 41, 44, 40, 38, 44, 38, 45, 99]
"""C_i of all samples, training and test."""

OF = setting(PARAMS)
of_architecture = cache(lambda name: step(OF, name=name))
HTFE_8 = [*layout("fedtgp-table-12").models.values()]


def test_committed_numbers_are_what_is_counted():
    for row in ("lg-fedavg", "fedproto"):
        sent = exchange(OF, row)
        messages = [*sent.up, *sent.down]
        assert found("fedtgp-table-5", row, "messages")["value"] == float_elements(messages) / 1e6
        assert found("fedtgp-table-5", row, "bytes")["value"] == sum(one.size.bytes for one in messages) / 1e6
    for name in ("cnn", "resnet18"):
        cost = of_architecture(name)
        assert found("fedtgp-table-12", name, "forward")["value"] == cost.forward / 2e9
        assert found("fedtgp-table-12", name, "training")["value"] == sum(cost) / 1e9


def test_a_changed_setting_changes_what_is_counted():
    protocol = PARAMS.protocols["fedtgp"]
    changed = protocol.model_copy(update={"settings": protocol.settings | {"embedding": 64}})
    params = PARAMS.model_copy(update={"protocols": {**PARAMS.protocols, "fedtgp": changed}})
    assert formulas(setting(params))["fedproto"] == 64 * (869 + 2000)
    assert [models_of(OF).count(name) for name in HTFE_8] == [3] * 4 + [2] * 4


def test_split_is_the_reference_partition():
    split = OF.partition
    train, test = (split.class_counts(OF.labels, OF.classes, side) for side in ("train", "test"))
    assert np.count_nonzero(train + test, axis=1).tolist() == OWNED
    assert (held_classes(OF), held_classes(OF, ["train", "test"])) == (869, 921)
    gathered = {
        row: [np.unique(part) for part in gathered_labels(OF, quick(OF, row))] for row in ("fedproto", "fedtgp")
    }
    assert [sum(map(len, gathered[row])) for row in ("fedproto", "fedtgp")] == [868, 869]


@pytest.mark.parametrize(
    ("row", "elements"),
    [
        ("lg-fedavg", 2_052_000),
        ("fedgen", 8_687_520),
        ("fml", 36_988_320),
        ("fedkd", 36_988_320),
        ("feddistill", 286_900),
        ("fedproto", 1_468_928),
        ("fedtgp", 1_468_928),
    ],
)
def test_formulas_with_our_sizes(row, elements):
    assert formulas(OF)[row] == elements


@pytest.mark.parametrize(
    ("row", "elements", "integers"),
    [
        ("lg-fedavg", 2_052_000, 0),
        ("fedgen", 8_687_520, 20 * 100),
        ("fml", 36_988_320, 0),
        ("feddistill", 100 * (868 + 2000), 868 + 2000),
        ("fedproto", 512 * (868 + 2000), 868 + 2000),
        ("fedtgp", 512 * (869 + 2000), 869 + 2000),
    ],
)
def test_messages_have_the_formulas_elements(row, elements, integers):
    assert found("fedtgp-table-5", row, "messages")["value"] * 1e6 == pytest.approx(elements, abs=1e-3)
    assert found("fedtgp-table-5", row, "bytes")["value"] * 1e6 == pytest.approx(4 * (elements + integers), abs=1e-3)


def test_bytes_are_the_payload_of_safetensors():
    for row in METHODS:
        sent = exchange(OF, row, clients=2)
        for message in (sent.up[0], sent.down[0]):
            assert message.size.bytes == payload(message)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2", "resnet18"])
def test_what_travels_does_not_depend_on_the_architecture(name):
    smallest, other = (fitted(quick(OF, "fedkd"), some, 32) for some in ("cnn", name))
    shapes = [
        {key: tuple(tensor.shape) for key, tensor in model.init(Draws(0), 0).items() if not key.startswith("body.")}
        for model in (smallest, other)
    ]
    assert shapes[0] == shapes[1]
    assert smallest.width == other.width == 512


def test_fedkd_sends_whole_ranks_if_all_energy_must_travel():
    whole = exchange(OF, "fedkd", clients=1, energy_start=1.0, energy_end=1.0)
    # t(o + i + 1) of the full rank t of each matrix, t o c (h + w + 1) of the 5 x 5 kernels; biases as they are.
    matrices = 512 * (512 + 1600 + 1) + 100 * (100 + 512 + 1) + 5 * (32 * 3 + 64 * 32) * (5 + 5 + 1)
    assert float_elements(whole.up) == float_elements(whole.down) == matrices + 32 + 64 + 512 + 100
    cut = exchange(OF, "fedkd", clients=1)
    assert float_elements(cut.down) < float_elements(cut.up) < float_elements(whole.up)


def test_table_5_agrees_but_for_trained_weights_and_another_split():
    agrees = {row: found("fedtgp-table-5", row, "messages")["agrees"] for row in METHODS}
    assert agrees == dict.fromkeys(METHODS, True) | dict.fromkeys(("fedkd", "fedproto", "fedtgp"), False)
    texts = [found("fedtgp-table-5", row, "messages")["value_text"] for row in METHODS]
    assert texts[:3] + texts[4:] == ["2.05", "8.69", "36.99", "0.29", "1.47", "1.47"]
    assert found("fedtgp-table-5", "fedkd", "ours")["value_text"] == "36.99 r"
    notes = " ".join(footnotes(filled(table("fedtgp-table-5"))))
    assert "1.48 needs 881 to 900" in notes
    assert "needs 0.893" in notes
    assert "is 869 in the formulas and 868 in" in notes


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("cnn", 7.87),
        ("googlenet", 30.61),
        ("mobilenet_v2", 6.16),
        ("resnet18", 37.06),
        ("resnet34", 74.81),
        ("resnet50", 83.46),
        ("resnet101", 159.22),
        ("resnet152", 234.98),
    ],
)
def test_forward_passes_of_the_architectures(name, millions):
    assert round(found("fedtgp-table-12", name, "forward")["value"] * 1000, 2) == millions
    assert found("fedtgp-table-12", name, "forward")["agrees"] is False
    ratio = found("fedtgp-table-12", name, "training")["value"] / found("fedtgp-table-12", name, "forward")["value"]
    assert 5.5 < ratio < 6  # two operations in each of three passes, less the gradient of the images


@pytest.mark.parametrize(
    ("row", "four", "three", "forward"),
    [
        ("lg-fedavg", "98.77", "74.08", 0),
        ("fedgen", "98.78", "74.09", (32 + 100) * 512 + 512 * 512 + 512 * 100),
        ("fml", "99.81", "74.86", 7_872_000),
        ("fedkd", "99.81", "74.86", 7_872_000 + 512 * 512),
        ("feddistill", "98.77", "74.08", 0),
        ("fedproto", "98.77", "74.08", 0),
        ("fedtgp", "98.77", "74.08", 0),
    ],
)
def test_table_12_is_four_times_the_sum_of_table_8(row, four, three, forward):
    assert found("fedtgp-table-12", row, "times-4")["value_text"] == four
    counted = found("fedtgp-table-12", row, "training")
    assert (counted["printed_text"], counted["agrees"]) == (four, False)
    assert found("fedtgp-table-12", row, "times-3")["value_text"] == three
    plain = sum(round(1e9 * found("fedtgp-table-12", name, "forward")["value"]) for name in models_of(OF))
    assert found("fedtgp-table-12", row, "forward")["value"] == (plain + OF.clients * forward) / 1e9


@pytest.mark.parametrize("row", ["fedgen", "fml", "fedkd"])
def test_what_a_method_adds_does_not_depend_on_the_architecture(row):
    sent = exchange(OF, row, clients=1)
    method, received = sent.method, sent.method.receive(sent.down[0], {})
    model = fitted(method, "resnet18", 32, "cpu")
    batch = Batch(torch.zeros(10, 3, 32, 32), torch.zeros(10, dtype=torch.int64))
    both = step_flops(method, model, method.initial(model, Draws(0), 0), batch, received)
    alone, own, plain = of_architecture("resnet18"), step(OF, row), step(OF)
    assert both.forward == 10 * (alone.forward + own.forward - plain.forward)
    assert both.backward == 10 * (alone.backward + own.backward - plain.backward)


def test_server_of_fedtgp_is_counted():
    # 87 batches in each of 100 epochs, two layers of K x K on C vectors: one product forward, two for the gradients.
    steps = 100 * 87 * 2 * 3 * 2 * 100 * 512 * 512
    assert f"FedTGP's takes {steps / 1e9:,.0f} B FLOP" in " ".join(table("fedtgp-table-12")["footnotes"])


@pytest.mark.parametrize("name", layouts("fedtgp"))
def test_cells_fill_the_blocks(name):
    content = filled(table(name))
    places = [(cell["row"], cell["column"]) for cell in content["cells"]]
    assert len(set(places)) == len(places)
    assert sum(len(block.rows) * len(block.columns) for block in blocks(content)) == len(places)
    assert {cell["status"] for cell in content["cells"]} == {"arithmetic"}
    assert all(len(line) <= 150 for line in render_text(content).splitlines())
