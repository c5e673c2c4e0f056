"""FedAvg against FedHPL on scikit-learn's digits: what accuracy each reaches, and what it sends for it.

In the repository's root, after ``make .venv/.ready``:

    . .venv/bin/activate
    dvc repro partition@digits pretrain-digits      # a minute; done already after `make repro`
    python examples/fedavg_against_fedhpl.py        # half a minute; the second time at once
"""

import numpy as np

import hetfl

SPLIT = "dir"  # five clients; the classes are distributed unevenly

runs = {method: hetfl.run(method, data="digits", split=SPLIT, rounds=4) for method in ("fedavg", "fedhpl")}

for run in runs.values():
    print(f"\n{run.run.title}, accuracy in percent by round and bytes sent")
    print(run.frame()[["round", "accuracy", "lowest", "bytes"]].to_string(index=False, float_format="%.1f"))

fedavg, fedhpl = runs["fedavg"], runs["fedhpl"]
print(
    f"\nFedHPL: {fedhpl.accuracy - fedavg.accuracy:+.1f} points, {fedavg.bytes / fedhpl.bytes:.1f} times fewer bytes"
)

# A run's models classify images: arrays, tensors or PIL images of any size.
images, labels = (np.load(f"data/digits/test-{what}.npy") for what in ("images", "labels"))
said = fedhpl.load().predict(images[:5])
print("images of", labels[:5].tolist(), "are classified as", said.names)
