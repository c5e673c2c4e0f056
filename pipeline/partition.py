"""Stage: share a data set among clients, once per split and seed, for every experiment alike."""

from pathlib import Path

from hetfl.cli import run
from hetfl.data.partitions import make_partition, write_partition
from hetfl.data.store import read_dataset
from hetfl.draws import Draws
from hetfl.errors import unknown
from hetfl.federation.plan import Workspace, load_params
from hetfl.report.figures import partition_heatmap


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    if name not in params.partitions:
        raise unknown("data set", name, params.partitions, "params.yaml: partitions")
    dataset = read_dataset(workspace.dataset(name))
    train, test = dataset.split("train").labels, dataset.split("test").labels
    drawn = [
        (
            split,
            seed,
            settings,
            make_partition(settings, train, test, dataset.num_classes, Draws(seed), where),
        )
        for split, settings in params.partitions[name].splits.items()
        for where in [f"params.yaml: partitions.{name}.splits.{split}"]
        for seed in params.partitions[name].seeds
    ]
    for split, seed, settings, partition in drawn:
        folder = workspace.partition(name, split, seed)
        write_partition(folder, partition, settings, dataset, seed)
        counts = partition.class_counts(train, dataset.num_classes)
        title = f"{dataset.title}, {split}, seed {seed}"
        partition_heatmap(counts, dataset.class_names, title, folder / "heatmap.png")


if __name__ == "__main__":
    run(main)
