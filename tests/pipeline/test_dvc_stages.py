"""What DVC is told: the stages follow from params.yaml and the tables, and list all that they read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS, PAPERS, ROOT

from hetfl import stages
from hetfl.config import validate
from hetfl.data import catalogue
from hetfl.errors import HetflError
from hetfl.experiments.plan import Params, Workspace, cells, load_params, parts_of, weights_read
from hetfl.experiments.schedule import identities
from hetfl.experiments.versions import used
from hetfl.figures import catalogue as figures
from hetfl.tables.catalogue import ARITHMETIC_TABLES, PAPER_TABLES, printed_by, table_names

FILES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "params.yaml", PAPERS / "params.yaml", *sorted(PAPERS.glob("*/params.yaml")))
]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: str) -> dict[str, Any]:
    return yaml.load((ROOT / path).read_text(), Loader=LOADER)


@dataclass(frozen=True)
class Project:
    """A project as committed: its settings, training stages, and every stage of every dvc.yaml, by name."""

    root: Path
    params: Params

    @cached_property
    def units(self) -> list[stages.Unit]:
        return stages.units(self.params)

    @cached_property
    def written(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for path in (self.root / "dvc.yaml", *parts_of(self.root, "dvc.yaml")):
            some = read(path.relative_to(ROOT).as_posix())["stages"]
            assert not set(some) & set(found)
            found |= some
        return found


EMBEDDED, OF_PAPERS = Project(ROOT, EMBEDDED_PARAMS), Project(PAPERS, PAPER_PARAMS)


@pytest.fixture(params=[EMBEDDED, OF_PAPERS], ids=["embedded", "papers"])
def project(request: pytest.FixtureRequest) -> Project:
    return request.param


def watched(stage: dict[str, Any]) -> dict[str, list[str]]:
    """The keys that a stage depends on, by file."""
    found: dict[str, list[str]] = {}
    for entry in stage.get("params", []):
        for file, keys in (entry if isinstance(entry, dict) else {"params.yaml": [entry]}).items():
            found.setdefault(file, []).extend(keys)
    return found


def test_the_files_are_current(project: Project) -> None:
    assert [*stages.stale(project.params, project.root)] == []


def test_every_table_and_figure_has_a_stage() -> None:
    written = OF_PAPERS.written | EMBEDDED.written
    assert {*PAPER_TABLES, *ARITHMETIC_TABLES, *figures.names()} <= set(written)
    for name in (*PAPER_TABLES, *ARITHMETIC_TABLES):
        assert (*written[name]["outs"],) == ({f"tables/{name}": {"cache": False, "persist": True}},)


def test_no_command_of_dvc_at_the_root_meets_a_papers_stage() -> None:
    """``dvc status``, ``dvc dag``, ``dvc pull`` and a bare ``dvc repro`` act on all stages of a project."""
    assert len(EMBEDDED.written) < 25
    assert not [name for name in EMBEDDED.written if "-table-" in name]
    assert {name for name in EMBEDDED.written if name.startswith("download-")} == {"download-digits"}
    assert (PAPERS / ".dvc/config").exists()


def test_dvc_caches_what_took_time_and_keeps_finished_cells(project: Project) -> None:
    """``dvc push`` carries them, and a stage that runs again finds them."""
    written = project.written
    assert written["partition"]["do"]["outs"] == ["partitions/${key}"]
    for unit in project.units:
        for stage, folder in (("train", "runs"), ("evaluate", "evaluations")):
            assert written[f"{stage}-{unit.name}"]["outs"] == [{f"{folder}/{unit.folder}": {"persist": True}}]


def test_a_table_trains_what_it_prints_and_no_more(project: Project) -> None:
    """By the committed files: what runs before a table's stage, and the cells that those commands train."""
    written, params = project.written, project.params
    trained = {
        next(iter(out)): [argument for argument in stage["cmd"].split()[2:]]
        for name, stage in written.items()
        if name.startswith("train-")
        for out in stage["outs"]
    }
    trained_by, paths = stages.trained_by(params), {}
    for experiment in {experiment for experiment, *_ in trained.values()}:
        paths[experiment] = [(cell.method, cell.path) for cell in cells(params, experiment)]
    for name in table_names(params):
        deps = [dep for dep in written[name]["deps"] if dep.startswith("runs/")]
        commands = [names for out, names in trained.items() if any(f"{out}/".startswith(f"{dep}/") for dep in deps)]
        found = {
            path
            for experiment, *only in commands
            for method, path in paths[experiment]
            if not only or method == only[0]
        }
        assert found == printed_by(name, params), name
        assert found == trained_by[name], name
        assert {dep.replace("runs/", "evaluations/") for dep in deps} <= set(written[name]["deps"])


@pytest.mark.parametrize("file", FILES)
def test_a_training_stage_watches_every_key_that_decides_about_its_cells(file: str, tmp_path: Path) -> None:
    """With what the stages of an experiment do not watch taken out of the files, its cells are the same."""
    project = OF_PAPERS if file.startswith("papers/") else EMBEDDED
    place = (ROOT / file).relative_to(project.root).as_posix()
    raw = {path: read(path) for path in FILES}
    blocks = {experiment.written for experiment in project.params.experiments.values() if experiment.file == place}
    for block in blocks:
        some = [unit for unit in project.units if project.params.experiments[unit.experiment].written == block]
        keys: dict[str, set[str]] = {path: set() for path in FILES}
        for unit in some:
            for path, names in watched(project.written[f"train-{unit.name}"]).items():
                if (known := (project.root / path).resolve().relative_to(ROOT).as_posix()) in keys:
                    keys[known] |= set(names)
        own = read((project.root / "params.yaml").relative_to(ROOT).as_posix())
        kept = {name: own[name] for name in ("data", "partitions")}
        kept |= {"models": {}, "protocols": {}, "experiments": {}}
        for path, names in keys.items():
            for section, _, key in (name.partition(".") for name in names):
                kept[section][key] = raw[path][section][key]
        (tmp_path / "params.yaml").write_text(json.dumps(kept))
        params = load_params(tmp_path / "params.yaml")
        for name in {unit.experiment for unit in some}:
            assert cells(params, name) == cells(project.params, name), name


def test_a_training_stage_lists_what_its_cells_read(project: Project) -> None:
    written, experiments = project.written, project.params.experiments
    made = {model for settings in project.params.pretrain.values() for model in settings.models}
    for unit in project.units:
        train, evaluate = written[f"train-{unit.name}"], written[f"evaluate-{unit.name}"]
        for cell in unit.cells:
            reads = {f"data/{cell.dataset}", f"partitions/{cell.dataset}"}
            reads |= {f"data/{cell.public.dataset}"} if cell.public else set()
            reads |= {f"weights/{name}.safetensors" for name in weights_read(cell) if name in made}
            assert reads <= set(train["deps"])
            assert reads | {f"runs/{unit.folder}"} <= set(evaluate["deps"])
            assert set(used(cell)) <= set(watched(train)["versions.yaml"])
        assert f"models.{experiments[unit.experiment].models}" in watched(train)["params.yaml"] or any(
            row.models for row in experiments[unit.experiment].rows.values()
        )
        # What source says is in the versions.
        assert not [dep for dep in (*train["deps"], *evaluate["deps"]) if dep.startswith("src/")]
        assert watched(evaluate)["versions.yaml"] == ["evaluation"]


def test_rows_of_other_models_and_public_sets_are_watched() -> None:
    written = OF_PAPERS.written
    assert "models.fedhpl-pfedpt" in watched(written["train-fedhpl-homogeneous-cifar10-pfedpt"])["params.yaml"]
    assert "data/svhn" in written["train-fedhpl-resnet-cifar10-fedmd"]["deps"]


def test_a_download_lists_the_source_that_makes_the_data(tmp_path: Path) -> None:
    written = OF_PAPERS.written | EMBEDDED.written
    corrupted = written["download-cifar100c"]["deps"]
    for part in ("corruptions", "readers", "archive", "sets/cifar", "sets/cifar100c"):
        assert f"src/hetfl/data/{part}.py" in corrupted
    for part in ("mnist", "notmnist", "svhn", "cifar"):
        assert f"src/hetfl/data/sets/{part}.py" in written["download-five"]["deps"]
    assert not [dep for dep in written["download-mnist"]["deps"] if "corruptions" in dep]
    import sklearn.datasets  # noqa: F401, else its import is followed line by line

    executed: set[str] = set()
    settings = validate(catalogue.entry("digits").settings, EMBEDDED_PARAMS.data.sets["digits"], "")
    sys.setprofile(lambda frame, event, arg: executed.add(frame.f_code.co_filename.partition("src/")[2]))
    try:
        sources = catalogue.Sources(None, tmp_path / "none")
        catalogue.prepare_dataset("digits", settings, tmp_path / "digits", sources)
    finally:
        sys.setprofile(None)
    ours = {path for path in executed if path.startswith("hetfl/data/")}
    assert "hetfl/data/sets/digits.py" in ours
    finding = {"hetfl/data/catalogue.py", "hetfl/data/fetch.py", "hetfl/data/entry.py"}
    assert {f"src/{path}" for path in ours - finding} <= set(written["download-digits"]["deps"])


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("params.yaml", "experiments.digits-homogeneous.rows.fedprox.settings.mu=1.0"),
        ("params.yaml", "partitions.digits.splits.iid.clients=6"),
        ("papers/fedhpl/params.yaml", "experiments.fedhpl-batch-32.defaults.batch_size=64"),
        ("papers/fedtgp/params.yaml", "experiments.fedtgp-clients.defaults.participation=0.25"),
        ("papers/fgpt/params.yaml", "experiments.fgpt-five.defaults.groups=4"),
        ("papers/short/params.yaml", "experiments.cifar10-small.defaults.rounds=7"),
    ],
)
def test_an_override_of_dvc_changes_one_line(file: str, key: str, tmp_path: Path) -> None:
    """What `dvc exp run -S` does to a file: it reads it, sets a value and writes it anew."""
    from dvc.utils.hydra import apply_overrides

    copy = tmp_path / "params.yaml"
    shutil.copy(ROOT / file, copy)
    apply_overrides(copy, [key])
    before, after = (path.read_text().splitlines() for path in (ROOT / file, copy))
    assert len(before) == len(after)
    assert len([line for line, other in zip(before, after, strict=True) if line != other]) == 1


def test_the_report_trains_no_papers_and_is_made_anew_where_it_cannot_watch_what_it_shows() -> None:
    own, papers = EMBEDDED.written["report"], OF_PAPERS.written["report"]
    assert [dep for dep in own["deps"] if dep.startswith("runs/")] and "always_changed" not in own
    assert not [dep for dep in papers["deps"] if dep.startswith(("runs/", "evaluations/"))]
    assert {dep for dep in papers["deps"] if dep.startswith("tables/")} == {f"tables/{n}" for n in ARITHMETIC_TABLES}
    assert papers["always_changed"]


def test_hand_written_settings_stay_short_and_without_anchors() -> None:
    texts = [(ROOT / file).read_text() for file in FILES]
    assert sum(len(text.splitlines()) for text in texts) <= 1800
    assert not any("<<:" in text or ": &" in text or ": *" in text for text in texts)


def own(tmp_path: Path, **experiment: Any) -> Params:
    raw = read("params.yaml")
    raw["experiments"] = {
        "mine": {
            "title": "Mine",
            "dataset": "digits",
            "models": "digits-resnet",
            "splits": {"iid": "IID"},
            "seeds": 1,
            "defaults": {"rounds": 1},
            "rows": {"fedavg": None, "fedprox": {"settings": {"mu": 0.1}}},
        }
        | experiment
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    return load_params(tmp_path / "params.yaml")


def test_an_experiment_of_ones_own_has_its_stages(tmp_path: Path) -> None:
    files = stages.files(own(tmp_path))
    found = yaml.safe_load(files["dvc.yaml"])["stages"]
    assert {"train-mine", "evaluate-mine", "mine", "partition", "download-digits"} <= set(found)
    assert found["train-mine"]["deps"] == ["data/digits", "partitions/digits"]
    assert found["mine"]["outs"] == [{"tables/mine": {"cache": False, "persist": True}}]
    assert not [name for name in found if "-table-" in name]
    with pytest.raises(HetflError, match=r"dvc.yaml: is out of date with .*; run hetfl stages"):
        stages.check(own(tmp_path), tmp_path)
    assert stages.write(own(tmp_path), tmp_path) == ["dvc.yaml"]
    stages.check(own(tmp_path), tmp_path)


def test_what_hetfl_did_not_write_stays(tmp_path: Path) -> None:
    params = own(tmp_path)
    analysis, file = tmp_path / "analysis" / "dvc.yaml", tmp_path / "dvc.yaml"
    analysis.parent.mkdir()
    analysis.write_text("stages: {plot: {cmd: python plot.py}}\n")
    assert stages.write(params, tmp_path) == ["dvc.yaml"] and analysis.exists()
    ours = file.read_text()
    file.write_text(ours.replace("stages:", "stages:\n  extra: {cmd: echo 1}", 1))
    with pytest.raises(HetflError, match="dvc.yaml: extra: is no stage of hetfl, which would remove it; put it into"):
        stages.write(params, tmp_path)
    assert "extra: {cmd" in file.read_text()
    # Of stages that hetfl wrote, those that params.yaml does not have any more go.
    file.write_text(ours.replace("stages:", "stages:\n  old: {cmd: python pipeline/table.py old}", 1))
    stages.write(params, tmp_path)
    assert file.read_text() == ours
    gone = tmp_path / "short" / "dvc.yaml"
    gone.parent.mkdir()
    gone.write_text(ours)
    assert stages.write(params, tmp_path) == ["short/dvc.yaml"] and not gone.exists()


@pytest.mark.parametrize("title", ["true", "1e3", "0o17", "é: {x} # y", "- 'a' \"b\"", "long " * 60 + "title"])
def test_dvc_takes_titles_and_paths_as_they_are(tmp_path: Path, title: str) -> None:
    raw = read("params.yaml")
    raw["data"]["mine"] = {"path": "my ${images}", "title": "the ${best}", "size": 8}
    raw["experiments"]["digits-fgpt"]["title"] = title
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    (tmp_path / "dvc.yaml").write_text(stages.files(load_params(tmp_path / "params.yaml"))["dvc.yaml"])
    found = {stage.name: stage for stage in Repo.init(tmp_path, no_scm=True).index.stages}
    assert found["digits-fgpt"].desc == title
    assert found["download-mine"].desc == "prepare the ${best}"
    assert "my ${images}" in [dep.def_path for dep in found["download-mine"].deps]


def test_a_row_of_its_own_models_is_watched(tmp_path: Path) -> None:
    rows = {"fedavg": None, "pfedpt": {"models": "digits-pfedpt"}, "fedhpl": {"models": "digits-homogeneous"}}
    found = yaml.safe_load(stages.files(own(tmp_path, rows=rows))["dvc.yaml"])["stages"]["train-mine"]
    assert {"models.digits-resnet", "models.digits-pfedpt", "models.digits-homogeneous"} <= set(
        watched(found)["params.yaml"]
    )
    assert "weights/digits_vit_base.safetensors" in found["deps"]


def test_a_name_that_dvc_would_misread_is_refused(tmp_path: Path) -> None:
    raw = read("params.yaml")
    raw["experiments"] = {"mine.2": raw["experiments"]["digits-fgpt"]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(HetflError, match=r"experiments.mine.2: DVC interprets a dot as a path .*; use a dash"):
        stages.files(load_params(tmp_path / "params.yaml"))


@pytest.mark.slow
def test_dvc_repro_of_ones_own_experiment_makes_its_table(tmp_path: Path) -> None:
    """From a clone: params.yaml is changed, `hetfl stages` typed, and one target makes everything."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    own(clone)
    tools = Path(sys.executable).parent
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHONPATH": str(clone / "src"), "HOME": str(tmp_path)}

    def tell(*command: str) -> str:
        command = (str(tools / command[0]), *command[1:])
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tell("hetfl", "stages")
    tell("dvc", "repro", "mine")
    table = json.loads((clone / "tables/mine/mine.json").read_text())
    assert {cell["row"]: cell["status"] for cell in table["cells"]} == {"fedavg": "ours", "fedprox": "ours"}
    workspace = Workspace(clone)
    params = load_params(workspace.params)
    assert len(identities(cells(params, "mine"), workspace)) == 2
    assert tell("dvc", "status", "mine", "train-mine", "evaluate-mine") == "Data and pipelines are up to date.\n"


def test_the_readmes_experiment_is_sound(tmp_path: Path) -> None:
    (block,) = [
        part for part in (ROOT / "docs/experiment.md").read_text().split("```yaml\n")[1:] if "  mine:" in part
    ]
    raw = read("params.yaml") | yaml.safe_load(block.partition("```")[0])
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    params = load_params(tmp_path / "params.yaml")
    rates = {cell.row: cell.settings["lr"] for cell in cells(params, "mine") if cell.method == "fedavg"}
    weights = {cell.row: cell.settings["mu"] for cell in cells(params, "mine") if cell.method == "fedprox"}
    assert rates == {f"fedavg-lr-{rate}": rate for rate in (0.003, 0.01)}
    assert weights == {f"fedprox-mu-{mu}": mu for mu in (0.01, 0.1, 1)}
    assert "mine" in yaml.safe_load(stages.files(params)["dvc.yaml"])["stages"]


def test_dvc_shows_the_numbers_and_curves_of_ones_own_experiments() -> None:
    content = read("dvc.yaml")
    own = [*EMBEDDED_PARAMS.experiments]
    assert content["metrics"] == [f"tables/{name}/metrics.yaml" for name in own]
    drawn = {title: plot for entry in content["plots"] if isinstance(entry, dict) for title, plot in entry.items()}
    assert [*drawn] == [f"{name} by {across}" for name in own for across in ("round", "megabytes")]
    assert all((ROOT / f".dvc/plots/{plot['template']}.json").exists() for plot in drawn.values())
