"""Ultralytics trains a small detector from its description: ``python yolo.py DATA OUT``."""

import sys
from pathlib import Path
from typing import Any

import torch
from seen import Seen
from ultralytics import YOLO


def main(data: str, out: str) -> None:
    seen = Seen(out)
    Path(out).mkdir(parents=True, exist_ok=True)
    description = Path(out, "data.yaml")
    description.write_text(f"path: {data}\ntrain: images/train\nval: images/val\nnames: {{0: bright, 1: dark}}\n")
    model = YOLO("yolov8n.yaml", verbose=False)

    def watch(trainer: Any) -> None:
        seen.loss(trainer.loss.sum())
        seen.batch(trainer.loss_items)

    def keep(trainer: Any) -> None:
        weights.update(trainer.model.state_dict())

    weights: dict[str, torch.Tensor] = {}
    model.add_callback("on_train_batch_end", watch)
    model.add_callback("on_train_end", keep)
    model.train(
        data=str(description), epochs=2, imgsz=32, batch=8, workers=2, device="cpu", plots=False, seed=0,
        deterministic=True, project=out, name="run", verbose=False, amp=False, exist_ok=True,
    )  # fmt: skip
    seen.save(weights)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
