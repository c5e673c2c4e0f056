"""A small project, and a server's and a node's part of a deployment's file, as tests change them."""

from __future__ import annotations

from pathlib import Path

import yaml

PARAMS = {
    "data": {"digits": {"public": 100, "test": 300}},
    "partitions": {"digits": {"seeds": 1, "splits": {"iid": {"scheme": "iid", "clients": 2}}}},
    "models": {"tiny": ["digits_resnet_small"]},
    "experiments": {
        "tiny": {
            "title": "Tiny",
            "dataset": "digits",
            "models": "tiny",
            "splits": {"iid": "IID"},
            "seeds": 1,
            "rows": {"fedavg": {}},
        }
    },
}
SERVER = {
    "address": "127.0.0.1:9092",
    "project": "project",
    "run": ["digits-homogeneous"],
    "folder": "flower",
    "certificate": "certs/server.crt",
    "key": "certs/server.key",
    "authority": "certs/authority.crt",
    "nodes": {
        "north": {"key": "certs/north.pub", "clients": [0, 1]},
        "south": {"key": "certs/south.pub", "clients": [2]},
    },
}
NODE = {
    "name": "north",
    "server": "fl.example.org:9092",
    "authority": "certs/authority.crt",
    "key": "certs/north.key",
    "project": "project",
    "folder": "flower",
    "clients": {0: "data", 1: "data"},
}


def write(folder: Path, part: str, settings: dict) -> Path:
    """A file with one part."""
    path = folder / f"{part}.yaml"
    path.write_text(yaml.safe_dump({part: settings}))
    return path
