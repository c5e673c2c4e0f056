import json
import threading
import time
from pathlib import Path

import pytest
from record_factory import make_round, make_run, rewrite_rounds

from hetfl.experiments.record import Record
from hetfl.files import write_json
from hetfl.schema import read_rounds
from hetfl.tracking.watch import Watcher


class Notes:
    """A subscriber that writes down what it is told."""

    def __init__(self):
        self.events, self.threads = [], set()

    def started(self, folder, run):
        self.events.append(("started", folder.name, run.fingerprint))

    def round(self, folder, run, line):
        self.events.append(("round", folder.name, line.round))

    def finished(self, folder, run):
        self.events.append(("finished", folder.name, run.fingerprint))

    def close(self):
        self.events.append(("close",))

    def wait(self, event):
        limit = time.monotonic() + 30
        while event not in self.events:
            assert time.monotonic() < limit, f"{event} not in {self.events}"
            time.sleep(0.005)


class Broken(Notes):
    def round(self, folder, run, line):
        raise ConnectionError("no server\nand a long trace")


def write_run(folder: Path, status="running", fingerprint="f"):
    write_json(folder / "run.json", make_run(status=status, fingerprint=fingerprint).as_json())


def write_rounds(folder: Path, *numbers, seconds=0.5, mode="a"):
    rounds = [make_round(number, seconds={"train": seconds}) for number in numbers]
    if mode == "w":
        rewrite_rounds(folder, rounds)
    else:
        for line in rounds:
            Record(folder).append(line)


def rounds_of(notes):
    return [event[2] for event in notes.events if event[0] == "round"]


def test_events_come_while_the_cell_runs(tmp_path):
    notes, cell = Notes(), tmp_path / "iid-s0"
    with Watcher([cell], [notes], interval=0.01):
        write_run(cell)
        notes.wait(("started", "iid-s0", "f"))
        for number in range(3):
            write_rounds(cell, number)
            notes.wait(("round", "iid-s0", number))
        write_run(cell, "complete")
        notes.wait(("finished", "iid-s0", "f"))
    expected = [("started", "iid-s0", "f"), *(("round", "iid-s0", n) for n in range(3))]
    assert notes.events == [*expected, ("finished", "iid-s0", "f"), ("close",)]


def test_leaving_reads_everything_once_more(tmp_path):
    notes, cells = Notes(), [tmp_path / name for name in "abc"]
    with Watcher(cells, [notes], interval=60):
        time.sleep(0.05)
        for cell in cells:
            write_run(cell, "complete")
            write_rounds(cell, 0, 1)
    assert len(notes.events) == 3 * 4 + 1
    assert notes.events[-1] == ("close",)


def test_complete_before_the_watch(tmp_path):
    write_run(tmp_path, "complete")
    write_rounds(tmp_path, 0, 1)
    notes = Notes()
    with Watcher([tmp_path, tmp_path / "absent"], [notes], interval=0.01):
        notes.wait(("finished", tmp_path.name, "f"))
    assert [event[0] for event in notes.events] == ["started", "round", "round", "finished", "close"]


def test_incomplete_last_line_waits(tmp_path):
    notes = Notes()
    write_run(tmp_path)
    write_rounds(tmp_path, 0)
    with Watcher([tmp_path], [notes], interval=0.01):
        whole = (json.dumps(make_round(1).as_json()) + "\n").encode()
        with (tmp_path / "rounds.jsonl").open("ab") as file:
            file.write(whole[:20])
            file.flush()
            notes.wait(("round", tmp_path.name, 0))
            time.sleep(0.05)
            assert rounds_of(notes) == [0]
            assert [line.round for line in read_rounds(tmp_path)] == [0]
            file.write(whole[20:])
        notes.wait(("round", tmp_path.name, 1))
    assert rounds_of(notes) == [0, 1]


@pytest.mark.parametrize("seconds", [0.5, 0.123456])
def test_a_resumed_record_tells_each_round_once(tmp_path, seconds):
    notes = Notes()
    write_run(tmp_path)
    write_rounds(tmp_path, 0, 1, 2, 3)
    with Watcher([tmp_path], [notes], interval=0.01):
        notes.wait(("round", tmp_path.name, 3))
        write_rounds(tmp_path, 0, 1, mode="w")
        time.sleep(0.03)
        write_rounds(tmp_path, 2, 3, 4, 5, seconds=seconds)
    assert rounds_of(notes) == [0, 1, 2, 3, 4, 5]


def test_a_record_rewritten_between_two_looks(tmp_path):
    notes = Notes()
    write_run(tmp_path)
    write_rounds(tmp_path, 0, 1)
    with Watcher([tmp_path], [notes], interval=60):
        notes.wait(("round", tmp_path.name, 1))
        write_rounds(tmp_path, 0, 1, 2, 3, seconds=0.123456789, mode="w")
    assert rounds_of(notes) == [0, 1, 2, 3]


def test_a_damaged_line_does_not_end_the_display(tmp_path):
    """Training says what is wrong with a record; here the cells go on."""
    notes = Notes()
    write_run(tmp_path, "complete")
    write_rounds(tmp_path, 0)
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"rou\n')
    write_rounds(tmp_path, 1, 1)
    with Watcher([tmp_path], [notes], interval=0.01):
        notes.wait(("finished", tmp_path.name, "f"))
    assert rounds_of(notes) == [0, 1]


def test_a_rerun_starts_again(tmp_path):
    notes = Notes()
    write_run(tmp_path, "complete", "old")
    write_rounds(tmp_path, 0, 1)
    with Watcher([tmp_path], [notes], interval=0.01):
        notes.wait(("finished", tmp_path.name, "old"))
        (tmp_path / "rounds.jsonl").unlink()
        write_run(tmp_path, "running", "new")
        write_rounds(tmp_path, 0)
        notes.wait(("started", tmp_path.name, "new"))
    assert rounds_of(notes) == [0, 1, 0]


def test_a_raising_subscriber_is_dropped(tmp_path, capsys):
    write_run(tmp_path, "complete")
    write_rounds(tmp_path, 0, 1)
    notes, broken = Notes(), Broken()
    with Watcher([tmp_path], [broken, notes], interval=0.01):
        pass
    assert rounds_of(notes) == [0, 1]
    assert [event[0] for event in broken.events] == ["started", "close"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "ConnectionError: no server" in lines[0] and "hetfl sync" in lines[0]


def test_interruption_ends_promptly(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hetfl.tracking.watch.GRACE", 0.2)
    write_run(tmp_path)
    release = threading.Event()

    class Stuck(Notes):
        def started(self, folder, run):
            release.wait(10)

    notes, begin = Notes(), time.monotonic()
    with pytest.raises(KeyboardInterrupt), Watcher([tmp_path], [Stuck(), notes], interval=0.01):
        notes.wait(("started", tmp_path.name, "f"))
        raise KeyboardInterrupt
    assert time.monotonic() - begin < 8
    assert notes.events[-1] == ("close",)
    assert "Stuck was still busy" in capsys.readouterr().err
    release.set()
