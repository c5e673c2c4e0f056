"""Stage: prepare one data set of the catalogue."""

from pathlib import Path

from hetfl.cli import run
from hetfl.config import validate
from hetfl.data.catalogue import Sources, entry, prepare_dataset
from hetfl.errors import unknown
from hetfl.experiments.plan import Workspace, load_params


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    if name not in params.data.sets:
        raise unknown("data set", name, params.data.sets, "params.yaml: data")
    settings = validate(entry(name).settings, params.data.sets[name], f"params.yaml: data.{name}")
    sources = Sources(params.data.folder(), workspace.scratch / "downloads")
    prepare_dataset(name, settings, workspace.dataset(name), sources)


if __name__ == "__main__":
    run(main)
