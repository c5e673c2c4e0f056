"""The command line, for everything besides `dvc repro`: one module for each group of commands."""

from importlib import import_module

from hetfl.cli.base import app, main, run

__all__ = ["app", "main", "run"]

# In the order of the help.
for _group in ("overview", "training", "results", "own", "checkout", "deployment"):
    import_module(f"hetfl.cli.{_group}")
