from playing import play_round, start

from hetfl.draws import Draws
from hetfl.methods import METHODS
from hetfl.tracking.mlflow_metrics import WORDS


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
