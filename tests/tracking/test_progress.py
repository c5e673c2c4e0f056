import io
from pathlib import Path

import pytest
from record_factory import make_round, make_run
from rich.console import Console

from hetfl.tracking import progress as module
from hetfl.tracking.progress import Progress, size

FOLDER = Path("runs/digits/fedhpl/iid-s0")


def run(status="running", row="fedhpl", started="2999-01-01T00:00:00Z"):
    return make_run(status=status, row=row, rounds=5, started=started)


def line(number, accuracy=(0.88, 0.93), **more):
    accuracy = list(accuracy) if number else None
    traffic = {"up": {"elements": 8750, "bytes": 35_000}, "down": {"elements": 460, "bytes": 1843}}
    return make_round(number, accuracy=accuracy, seconds={"train": 0.4, "evaluate": 0.06}, **traffic, **more)


def play(progress, folder=FOLDER, rounds=6, **kind):
    progress.started(folder, run(**kind))
    for number in range(rounds):
        progress.round(folder, run(**kind), line(number))


def plain(cells, rounds):
    out = io.StringIO()
    return out, Progress(cells, rounds, Console(file=out, width=40))


def test_plain_line_per_finished_cell():
    out, progress = plain(99, 495)
    play(progress)
    progress.finished(FOLDER, run("complete"))
    progress.close()
    first, last = out.getvalue().splitlines()
    result = "5 rounds, accuracy 90.5 (88.0-93.0), up 210 kB, down 11 kB, 2.8 s"
    assert first == f"[ 1/99] fedhpl iid s0: {result}"
    assert last.startswith("1 of 99 cells complete after 0:00:0")


def test_a_diverged_cell_says_when():
    out, progress = plain(1, 5)
    progress.started(FOLDER, run())
    for number in range(4):
        progress.round(FOLDER, run(), line(number, (0.0, 0.0), diverged=[1] if number > 1 else []))
    assert progress._cells[FOLDER].score() == "0.0 (0.0-0.0), diverged in round 2"
    progress.finished(FOLDER, run("complete"))
    assert "accuracy 0.0 (0.0-0.0), diverged in round 2, up" in out.getvalue()


def test_plain_heartbeat(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.0)
    out, progress = plain(1, 10)
    play(progress, rounds=3)
    beats = out.getvalue().splitlines()
    assert beats[0] == "  0% of 10 rounds, time left unknown"
    assert beats[2].startswith(" 20% of 10 rounds, 0:00:") and beats[2].endswith(" left")


def test_what_was_there_before_says_nothing_about_speed():
    _, progress = plain(2, 10)
    play(progress, started="2020-01-01T00:00:00Z")
    assert progress._left() == "time left unknown"


def test_a_rerun_counts_once():
    out, progress = plain(1, 5)
    play(progress)
    progress.finished(FOLDER, run("complete"))
    play(progress, rounds=2)
    assert progress._share() == 0.2


def test_terminal_display():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    progress = Progress(3, 15, console)
    play(progress, rounds=4)
    play(progress, FOLDER.with_name("other"), row="[fedproto]")
    progress.finished(FOLDER.with_name("other"), run("complete"))
    progress.close()
    shown = out.getvalue()
    for part in ("fedhpl", "round 3/5", "90.5 (88.0-93.0)", "up 140 kB, down 7 kB", "1/3 cells", "53%"):
        assert part in shown
    assert shown.rstrip().endswith("\x1b[?25h"), "the cursor is visible again"


def test_terminal_display_with_many_cells():
    out = io.StringIO()
    progress = Progress(50, 250, Console(file=out, force_terminal=True, width=120, height=60))
    for cell in range(30):
        play(progress, Path(str(cell)), rounds=1)
    progress._console.print(progress._render())
    assert "and 10 more" in out.getvalue()
    progress.close()


def test_closing_what_never_began():
    out, progress = plain(1, 1)
    progress.close()
    Progress(1, 1, Console(file=out, force_terminal=True)).close()
    assert out.getvalue() == ""


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (171_000, "171 kB"), (3_000_000, "3.0 MB")])
def test_size(count, text):
    assert size(count) == text
