"""The command line, for everything besides `dvc repro`: one module for each group of commands."""

from hetfl.cli import checkout, overview, own, results, training
from hetfl.cli.base import app, main, run

__all__ = ["app", "checkout", "main", "overview", "own", "results", "run", "training"]
