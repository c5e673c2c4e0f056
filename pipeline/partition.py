"""Stage: share a data set among clients, once per split and seed, for every experiment alike."""

from pathlib import Path

from hetfl.cli import run
from hetfl.data.partitions import make_partition, write_partition
from hetfl.data.store import read_dataset
from hetfl.draws import Draws
from hetfl.errors import unknown
from hetfl.experiments.plan import Workspace, load_params
from hetfl.figures.grid import PartitionFigure
from hetfl.figures.sources import Sources


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    if name not in params.partitions:
        raise unknown("data set", name, params.partitions, "params.yaml: partitions")
    dataset = read_dataset(workspace.dataset(name))
    drawn = [
        (split, seed, settings, make_partition(settings, dataset, Draws(seed), where))
        for split, settings in params.partitions[name].splits.items()
        for where in [f"params.yaml: partitions.{name}.splits.{split}"]
        for seed in params.partitions[name].seeds
    ]
    for split, seed, settings, partition in drawn:
        folder = workspace.partition(name, split, seed)
        write_partition(folder, partition, settings, dataset, seed)
        # As the papers draw them: a few clients as a heat map, many with test data of their own as bubbles.
        kind = "heat-map" if partition.test is None else "bubbles"
        title = f"{dataset.title}, {split}, seed {seed}"
        panel = {"kind": f"partition-{kind}", "title": title, "dataset": name, "split": split, "seed": seed}
        figure = PartitionFigure(name="samples", title=title, columns=1, panels=[panel])
        figure.write(Sources(workspace, params), folder / "samples")


if __name__ == "__main__":
    run(main)
