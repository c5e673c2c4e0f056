"""Stage: the static report over all tables that exist."""

from pathlib import Path

from hetfl.cli import run
from hetfl.experiments.plan import Workspace
from hetfl.report.site import build_site


def main() -> None:
    workspace = Workspace(Path.cwd())
    page = build_site(workspace.tables, workspace.figures, workspace.partitions, workspace.report)
    print(f"report: {page}")


if __name__ == "__main__":
    run(main)
