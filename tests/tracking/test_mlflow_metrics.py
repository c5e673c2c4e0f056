import pytest
from playing import play_round, start
from record_factory import make_metrics, make_round, make_run

from hetfl.draws import Draws
from hetfl.methods import METHODS
from hetfl.tracking.mlflow_metrics import WORDS, evaluated, milliseconds, points


def test_diagnostics_of_all_methods_have_names_in_words(toy_engine):
    hooks = ("observe", "compare", "diagnostics")
    found = set()
    for name, method in METHODS.items():
        if not any(hook in vars(method) for hook in hooks):
            continue
        engine, draws = toy_engine(name, "homogeneous", rounds=2), Draws(0)
        state, line = start(engine, draws.at(0))
        for number in (1, 2):
            found |= line.diagnostics.keys() | line.clients.keys()
            state, line = play_round(engine, state, draws.at(number))
        found |= line.diagnostics.keys() | line.clients.keys()
    assert len(found) > 25 and found <= WORDS.keys()


def test_a_variance_is_in_squared_percent_and_an_accuracy_in_percent():
    metrics = make_metrics(window_variance=0.0004, window_pooled=0.5)
    shown = {one.key: one.value for one in evaluated(metrics, 0, 5)}
    assert (shown["last rounds/variance of pooled"], shown["last rounds/pooled"]) == (pytest.approx(4), 50)


def test_a_point_has_the_time_at_which_its_round_ended():
    run = make_run()
    found = points(run, [make_round(number, seconds={"train": 1.5}) for number in (0, 1, 2)])
    assert [point.milliseconds - milliseconds(run.started) for point in found.values()] == [1500, 3000, 4500]
