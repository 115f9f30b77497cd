"""Examples of each command, shown in its help. A test parses all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "bench": ("prefeed bench --quick", "prefeed bench --json > bench.json"),
    "clear": ("prefeed clear s3://photos/train", "prefeed clear /mnt/photos val/cat", "prefeed clear --all"),
    "config": ("prefeed config", "prefeed config memory roots", "prefeed config --json"),
    "demo": ("prefeed demo",),
    "doctor": ("prefeed doctor train.py --epochs 1", "prefeed doctor --steps 40 -m package.train"),
    "job apply": ("prefeed job apply -f sync.yaml", "prefeed job apply --detach -f nightly.yaml"),
    "job describe": ("prefeed job describe nightly",),
    "job list": ("prefeed job list", "prefeed job list --json"),
    "job stop": ("prefeed job stop nightly",),
    "kubernetes crds": ("prefeed kubernetes crds | kubectl apply -f -",),
    "kubernetes patch": ("prefeed kubernetes patch job.yaml sampleset.yaml | kubectl apply -f -",),
    "logs": ("prefeed logs", "prefeed logs --home sampleset://imagenet"),
    "mount": (
        "prefeed mount s3://photos /mnt/photos",
        "prefeed mount /nfs/data /mnt/data --writable-below logs=/scratch/logs",
    ),
    "operator run": ("prefeed operator run", "prefeed operator run --namespace team-a"),
    "pack": ("prefeed pack /mnt/photos /mnt/packed --format webdataset",),
    "run": ("prefeed run train.py --epochs 10", "prefeed run --memory 32GiB torchrun --nproc-per-node 8 train.py"),
    "sampleset apply": ("prefeed sampleset apply -f imagenet.yaml --wait",),
    "sampleset delete": ("prefeed sampleset delete imagenet",),
    "sampleset describe": ("prefeed sampleset describe imagenet",),
    "sampleset list": ("prefeed sampleset list", "prefeed sampleset list imagenet --json"),
    "server start": ("prefeed server start --memory 32GiB", "prefeed server start --foreground"),
    "server status": ("prefeed server status", "prefeed server status --json"),
    "server stop": ("prefeed server stop", "prefeed server stop --home sampleset://imagenet"),
    "stage copy": ("prefeed stage /mnt/photos", "prefeed stage copy s3://photos --to /local/ssd --size 200G"),
    "stage delete": ("prefeed stage delete /mnt/photos", "prefeed stage delete --all"),
    "stage list": ("prefeed stage list",),
    "stats": ("prefeed stats", "prefeed stats --json", "prefeed stats --watch"),
    "sync": ("prefeed sync s3://photos /data/photos --dry-run", "prefeed sync /data s3://backup --exclude '*.tmp'"),
    "tune": ("prefeed tune train.py:make_loader", "prefeed tune --budget 120 package.train:make_loader"),
    "umount": ("prefeed umount /mnt/photos",),
    "warm": (
        "prefeed warm s3://photos/train",
        "prefeed warm /mnt/photos val train/cat",
        "prefeed warm s3://photos --file order.txt",
    ),
}
"""Command lines by command, named by its words after ``prefeed``."""
