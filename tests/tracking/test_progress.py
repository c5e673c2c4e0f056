import io
from pathlib import Path

from record_factory import make_round, make_run
from rich.console import Console

from hetfl.experiments.events import Event
from hetfl.tracking import progress as module
from hetfl.tracking.progress import Progress

FOLDER = Path("runs/digits/fedhpl/iid-s0")


def run(status="running", row="fedhpl"):
    return make_run(status=status, row=row, rounds=5)


def line(number, accuracy=(0.88, 0.93), **more):
    accuracy = list(accuracy) if number else None
    traffic = {"up": {"elements": 8750, "bytes": 35_000}, "down": {"elements": 460, "bytes": 1843}}
    return make_round(number, accuracy=accuracy, seconds={"train": 0.4, "evaluate": 0.06}, **traffic, **more)


def play(progress, folder=FOLDER, rounds=6, kept=0, **kind):
    """A cell begins, or continues with as many rounds as it kept, and is at a number of rounds in the end."""
    progress.told(Event(folder, run(**kind), [line(number) for number in range(kept)]))
    for number in range(kept, rounds):
        progress.told(Event(folder, None, [line(number)]))


def finish(progress, folder=FOLDER):
    progress.told(Event(folder, run("complete")))


def plain(cells, rounds):
    out = io.StringIO()
    return out, Progress(each(cells, rounds), Console(file=out, width=40))


def each(cells, rounds):
    return {Path(str(cell)): rounds // cells for cell in range(cells)}


def test_plain_line_per_finished_cell():
    out, progress = plain(99, 495)
    play(progress)
    finish(progress)
    progress.close()
    first, last = out.getvalue().splitlines()
    result = "5 rounds, accuracy 90.5 (88.0-93.0), up 210.0 kB, down 11.1 kB, 2.8 s"
    assert first == f"[ 1/99] fedhpl iid s0: {result}"
    assert last.startswith("1 of 99 cells trained in 0:00:0")


def test_a_run_that_waits_for_its_best_round_is_told_by_all_samples():
    out, progress = plain(1, 5)
    settings = run().settings | {"patience": 2}
    progress.told(Event(FOLDER, make_run(rounds=5, settings=settings), [line(0)]))
    for number, pooled in enumerate((0.5, 0.75, 0.625), start=1):
        progress.told(Event(FOLDER, None, [line(number, pooled=pooled)]))
    progress.told(Event(FOLDER, make_run(status="complete", rounds=5, settings=settings)))
    assert "3 rounds, accuracy 62.50 %, best 75.00 % in round 2, up" in out.getvalue()


def test_a_run_that_waits_is_expected_to_go_on_while_its_best_round_is_young(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.0)
    out = io.StringIO()
    begun = make_run(rounds=10, settings=run().settings | {"patience": 3})
    progress = Progress({begun.path: 5, Path("another"): 20}, Console(file=out, width=40))
    progress.told(Event(FOLDER, begun, [line(0)]))
    for number, pooled in enumerate((0.5, 0.5, 0.5, 0.75, 0.5, 0.5, 0.5), start=1):
        progress.told(Event(FOLDER, None, [line(number, pooled=pooled)]))
    shares = [text.partition(" rounds")[0].strip() for text in out.getvalue().splitlines()]
    # The best round was number 4, so that three more come.
    assert shares == [f"{share}% of {25 if share < 15 else 27}" for share in (0, 4, 8, 12, 15, 19, 22, 26)]


def test_a_diverged_cell_says_when():
    out, progress = plain(1, 5)
    progress.told(Event(FOLDER, run()))
    for number in range(4):
        progress.told(Event(FOLDER, None, [line(number, (0.0, 0.0), diverged=[1] if number > 1 else [])]))
    finish(progress)
    at_once, last, *_ = out.getvalue().splitlines()
    assert at_once.endswith(": the loss or scores of 1 of 5 clients are not finite in round 2")
    assert "accuracy 0.0 (0.0-0.0), diverged in round 2, up" in last


def test_a_round_without_a_client_is_told_once_for_each_client():
    out, progress = plain(1, 5)
    progress.told(Event(FOLDER, run()))
    for number, failed in ((1, {}), (2, {"1": "did not answer"}), (3, {"1": "did not answer", "4": "was lost"})):
        progress.told(Event(FOLDER, None, [line(number, failed=failed)]))
    finish(progress)
    first, second, last, *_ = out.getvalue().splitlines()
    assert first.endswith(": client 1 did not answer; round 2 went on without it")
    assert second.endswith(": client 4 was lost; round 3 went on without it")
    assert ", went on without a client in round 2, up" in last


def test_plain_heartbeat(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.0)
    out, progress = plain(1, 10)
    play(progress, rounds=4)
    beats = out.getvalue().splitlines()
    assert beats[0] == "  0% of 10 rounds, time left unknown"
    assert beats[-1].startswith(" 30% of 10 rounds, 0:00:") and beats[-1].endswith(" left")


def test_what_was_there_before_says_nothing_about_speed(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.0)
    out, progress = plain(2, 10)
    finish(progress)
    play(progress, FOLDER.with_name("other"), rounds=4, kept=4)
    assert out.getvalue() == " 80% of 10 rounds, time left unknown\n"


def test_cells_that_were_complete_before_count_and_are_not_listed():
    out, progress = plain(2, 10)
    for name in "ab":
        finish(progress, FOLDER.with_name(name))
    progress.close()
    assert out.getvalue() == "2 of 2 cells were complete before\n"


def test_the_last_line_tells_what_was_trained_from_what_was_there():
    out, progress = plain(3, 15)
    finish(progress, FOLDER.with_name("a"))
    play(progress, FOLDER.with_name("b"))
    finish(progress, FOLDER.with_name("b"))
    play(progress, FOLDER.with_name("c"), rounds=2)
    progress.close()
    *_, last = out.getvalue().splitlines()
    assert last.startswith("1 of 3 cells trained in 0:00:0")
    assert last.endswith(", 1 were complete before, 1 not finished")


def test_a_missed_event_is_no_error():
    out, progress = plain(2, 10)
    progress.told(Event(FOLDER, None, [line(1)]))
    play(progress, rounds=2)
    progress.told(Event(FOLDER, None, [line(4)]))
    finish(progress)
    assert "4 rounds, accuracy 90.5" in out.getvalue()


def test_terminal_display():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    progress = Progress(each(3, 15), console)
    play(progress, rounds=4)
    play(progress, FOLDER.with_name("other"), row="[fedproto]")
    finish(progress, FOLDER.with_name("other"))
    progress.close()
    shown = out.getvalue()
    for part in ("fedhpl iid s0", "3/5", "90.5 (88.0-93.0)", "up 140.0 kB, down 7.4 kB", "1/3 cells", "53%"):
        assert part in shown
    # Each finished cell stays on the screen with its result; the bars go, and the cursor is visible again.
    assert "[1/3] fedhpl iid s0: 5 rounds, accuracy 90.5" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
    assert shown.rstrip().endswith("1 of 3 cells trained in 0:00:00, 1 not finished")


def test_closing_what_never_began():
    out, progress = plain(1, 1)
    progress.close()
    Progress(each(1, 1), Console(file=out, force_terminal=True)).close()
    assert out.getvalue() == ""
