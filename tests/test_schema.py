"""What a record may hold, and what is said of one that cannot be read."""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from pathlib import Path

import pytest
from record_factory import ROUNDS, make_round, make_run, rewrite_rounds, trained, write_metrics, write_record

from hetfl.errors import HetflError
from hetfl.experiments.record import Record
from hetfl.files import read_json, write_json
from hetfl.schema import FORMAT, Round, last_round, needed_run, read_metrics, read_rounds, read_run, sound_rounds

PATH = Path("toy/fedhpl/fedhpl/iid-s0")


def test_the_writer_fills_every_field_and_readers_give_back_what_it_wrote():
    made = trained()
    told = read_json(made.folder / "run.json")
    assert told["format"] == FORMAT == made.run.format
    assert set(type(made.run).model_fields) - set(told) == {"diverged", "failed", "changes", "copy_of"}
    assert made.run.as_json() == told
    lines = (made.folder / "rounds.jsonl").read_text().splitlines()
    assert [json.dumps(line.as_json()) for line in made.rounds] == lines and len(lines) == ROUNDS + 1
    assert not {"accuracy", "loss"} <= made.rounds[0].as_json().keys()
    last = made.rounds[-1].test()
    assert last is not None and last.accuracy == made.metrics.accuracy and last.pooled == made.metrics.pooled


def test_the_public_subset_is_read_under_its_other_name(tmp_path):
    folder = write_record(tmp_path, PATH, [])
    for key in ("split", "subset"):
        public = {"dataset": "digits", key: "public"}
        write_json(folder / "run.json", read_json(folder / "run.json") | {"public": public})
        run = read_run(folder)
        assert run is not None and run.public == {"dataset": "digits", "subset": "public"}


def test_the_weights_of_fedavg_are_read_under_their_other_name(tmp_path):
    folder = write_record(tmp_path, PATH, [])
    for told, read in (("scratch", {"weights": "scratch"}), ("timm", {"init": "timm"})):
        write_json(folder / "run.json", read_json(folder / "run.json") | {"settings": {"init": told}})
        run = read_run(folder)
        assert run is not None and run.settings == read


def problem(folder: Path) -> str:
    """What reading a record says, in one line that names its file."""
    with pytest.raises(HetflError) as caught:
        read_run(folder)
        read_rounds(folder, finished=True)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(str(folder))
    return line.removeprefix(f"{folder}/")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": "0"}, "run.json: has seed '0': it should be a valid integer; delete it and run dvc repro again"),
        ({"sede": 0}, "run.json: has an unknown field 'sede'; did you mean 'seed'?; delete it"),
        ({"inputs": {"dataset": "d", "weights": {}}}, "run.json: lacks inputs.partition"),
        ({"status": "done"}, "run.json: has status 'done': it should be 'running' or 'complete'"),
        (
            {"format": FORMAT + 1, "new": 1},
            f"run.json: is of format {FORMAT + 1}, and this hetfl reads up to",
        ),
        ({"format": 0, "old": 1}, f"run.json: is of format 0, older than {FORMAT}, and has an unknown field 'old'"),
    ],
)
def test_a_description_that_is_none_is_one_line(tmp_path, change, said):
    folder = write_record(tmp_path, PATH, [])
    write_json(folder / "run.json", read_json(folder / "run.json") | change)
    assert problem(folder).startswith(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"rou', "rounds.jsonl: line 2 is not JSON (EOF while parsing"),
        ("", "rounds.jsonl: line 2 is not JSON"),
        ('{"round": 2}', "rounds.jsonl: line 2 lacks participants"),
        ("[1]", "rounds.jsonl: line 2 has a value [1]: it should be an object"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, said):
    folder = write_record(tmp_path, PATH, map(make_round, range(3)))
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join([lines[0], line, lines[2]]) + "\n")
    assert problem(folder).startswith(said)
    # A run goes on after the last sound line.
    assert [line.round for line in Record(folder).lines()] == [0]


def test_a_wrong_type_in_a_line_is_named(tmp_path):
    folder = write_record(tmp_path, PATH, map(make_round, range(2)))
    told = make_round(2).as_json()
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(told | {"up": told["up"] | {"bytes": 1.5}}) + "\n")
    assert problem(folder).startswith("rounds.jsonl: line 3 has up.bytes 1.5: it should be a valid integer")


def test_records_of_format_1_are_read_by_their_names_for_fields(tmp_path):
    """Fine-tuning was the ``closing``, and tests by other rules stood in ``also``."""
    rule = {"accuracy": [0.5, None], "pooled": 0.5}
    lines = [make_round(0), make_round(1, extra={"top-2": rule}), make_round(2, fine_tuning=True)]
    folder = write_record(tmp_path, PATH, lines)
    content = (folder / "rounds.jsonl").read_text()
    former = content.replace('"fine_tuning"', '"closing"').replace('"extra"', '"also"')
    assert former != content
    (folder / "rounds.jsonl").write_text(former)
    write_json(folder / "run.json", read_json(folder / "run.json") | {"format": 1})
    assert read_rounds(folder, finished=True) == lines
    run = read_run(folder)
    assert run is not None and run.format == 1
    # A resumed run writes the lines it keeps anew.
    Record(folder).begin(run, completed=2)
    assert (folder / "rounds.jsonl").read_text() == content

    found = {"accuracy": [0.5], "average": 0.5, "lowest": 0.5, "highest": 0.5, "fingerprint": "f"}
    write_json(tmp_path / "metrics.json", found | {"also": {"top-2": {"window_pooled": 0.25}}})
    ended = run.model_copy(update={"status": "complete", "fingerprint": "f"})
    metrics = read_metrics(tmp_path, ended)
    assert metrics is not None and metrics.figure("window_pooled", "top-2") == 0.25
    assert "extra" in metrics.as_json()


def test_the_half_line_of_a_killed_process_is_passed_over_unless_the_run_is_finished(tmp_path):
    folder = write_record(tmp_path, PATH, map(make_round, range(3)), status="running")
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    assert [line.round for line in read_rounds(folder)] == [0, 1, 2]
    assert problem(folder).startswith("rounds.jsonl: line 4 is not JSON")
    (folder / "rounds.jsonl").unlink()
    assert read_rounds(folder) == []
    assert problem(folder).startswith("rounds.jsonl: the record of a finished run lacks it")


def test_a_record_from_before_there_were_formats_is_read(tmp_path):
    """It lacks what describes a run and decides nothing."""
    folder = write_record(tmp_path, PATH, map(make_round, range(3)))
    told = read_json(folder / "run.json")
    older = {name: value for name, value in told.items() if name not in ("format", "numerics", "threads", "source")}
    write_json(folder / "run.json", older)
    run = read_run(folder)
    assert run is not None and run.complete
    assert (run.format, run.numerics, run.threads, run.source) == (0, {}, None, None)
    assert Record(folder).is_complete(told["fingerprint"])


def test_fine_tuning_has_its_own_number_where_a_run_stopped_early(tmp_path):
    lines = [make_round(number) for number in range(3)]
    tuned, later = make_round(2, fine_tuning=True), make_round(2)
    for name, end, known in (("tuned", tuned, 4), ("later", later, 3)):
        folder = write_record(tmp_path / name, PATH, lines)
        rewrite_rounds(folder, [*lines, end.model_copy(update={"round": 9})])
        assert len(sound_rounds(folder)) == known
        assert last_round(folder) == (9 if known == 4 else None)


def test_what_is_not_there_is_none(tmp_path):
    run = needed_run(write_record(tmp_path / "runs", PATH, map(make_round, range(3))))
    assert read_run(tmp_path / "absent") is read_metrics(tmp_path / "absent", run) is None
    folder = write_metrics(tmp_path, PATH)
    write_json(folder / "metrics.json", read_json(folder / "metrics.json") | {"avrage": 1.0})
    with pytest.raises(HetflError, match=r"metrics.json: has an unknown field 'avrage'; did you mean 'average'\?"):
        read_metrics(folder, run)


def test_an_evaluation_is_of_one_finished_run(tmp_path):
    run = needed_run(write_record(tmp_path / "runs", PATH, map(make_round, range(3))))
    folder = write_metrics(tmp_path, PATH, fingerprint=run.fingerprint)
    assert read_metrics(folder, run) is not None
    assert read_metrics(folder, run.model_copy(update={"fingerprint": "0" * 64})) is None
    assert read_metrics(folder, run.model_copy(update={"status": "running"})) is None


def test_checking_a_thousand_rounds_takes_no_longer_than_reading_their_json_twice(tmp_path):
    figures = {f"figure-{n}": [k / 7 for k in range(10)] for n in range(10)}
    shares = [k / 99 for k in range(100)]
    line = make_round(1, accuracy=shares, train_accuracy=shares, loss=[0.5] * 10, clients=figures)
    folder = write_record(tmp_path, PATH, [line.model_copy(update={"round": n}) for n in range(1000)])
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    assert len(read_rounds(folder, finished=True)) == 1000

    def seconds(read: Callable[[], object]) -> float:
        return min(timeit.repeat(read, number=1, repeat=3))

    assert seconds(lambda: read_rounds(folder)) < 2 * seconds(lambda: [json.loads(line) for line in lines])


def test_what_is_written_is_checked_too():
    with pytest.raises(ValueError, match="pooled"):
        make_round(1, pooled=float("nan"))
    with pytest.raises(ValueError, match="rounds"):
        make_run(rounds=1.5)
    assert isinstance(make_round(7), Round)
