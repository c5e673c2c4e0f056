"""What travels with FGPT and the methods around it, ViT-B/16: section 16 of its sheet, to the number and the byte."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from playing import play_round, start
from settings_files import PAPER_PARAMS
from wire import payload

from hetfl.draws import Draws
from hetfl.methods import METHODS, create
from hetfl.tables.counted.exchange import (
    Exchange,
    encoder,
    fitted,
    float_bytes,
    float_elements,
    integer_bytes,
    of_all_classes,
)
from hetfl.tables.counted.fgpt import (
    MAIN,
    MODELS,
    PLACES,
    SENDERS,
    SGPTS,
    VIT,
    Family,
    client_sizes,
    first_round,
    run_bytes,
)

FAMILY = Family(PAPER_PARAMS)
BYTES = {
    "pt-fedavg-share": (322_960, 322_960, 169_160),
    **dict.fromkeys(["pt-fedavg", "fedmoon", "fedmix", "pfedhn"], (326_032, 326_032, 172_232)),
    "fedpr": (322_960, 322_960, 169_160),
    **dict.fromkeys(["fgpt", "fgpt-u5", "fgpt-resnet", "fgpt-fedmix"], (384_400, 399_760, 184_520)),
    "fed-dualprompt": (445_840, 476_560, 199_880),
}
"""One way: CIFAR-100 with G = 20 and 25, Five-Dataset with G = 5."""
COUNTING = ["fgpt", "fgpt-u5", "fgpt-resnet", "fgpt-fedmix"]
POOLED = ["fedmix", "fgpt-fedmix"]
CASES = [(row, place) for row in SENDERS for place in PLACES]
MADE = {
    **{f"{row} {place}": (row, place) for row, place in CASES},
    **{row: ("sgpt", row) for row in SGPTS},
}


@cache
def sent(name: str) -> Exchange:
    return FAMILY.exchange(*MADE[name])


def test_every_method_is_there():
    assert set(SENDERS) == set(BYTES)


@pytest.mark.parametrize(("row", "place"), CASES)
def test_values_and_their_bytes(row, place):
    own, expected = sent(f"{row} {place}"), BYTES[row][[*PLACES].index(place)]
    classes, groups = FAMILY.at[place].classes, FAMILY.method("fgpt", place).settings.groups
    tokens = {"pt-fedavg-share": 5, "fedpr": 5, "fed-dualprompt": 5 + 2 * groups}
    numbers = 769 * classes + 768 * tokens.get(row, 5 + (groups if row in COUNTING else 1))
    assert 4 * numbers == expected
    for way in (own.up, own.down):
        assert (float_elements(way), float_bytes(way)) == (numbers, expected)


@pytest.mark.parametrize(
    ("row", "numbers", "counts"),
    [("sgpt-s10", 141_412, 80), ("sgpt-s50", 126_820, 80), ("sgpt-office", 20_746, 16)],
)
def test_sgpt_sends_keys_and_picks_too(row, numbers, counts):
    own = sent(row)
    for way in (own.up, own.down):
        assert (float_elements(way), float_bytes(way), integer_bytes(way)) == (numbers, 4 * numbers, counts)
    assert own.up[0]["counts"].dtype == own.down[0]["picks"].dtype == torch.int32


@pytest.mark.parametrize(("row", "place"), CASES)
def test_integers_travel_beside_the_values(row, place):
    own = sent(f"{row} {place}")
    assert integer_bytes(own.up) == (4 * FAMILY.method(row, place).settings.groups if row in COUNTING else 0)
    # FedPR's seed, from the second round on.
    assert integer_bytes(own.down) == (4 if row == "fedpr" else 0)
    assert integer_bytes(own.first) == 0
    assert [integer_bytes([message]) for message in own.registered] == [4]


@pytest.mark.parametrize("name", MADE)
def test_bytes_are_the_payload_of_safetensors(name):
    own = sent(name)
    for message in (*own.registered, *own.first, *own.up, *own.down):
        assert payload(message) == message.size.bytes == float_bytes([message]) + integer_bytes([message])


@pytest.mark.parametrize(
    ("row", "numbers", "size"),
    [
        ("resnet18", 11_227_812, 44_911_248),
        ("resnet50", 23_712_932, 94_851_728),
        ("vit_b16", 85_875_556, 343_502_224),
    ],
)
def test_whole_networks(row, numbers, size):
    own = first_round(create("fedavg", {}, 100), MODELS[row])
    assert own.up[0].size == own.down[0].size
    assert (float_elements(own.up), own.up[0].size.bytes) == (numbers, size)


def test_what_trains_is_what_travels_and_the_backbone_does_not():
    for row in SENDERS:
        method = FAMILY.method(row)
        model = fitted(method, VIT)
        assert model.elements(method.trains()) == float_elements(sent(f"{row} cifar100-20").up)
        assert model.total_elements - model.elements(method.trains()) == 85_798_656
        assert not any(name.startswith("body.") for name in sent(f"{row} cifar100-20").down[0])
    assert sum(tensor.numel() for tensor in sent("fgpt cifar100-20").after.values()) == 96_100 + 1


@pytest.mark.parametrize("row", POOLED)
def test_fedmix_sends_its_pool_once(row):
    item = 4 * (3 * 32 * 32 + 100)
    assert item == 12_688
    sizes = client_sizes(FAMILY.at[MAIN])
    whole = FAMILY.exchange(row, sizes=sizes)
    assert {float_bytes([message]) for message in whole.registered} == {item}
    assert float_bytes(whole.first) - float_bytes(whole.down) == 100 * item == 1_268_800
    chunks = [-(-size // 5) for size in sizes]
    # Some clients show what all do, without the 126 MB of a pool of all.
    parts = FAMILY.exchange(row, sizes=sizes[:5], chunk=5)
    assert [float_bytes([message]) for message in parts.registered] == [many * item for many in chunks[:5]]
    assert float_bytes(parts.first) - float_bytes(parts.down) == sum(chunks[:5]) * item
    # The sheet's round figures: 99 items, 1.26 MB up and 126 MB down.
    assert sum(chunks) / 100 == pytest.approx(99, abs=0.5)
    assert sum(chunks) * item == pytest.approx(126e6, rel=5e-3)
    assert {"pool/images", "pool/labels"} == set(whole.first[0]) - set(whole.down[0])


def test_others_get_the_same_in_every_round():
    for row in (row for row in SENDERS if row not in (*POOLED, "fedpr")):
        own = sent(f"{row} cifar100-20")
        assert own.first[0].size == own.down[0].size


def test_keys_are_never_sent():
    for row, size in (("fgpt", 61_440), ("fgpt-resnet", 163_840)):
        method = FAMILY.method(row)
        keys = method.keys({}, torch.zeros(1, encoder(method, fitted(method, VIT)).width))
        assert float_bytes([{"keys": keys}]) == size
        own = sent(f"{row} cifar100-20")
        every = [*own.registered, *own.first, *own.up, *own.down]
        assert all("keys" not in name for message in every for name in message)


def test_what_else_stays_where_it_is():
    assert float_bytes([sent("fedmoon cifar100-20").kept]) == 18_432
    own = FAMILY.exchange("pfedhn", sizes=[1] * 100)
    assert float_elements([own.method.server_parameters(own.server)]) == 795_908
    assert set(own.down[0]) == set(own.up[0]) == {"shared", "group", "head.weight", "head.bias"}
    assert float_elements([{name: own.up[0][name] for name in ("shared", "group")}]) == 4_608
    assert 4 * own.models[0].width == 3_072


def test_split_is_the_sheets():
    sizes = client_sizes(FAMILY.at[MAIN])
    assert len(sizes) == 100
    assert sum(sizes) == pytest.approx(49_490, abs=50)
    assert min(sizes) > 430
    assert max(sizes) < 560


@pytest.mark.parametrize(
    ("name", "megabytes"), [("fgpt cifar100-20", 230.6), ("pt-fedavg cifar100-20", 195.6), ("sgpt-s10", 339.4)]
)
def test_a_whole_run(name, megabytes):
    place = FAMILY.at[MADE[name][1]]
    assert round(run_bytes(sent(name), place) / 1e6, 1) == megabytes
    one = float_bytes(sent(name).up)
    assert run_bytes(sent(name), place) == 60 * 5 * 2 * one


def test_a_whole_run_of_a_whole_transformer():
    method = create("fedavg", {"rounds": 60, "participation": 0.05}, 100)
    assert round(run_bytes(first_round(method, VIT), FAMILY.at[MAIN]) / 1e9) == 206


@pytest.mark.parametrize("method", ["sgpt", *(row for row in SENDERS if row in METHODS)])
def test_engines_send_the_same(toy_engine, method):
    engine = toy_engine(method)
    state, registration = start(engine, Draws(0))
    lines = []
    for round in (1, 2):
        state, line = play_round(engine, state, Draws(0).at(round))
        lines.append(line)
    clients = engine.federation.clients
    held = [of_all_classes(client.samples, engine.method.num_classes) for client in clients]
    own = Exchange(engine.method, [clients[0].model], held, stored=8)
    for measured, counted in (
        (registration.up, own.registered),
        (lines[0].down, own.first * 3),
        (lines[0].up, own.up * 3),
        (lines[1].down, own.down * 3),
        (lines[1].up, own.up * 3),
    ):
        assert measured.elements == sum(message.size.elements for message in counted)
        assert measured.bytes == sum(message.size.bytes for message in counted)
