"""Events of runs come to their subscribers from any process, and nothing that these do reaches the training."""

import itertools
import json
import os
import pickle
import signal
import threading
import time
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Client

import pytest
from record_factory import make_round, make_run, write_record
from subscribers import Elsewhere, Notes

from hetfl.experiments.events import Event
from hetfl.experiments.record import Record
from hetfl.tracking import follow
from hetfl.tracking.follow import following
from hetfl.training.state import State


class Broken(Notes):
    remedy = "ask again"

    def told(self, event):
        super().told(event)
        raise ConnectionError("no server\nand a long trace")


class Stuck(Notes):
    """A subscriber that does not come back from its first event."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def told(self, event):
        self.release.wait(30)
        super().told(event)


def train(folder, callback, rounds=3):
    """What :func:`hetfl.experiments.cell.run_rounds` writes."""
    record = Record(folder, callback)
    record.begin(make_run(), completed=0)
    for number in range(rounds):
        record.append(make_round(number))
    record.finish(State(0, {}))


def told_of(name, rounds=3):
    return [(name, "running", []), *((name, None, [number]) for number in range(rounds)), (name, "complete", [])]


def send(content):
    callback, events = pickle.loads(content)
    for event in events:
        callback(event)


def kill_oneself(callback):
    """A process that is killed while it sends."""
    connection = Client(callback.address)
    connection._send(b"\0\0\1\0half of a message")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_tells_what_it_writes_in_order(tmp_path):
    notes = Notes()
    with following([notes]) as callback:
        train(tmp_path / "cell", callback)
    assert notes.events == [*told_of("cell"), "close"]


def test_a_run_that_continues_tells_what_it_kept(tmp_path):
    folder = write_record(tmp_path, "e/m/r/iid-s0", [make_round(number) for number in range(4)], status="running")
    notes = Notes()
    with following([notes]) as callback:
        record = Record(folder, callback)
        record.begin(make_run(), completed=2)
        record.append(make_round(3))
    assert notes.events == [("iid-s0", "running", [0, 1, 2]), ("iid-s0", None, [3]), "close"]


def test_events_come_from_other_processes(tmp_path):
    notes, cells = Notes(), [tmp_path / name for name in "abcd"]
    lines, run = [make_round(number) for number in range(20)], make_run()
    with following([notes]) as callback:
        events = [[Event(cell, run), *(Event(cell, None, [line]) for line in lines)] for cell in cells]
        sent = [pickle.dumps((callback, mine)) for mine in events]  # as a worker is sent what it needs
        workers = [get_context("fork").Process(target=send, args=(content,)) for content in sent]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert notes.events[-1] == "close" and len(notes.events) == 4 * 21 + 1
    for cell in cells:
        mine = [event for event in notes.events[:-1] if event[0] == cell.name]
        assert mine == told_of(cell.name, 20)[:-1]


def test_a_process_that_is_killed_while_it_sends_does_no_harm(tmp_path):
    notes = Notes()
    with following([notes]) as callback:
        pid = os.fork()
        if pid == 0:
            kill_oneself(callback)
        os.waitpid(pid, 0)
        train(tmp_path / "cell", callback)
    assert notes.events == [*told_of("cell"), "close"]


def test_a_raising_subscriber_is_dropped(tmp_path, capsys):
    notes, broken = Notes(), Broken()
    with following([broken, notes]) as callback:
        train(tmp_path / "cell", callback)
    assert notes.events == [*told_of("cell"), "close"]
    assert broken.events == [("cell", "running", []), "close"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "hetfl: Broken stopped (ConnectionError: no server); the records have everything, and ask again"


def test_a_stuck_subscriber_holds_up_nobody_and_fills_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "WAITING", 50)
    notes, stuck, rounds = Notes(), Stuck(), 3 * follow.UNREAD
    with following([stuck, notes]) as callback:
        sent = itertools.count(1)

        def at_the_pace_of_notes(event: Event) -> None:
            callback(event)
            number = next(sent)
            while number - len(notes.events) > 20:  # with more than 50 unread it would lose some, too
                time.sleep(0.001)

        train(tmp_path / "cell", at_the_pace_of_notes, rounds)
        while len(notes.events) < rounds + 2:
            time.sleep(0.005)
        assert stuck.events == []
        stuck.release.set()
    assert len(stuck.events) <= 50 + 2 and stuck.events[-1] == "close"
    assert Record(tmp_path / "cell").finished


def test_interruption_ends_promptly(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(follow, "GRACE", 0.2)
    stuck, notes, began = Stuck(), Notes(), time.monotonic()
    with pytest.raises(KeyboardInterrupt), following([stuck, notes]) as callback:
        callback(Event(tmp_path, make_run()))
        raise KeyboardInterrupt
    assert time.monotonic() - began < 8
    assert notes.events == [(tmp_path.name, "running", []), "close"]
    assert "Stuck was not done after 0.2 s" in capsys.readouterr().err
    stuck.release.set()


def test_who_is_slow_in_the_end_is_waited_for_only_so_long(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(follow, "QUIET", 0.1)
    monkeypatch.setattr(follow, "PATIENCE", 0.6)
    stuck, began = Stuck(), time.monotonic()
    with following([stuck]) as callback:
        train(tmp_path / "cell", callback)
    assert time.monotonic() - began < 8 and Record(tmp_path / "cell").finished
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("hetfl: Stuck is not done; waiting for it, ")
    assert second == "hetfl: Stuck was not done after 0.6 s; the records have everything"
    stuck.release.set()


def test_a_subscriber_in_a_process_of_its_own_is_told_all_and_is_last_in_line(tmp_path):
    apart = follow.Apart(partial(Elsewhere, tmp_path / "told.json"))
    with following([apart]) as callback:
        train(tmp_path / "cell", callback)
    process, priority, *events = json.loads((tmp_path / "told.json").read_text())
    assert [*map(tuple, events[:-1]), events[-1]] == [*told_of("cell"), "close"]
    assert process != os.getpid() and priority == 19 and apart.title == "A file"


def test_a_callback_that_raises_is_one_line_and_the_run_goes_on(tmp_path, capsys):
    called = []

    def callback(event):
        called.append(event)
        raise ConnectionRefusedError("nobody\nlistens")

    train(tmp_path / "cell", callback)
    assert len(called) == 1 and Record(tmp_path / "cell").finished
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hetfl: ") and "cell" in line and "ConnectionRefusedError: nobody" in line


def test_a_run_outlives_the_process_that_shows_it(tmp_path, capsys):
    with following([Notes()]) as callback:
        pass
    train(tmp_path / "cell", callback)
    assert Record(tmp_path / "cell").finished
    (line,) = capsys.readouterr().err.splitlines()
    assert "its progress is no longer shown" in line


def test_without_a_socket_subscribers_are_told_of_the_end(tmp_path, monkeypatch, capsys):
    def refuse(**_):
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(follow, "Listener", refuse)
    notes = Notes()
    with following([notes]) as callback:
        train(tmp_path / "cell", callback)
    assert notes.events == ["close"] and Record(tmp_path / "cell").finished
    (line,) = capsys.readouterr().err.splitlines()
    assert "AF_UNIX path too long" in line
