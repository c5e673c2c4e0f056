"""What makes a record stale, and what leaves it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from pydantic import Field
from record_factory import MODEL, make_round, make_run, project, write_record

from hetfl.data.inputs import Augmentation, InputSettings
from hetfl.data.partitions import Iid, make_partition, write_partition
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments import cell as cell_module
from hetfl.experiments import versions as module
from hetfl.experiments.cell import set_up
from hetfl.experiments.identity import differences, fingerprint, identity, inputs, own_differences
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace, cells, load_params
from hetfl.experiments.record import Record
from hetfl.experiments.settings import PublicSettings
from hetfl.experiments.versions import check_versions, keys, used, version, versions, write_versions
from hetfl.files import read_json, write_json
from hetfl.methods import METHODS
from hetfl.methods.base import register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.methods.scratch import Scratch
from hetfl.models.registry import weights_checksum
from hetfl.models.vit import PromptedViT
from hetfl.schema import Inputs

READS = Inputs(dataset="d", partition="p", weights={})


@pytest.fixture(scope="module")
def every() -> list[Cell]:
    """A cell of each row of the digits experiments."""
    params = load_params(Path("params.yaml"))
    found = [cell for name in params.experiments if name.startswith("digits") for cell in cells(params, name)]
    return list({(cell.experiment, cell.row): cell for cell in found}.values())


def stale(every: list[Cell], before: list[str]) -> set[str]:
    """The methods of the cells whose fingerprint is another."""
    pairs = zip(every, before, strict=True)
    return {cell.method for cell, was in pairs if fingerprint(cell, READS) != was}


@pytest.mark.parametrize(("cls", "follow"), [(FedAvg, False), (PromptedViT, True), (None, True)])
def test_kept_features_are_those_of_the_versions_that_compute_them(monkeypatch, cls: type | None, follow: bool):
    workspace, cell = project()
    folders: list[Path] = []
    monkeypatch.setattr(cell_module, "build_federation", lambda *_, features, **more: folders.append(features))
    set_up(cell, workspace, torch.device("cpu"), ComputeSettings())
    if cls is None:
        monkeypatch.setattr(module, "ENGINE", module.ENGINE + 1)
    else:
        monkeypatch.setattr(cls, "numerics", vars(cls)["numerics"] + 1)
    set_up(cell, workspace, torch.device("cpu"), ComputeSettings())
    assert (folders[0] != folders[1]) == follow
    assert {folder.parent for folder in folders} == {workspace.scratch / "features"}


def children(cls: type) -> set[str]:
    return {name for name, method in METHODS.items() if issubclass(method, cls)}


@pytest.fixture
def before(every: list[Cell]) -> list[str]:
    return [fingerprint(cell, READS) for cell in every]


def test_versions_yaml_is_current():
    assert yaml.safe_load(Path("versions.yaml").read_text()) == versions(), "type: hetfl versions"


def test_a_raised_parent_makes_its_children_stale_and_nothing_else(every, before, monkeypatch):
    told = [used(cell) for cell in every]
    monkeypatch.setattr(FedAvg, "numerics", 2)
    assert (version(METHODS["fedavg"]), version(METHODS["fedprox"])) == ("2", "2.1")
    found = stale(every, before)
    assert found == children(FedAvg) & {cell.method for cell in every}
    assert "fedprox" in found and "fedtgp" not in found
    # DVC sees the same.
    assert {cell.method for cell, was in zip(every, told, strict=True) if used(cell) != was} == found


def test_a_raised_mixin_model_or_engine_reaches_those_that_use_it(every, before, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scratch, "numerics", 2)
        assert stale(every, before) == children(Scratch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptedViT, "numerics", 2)
        pairs = list(zip(every, before, strict=True))
        changed = {cell.models[0] for cell, was in pairs if fingerprint(cell, READS) != was}
        kept = {cell.models[0] for cell, was in pairs if fingerprint(cell, READS) == was}
        assert all("vit" in name for name in changed) and not any("vit" in name for name in kept)
        assert kept
    monkeypatch.setattr(module, "ENGINE", 2)
    assert stale(every, before) == {cell.method for cell in every}


def test_a_second_network_and_an_encoder_are_in_use_too(every):
    chosen = {cell.method: cell for cell in every}
    cell = chosen["fml"].model_copy(update={"settings": {"auxiliary": "digits_resnet_small"}})
    assert {"models.cnn", "models.resnet"} <= used(cell).keys()
    assert "models.grouped-vit" in used(chosen["fgpt"])
    encoder = chosen["sgpt"].model_copy(update={"method": "fgpt", "settings": {"encoder": "resnet18.random"}})
    assert ("models.resnet" in used(encoder)) == ("encoder" in METHODS["fgpt"].Settings.model_fields)


def test_prompts_that_are_a_frame_have_a_version_of_their_own(every):
    cell = next(cell for cell in every if cell.method == "fedhpl")
    framed = cell.model_copy(update={"models": ["digits_resnet_small"], "settings": {"prompts": "frame"}})
    assert {"models.frame", "models.resnet"} <= used(framed).keys() and "models.frame" not in used(cell)


def test_augmentations_count_where_there_is_one(every):
    cell = every[0]
    assert "augmentation" not in used(cell)
    flipped = cell.model_copy(update={"input": InputSettings(augment=Augmentation(flip=True))})
    assert "augmentation" in used(flipped)
    assert "augmentation" in keys([cell, flipped])


def test_an_added_setting_leaves_runs_as_they_are_until_it_is_used(every, before, monkeypatch):
    class More(FedAvg.Settings):
        added: float = Field(default=0.5, ge=0)

    class Wider(InputSettings):
        added: int | None = None

    place = next(number for number, cell in enumerate(every) if cell.method == "fedavg")
    cell = every[place]
    monkeypatch.setattr(FedAvg, "Settings", More)
    settings = More.model_validate(cell.settings).model_dump()
    assert "added" in settings
    same = cell.model_copy(update={"settings": settings, "input": Wider()})
    assert fingerprint(same, READS) == before[place]
    for change in ({"settings": settings | {"added": 0.7}}, {"input": Wider(added=3)}):
        assert fingerprint(same.model_copy(update=change), READS) != before[place]


def test_an_added_method_leaves_everything_as_it_is(every, before):
    try:

        @register_method("mine")
        class Mine(FedAvg):
            """A method of one's own."""

            numerics = 1

        assert versions()["methods"]["mine"] == "1.1"
        assert stale(every, before) == set()
        assert "methods.mine" not in keys(every)
    finally:
        METHODS.pop("mine", None)


def test_names_and_titles_decide_nothing_and_what_does_is_there(every):
    cell = every[0]
    renamed = cell.model_copy(update={"title": "x", "experiment": "x", "row": "x", "split": "x", "features": 9})
    assert identity(renamed, READS) == identity(cell, READS)
    for change in ({"seed": 9}, {"models": ["digits_vit_large"]}, {"method": "fedbabu"}):
        assert fingerprint(cell.model_copy(update=change), READS) != fingerprint(cell, READS)
    assert fingerprint(cell, READS.model_copy(update={"partition": "q"})) != fingerprint(cell, READS)


def test_the_public_data_set_and_its_subset_are_part_of_the_identity(every):
    cell = every[0]
    public = [PublicSettings(dataset="x", subset=name) for name in ("public", "train")]
    shared = [cell.model_copy(update={"public": one}) for one in public]
    assert len({fingerprint(one, READS) for one in (cell, *shared)}) == 3


def test_inputs_hold_the_checksum_of_the_weights():
    workspace, cell = project()
    assert inputs(cell, workspace).weights == {MODEL: weights_checksum(MODEL, workspace.weights)}


@pytest.fixture
def prepared(tmp_path: Path, toy_data) -> tuple[Cell, Workspace, Path]:
    """A cell whose data set and partition are there, and the partition's card."""
    workspace, scheme = Workspace(tmp_path), Iid(clients=3)
    partition = make_partition(scheme, toy_data, Draws(0))
    write_json(workspace.dataset("toy") / "card.json", {"checksum": toy_data.checksum})
    write_partition(workspace.partition("toy", "iid", 0), partition, scheme, toy_data, 0)
    cell = Cell(
        experiment="x",
        row="fedavg",
        title="",
        paper="fedhpl",
        split="iid",
        seed=0,
        dataset="toy",
        models=["digits_vit_small"],
        partition=scheme.model_dump(),
        input=InputSettings(),
        public=None,
        method="fedavg",
        settings={},
    )
    return cell, workspace, workspace.partition("toy", "iid", 0) / "card.json"


def test_inputs_hold_the_checksum_of_the_public_data_set(prepared):
    cell, workspace, _ = prepared
    write_json(workspace.dataset("other") / "card.json", {"checksum": "p"})
    shared = cell.model_copy(update={"public": PublicSettings(dataset="other")})
    assert (inputs(cell, workspace).public, inputs(shared, workspace).public) == (None, "p")


def test_a_partition_counts_by_indices_and_splits(prepared):
    cell, workspace, path = prepared
    card, before = read_json(path), inputs(cell, workspace)
    assert card["settings"] == {"scheme": "iid", "clients": 3}  # a setting that is added changes no card
    write_json(path, card | {"gini": 0.5})
    assert inputs(cell, workspace) == before
    for change in ({"splits": {"train": ["test"], "test": ["train"]}}, {"sha256": "0"}, {"dataset_checksum": "0"}):
        write_json(path, card | change)
        assert inputs(cell, workspace).partition != before.partition


@pytest.mark.parametrize("content", [[], {}, {"checksum": 3}])
def test_a_card_that_is_none_is_one_line(prepared, content):
    cell, workspace, _ = prepared
    write_json(workspace.dataset("toy") / "card.json", content)
    with pytest.raises(
        HetflError, match=r"card.json: is not the card of a data set; make it with dvc repro download-toy"
    ):
        inputs(cell, workspace)


def test_a_partition_of_other_settings_is_refused(prepared):
    cell, workspace, path = prepared
    other = cell.model_copy(update={"partition": Iid(clients=4).model_dump()})
    with pytest.raises(HetflError, match=r"has other settings than params.yaml: partitions.toy.splits.iid; make it"):
        inputs(other, workspace)
    write_json(path, read_json(path) | {"seed": 7})
    with pytest.raises(HetflError, match=r"card.json: is of seed 7, seed 0 is needed; make it with dvc repro"):
        inputs(cell, workspace)
    write_json(path, {"sha256": "0"})
    with pytest.raises(HetflError, match=r"card.json: is not the card of a partition; make it with dvc repro"):
        inputs(cell, workspace)


def test_a_record_of_a_partition_with_other_settings_counts_only_if_they_draw_the_same(prepared):
    cell, workspace, path = prepared
    reads = inputs(cell, workspace)
    run = make_run(
        fingerprint=fingerprint(cell, reads), inputs=reads, settings=cell.settings, partition=cell.partition
    )
    assert own_differences(run, cell, workspace) == []
    edited = cell.model_copy(update={"partition": Iid(clients=4).model_dump()})
    assert own_differences(run, edited, workspace) == ["partition's clients 3, now 4"]
    # The partition that is here has the settings of today, and is the record's.
    write_json(path, read_json(path) | {"settings": Iid(clients=4).model_dump()})
    assert own_differences(run, edited, workspace) == []
    write_json(path, read_json(path) | {"sha256": "0"})
    assert own_differences(run, edited, workspace) == ["partition's clients 3, now 4"]


def test_a_record_of_another_data_set_counts_only_if_it_has_the_same_content(prepared):
    cell, workspace, _ = prepared
    reads = inputs(cell, workspace)
    run = make_run(
        fingerprint=fingerprint(cell, reads),
        inputs=reads,
        settings=cell.settings,
        partition=cell.partition,
        dataset="toy",
    )
    assert own_differences(run, cell, workspace) == []
    other = cell.model_copy(update={"dataset": "other"})
    assert own_differences(run, other, workspace) == ["data set toy, now other"]
    write_json(workspace.dataset("other") / "card.json", {"checksum": "0" * 64})
    assert own_differences(run, other, workspace) == ["data set toy, now other"]
    write_json(workspace.dataset("other") / "card.json", {"checksum": reads.dataset})  # it has been renamed
    assert own_differences(run, other, workspace) == []


def test_why_a_record_no_longer_counts(every, monkeypatch):
    cell = next(cell for cell in every if cell.method == "fedprox")
    run = make_run(
        fingerprint=fingerprint(cell, READS),
        inputs=READS,
        numerics=used(cell),
        public=None,
        **{name: getattr(cell, name) for name in ("method", "seed", "settings", "models")},
        input=cell.input.model_dump(),
    )
    assert differences(run, cell, READS) == []
    changed = cell.model_copy(update={"settings": cell.settings | {"mu": 0.5}})
    was = cell.settings["mu"]
    reads = READS.model_copy(update={"dataset": "e"})
    assert differences(run, changed, reads) == [f"mu {was}, now 0.5", "dataset d, now e"]
    older = run.model_copy(update={"fingerprint": "f", "settings": {**cell.settings, "step": 0.9}})
    older.settings.pop("mu")
    assert differences(older, cell, READS) == ["step 0.9, no setting now"]  # mu is at its default
    assert differences(older, changed, READS) == ["step 0.9, no setting now", "mu now 0.5, no setting then"]
    others = run.model_copy(update={"fingerprint": "f", "models": ["cnn"]})
    assert differences(others, cell, READS) == ["other models"]
    public = {"dataset": "p", "subset": "train"}
    moved = run.model_copy(
        update={"fingerprint": "f", "public": public, "inputs": READS.model_copy(update={"public": "c"})}
    )
    now = cell.model_copy(update={"public": PublicSettings(dataset="p", subset="test")})
    assert differences(moved, now, moved.inputs) == [f"public {public}, now {public | {'subset': 'test'}}"]
    monkeypatch.setattr(FedAvg, "numerics", 2)
    assert differences(run, cell, READS) == ["methods.fedprox 1.1, now 2.1"]


def test_dvc_and_the_code_must_agree(tmp_path, every, monkeypatch):
    chosen = keys(every)
    check_versions(tmp_path, chosen)  # without DVC there is nothing to agree with
    assert write_versions(tmp_path)["engine"] == (None, 1)
    assert write_versions(tmp_path) == {}
    check_versions(tmp_path, chosen)
    monkeypatch.setattr(FedAvg, "numerics", 2)
    with pytest.raises(HetflError, match=r"versions.yaml: methods.fedavg is 1, the code says 2; run hetfl versions"):
        check_versions(tmp_path, ["methods.fedavg"])
    assert write_versions(tmp_path)["methods.fedprox"] == ("1.1", "2.1")
    check_versions(tmp_path, chosen)


def test_a_record_is_complete_by_its_fingerprint_alone(tmp_path):
    record = Record(
        write_record(tmp_path, "x/fedavg/fedavg/iid-s0", [make_round(0)], fingerprint="f", source="whatever")
    )
    assert record.is_complete("f") and not record.is_complete("g")
