"""Stage: read a data set of one's own, which params.yaml defines."""

from pathlib import Path

from hetfl.cli import run
from hetfl.data.own import prepare_own
from hetfl.errors import unknown
from hetfl.experiments.plan import Workspace, load_params


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    own = load_params(workspace.params).data.own
    if name not in own:
        raise unknown("data set", name, own, "params.yaml: data")
    prepare_own(name, own[name], workspace.root, workspace.dataset(name))


if __name__ == "__main__":
    run(main)
