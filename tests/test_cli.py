from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetfl.cli import app
from hetfl.data.catalogue import CATALOGUE, Sources, entry, prepare_dataset
from hetfl.errors import HetflError


def test_data_lists_every_set_and_what_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digits = tmp_path / "data" / "digits"
    prepare_dataset("digits", entry("digits").settings(), digits, Sources(None, tmp_path))
    shown = CliRunner().invoke(app, ["data", "--verify"]).output
    lines = {line.split()[0]: line for line in shown.splitlines()[2:]}
    assert set(lines) == set(CATALOGUE)
    assert "public 600, train 800, test 397" in lines["digits"] and "bundled with scikit-learn" in lines["digits"]
    assert all("not prepared" in line for name, line in lines.items() if name != "digits")

    labels = digits / "test-labels.npy"
    labels.write_bytes(labels.read_bytes()[:-8] + bytes(8))
    assert CliRunner().invoke(app, ["data"]).exit_code == 0
    damaged = CliRunner().invoke(app, ["data", "--verify"])
    assert isinstance(damaged.exception, HetflError)
    assert "test-labels.npy: SHA-256 is" in str(damaged.exception)
