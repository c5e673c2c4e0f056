"""What all commands share: the app, how they begin and end, and the arguments that several have.

A command imports what it needs when it runs, since torch alone takes seconds, and says before that what it does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hetfl
import hetfl.cli.names as names
from hetfl.errors import HetflError, foreseen
from hetfl.experiments.stop import terminable
from hetfl.process import quick

if TYPE_CHECKING:
    from hetfl.experiments.plan import Params, Workspace

HELP = ("-h", "--help")
app = typer.Typer(
    help="Reproducible tables of heterogeneous federated learning. `dvc repro TABLE` makes a table; these commands "
    "show what there is, train single cells, compare results, and add your own methods, data sets and experiments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    context_settings={"help_option_names": [*HELP]},
)

LOOK, TRAIN, RESULTS = "See what there is", "Train and evaluate", "Results"
OWN, CHECKOUT = "Your own work", "Checkout and exchange"
"""The groups of commands in the help."""

Targets = Annotated[
    list[str],
    typer.Argument(help="Tables, experiments, or cells as paths below runs/.", autocompletion=names.targets),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


UNREAD = 141
"""The exit status of a command whose output nobody reads any more, such as ``head``: that of SIGPIPE."""
ENDED = {
    130: "interrupted",
    143: "ended by SIGTERM",
    129: "ended by SIGHUP",
    UNREAD: "ended: nobody reads its output",
}
"""Exit statuses of a command that a signal ended; typer turns Ctrl-C into the first."""
PLAYS = {"train", "run", "sweep", "reproduce", "serve"}
"""Commands that play rounds, so that they go on where a signal ended them."""


def run(command: Callable[..., Any]) -> None:
    """Run a typer command or app. What :func:`hetfl.errors.foreseen` knows is printed in one line, with status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± or … shows a question mark
    with quick():
        _run(command)


def _run(command: Callable[..., Any]) -> None:
    began = Path.cwd()
    is_stage = not isinstance(command, typer.Typer)
    if is_stage:
        stage, command = command, typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        command.command()(stage)
    try:
        with terminable():
            command()
    except Exception as error:
        if _tell(error, began):
            raise SystemExit(2) from None
        raise
    except SystemExit as end:
        if end.code in ENDED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends already; impatience would only add a traceback
        unread = isinstance(end.__context__, BrokenPipeError)
        if unread:
            end.code = UNREAD
        if end.code in ENDED and (not unread or is_stage or _plays()):  # of a list, whoever reads it has had enough
            goes_on = "; the same command continues from the last completed round" if _plays() else ""
            with suppress(OSError):  # the terminal is gone
                print(f"{ENDED[end.code]}{goes_on}", file=sys.stderr)
        raise


def _tell(error: Exception, began: Path) -> bool:
    """Print an error of which no traceback should tell; returns whether it is one."""
    known = foreseen(error) or _mistake(error) or _lacking(error)
    if known is None:
        return False
    for line in str(known).replace(f"{Path.cwd()}/", "").splitlines():
        print(f"error: {line}", file=sys.stderr)
    if "unknown" in str(known) and (remark := names.elsewhere(sys.argv[1:])):
        print(remark, file=sys.stderr)
    if Path.cwd() != began and re.search(r"\b(hetfl|dvc) \w", str(known)):
        print(f"these commands, too, with --cd {os.path.relpath(Path.cwd(), began)}", file=sys.stderr)
    return True


def _before_run(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tell of an exception outside of :func:`run` as that does: a stage's script imports the methods before it."""
    if isinstance(error, KeyboardInterrupt):
        print(ENDED[130], file=sys.stderr)
        raise SystemExit(130)
    if isinstance(error, Exception) and _tell(error, Path.cwd()):
        raise SystemExit(2)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _before_run


def _plays() -> bool:
    """Whether this is a command or a stage of the pipeline that plays rounds; its help does not."""
    words = {Path(sys.argv[0]).stem, *sys.argv[1:]}
    return not PLAYS.isdisjoint(words) and words.isdisjoint(HELP)


def _mistake(error: Exception) -> HetflError | None:
    """An error of a method in one line; most commands do not import the methods, and this does not either."""
    registry = sys.modules.get("hetfl.methods.registry")
    return registry.mistake(error) if registry else None


def _lacking(error: Exception) -> HetflError | None:
    """What to install where a package is missing; what an installation of hetfl alone lacks is of the pipeline."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.startswith("hetfl"):
        return None
    return HetflError(f"{error.name}: is not installed, and this command needs it; pip install 'hetfl[pipeline]'")


def tolerance(param: typer.CallbackParam, value: float | None) -> float | None:
    """The value of an option that says how far numbers may differ."""
    if value is not None and not 0 <= value < float("inf"):
        raise HetflError(f"--{param.name}: {value} should be a number of at least 0")
    return value


def main() -> None:
    """Entry point of ``hetfl``."""
    run(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hetfl {hetfl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    cd: Annotated[
        Path | None, typer.Option("--cd", metavar="FOLDER", help="Run there, e.g. in papers, as with dvc --cd.")
    ] = None,
) -> None:
    if cd is not None:
        if not (cd / "params.yaml").exists():
            others = " or ".join(sorted(path.parent.name for path in Path().glob("*/.dvc")))
            remedy = f"try {others}" if others else "run from the repository's root"
            raise HetflError(f"--cd {cd}: is no project, since it has no params.yaml; {remedy}")
        os.chdir(cd)


@contextmanager
def doing(what: str, work: bool = False) -> Iterator[None]:
    """Say on stderr what takes its time: with a spinner on a terminal, else in a line if work begins.

    Args:
        what: what is done, e.g. ``reading params.yaml``.
        work: whether this is the start of work that takes longer, so that a log should have it.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        spinner = Spinner("dots", f"{what} ...")
        live = Live(spinner, console=Console(stderr=True), transient=True, refresh_per_second=12)
        live.start(refresh=True)
        try:
            yield
        finally:
            live.stop()
        return
    if work:
        print(f"hetfl: {what} ...", file=sys.stderr, flush=True)
    yield


def opened(what: str = "reading params.yaml", work: bool = False) -> tuple[Workspace, Params]:
    """The checkout in this folder and its settings; ``what`` and ``work`` as for :func:`doing`.

    Raises:
        HetflError: the settings have a mistake.
    """
    with doing(what, work):
        from hetfl.experiments.plan import Workspace, load_params

        workspace = Workspace(Path.cwd())
        return workspace, load_params(workspace.params)


def project() -> Workspace:
    """The checkout in this folder, for commands that do not read its settings.

    Raises:
        HetflError: this folder is no checkout.
    """
    from hetfl.experiments.plan import Workspace

    workspace = Workspace(Path.cwd())
    if not workspace.params.exists():
        raise HetflError(f"{workspace.params}: does not exist; run from the repository's root")
    return workspace


def print_json(content: Any) -> None:
    """Print what a script reads."""
    print(json.dumps(content, indent=1))
