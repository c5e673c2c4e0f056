"""One contract for every message, found without anyone writing it down."""

from __future__ import annotations

import pytest
import torch

from hetfl.methods import METHODS
from hetfl.training.contract import contracts

import time

from test_contract import VARIANTS, PLAYED, groups_of


@pytest.mark.parametrize("name", PLAYED)
def test_what_clients_send_is_within_the_contract(two_rounds, name):
    method, settings = PLAYED[name]
    mixed = {"homogeneous": "homogeneous", "heterogeneous": "two vits", "resnets": "two resnets"}
    played = two_rounds(method, mixed[groups_of(method, settings)[-1]], dtype=torch.float64, **settings)
    began = time.perf_counter()
    for client, update in played.updates.items():
        _, uplink = contracts(played.engine.method, played.engine.models[client])
        s = uplink.sizes(update.uplink)
        uplink.check_values(update.uplink)
        print(name, client, s, uplink.distinct)
        if client == 0:
            print({n: (e.dtype, e.shape) for n, e in list(uplink.entries.items())[:4]})
    print("TIME", name, time.perf_counter() - began)
