"""Stage: the report over all tables that exist."""

from pathlib import Path

from hetfl.cli import run
from hetfl.experiments.plan import Workspace, load_params
from hetfl.site.build import build_site


def main() -> None:
    workspace = Workspace(Path.cwd())
    print(f"report: {build_site(workspace, load_params(workspace.params))}")


if __name__ == "__main__":
    run(main)
