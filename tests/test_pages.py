"""What the pages show of one's own method runs as it stands; see also test_dvc_stages.py and test_loading.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml
from settings_files import ROOT

from hetfl.config import read_yaml
from hetfl.experiments.plan import cells, load_params
from hetfl.methods import METHODS
from hetfl.methods.fedprox import FedProx


def shown(page: str, language: str) -> list[str]:
    """The blocks of code of a language on a page of the documentation."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)


def write_params(root: Path, name: str, block: dict) -> Path:
    """The committed params.yaml with one of its experiments replaced or added, without the papers'."""
    content = read_yaml(ROOT / "params.yaml")
    content["experiments"] = {**content["experiments"], name: block}
    (root / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return root / "params.yaml"


def test_the_method_is_fedprox(two_rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = shown("method.md", "python")
    expected = two_rounds("fedprox", "homogeneous", mu=0.5)
    monkeypatch.delitem(METHODS, "fedprox")
    exec(compile(code, "method.md", "exec"), {"__name__": "page"})
    assert METHODS["fedprox"] is not FedProx and METHODS["fedprox"].title == FedProx.title
    # Settings that two_rounds has not seen yet, so that it plays the page's method.
    found = two_rounds("fedprox", "homogeneous", mu=0.5, momentum=0.9)
    assert type(found.engine.method) is METHODS["fedprox"]
    assert found.second.server.keys() == expected.second.server.keys()
    assert all(torch.equal(found.second.server[name], value) for name, value in expected.second.server.items())


def test_the_methods_row_stands_beside_the_digits_rows(tmp_path: Path) -> None:
    (text,) = shown("method.md", "yaml")
    ((name, block),) = yaml.safe_load(text)["experiments"].items()
    committed = read_yaml(ROOT / "params.yaml")["experiments"][name]
    file = write_params(tmp_path, name, committed | {"rows": committed["rows"] | block["rows"]})
    found = [cell.settings["mu"] for cell in cells(load_params(file), name) if cell.row == "fedprox"]
    assert found and set(found) == {0.1}
