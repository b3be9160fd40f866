# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on scikit-learn's handwritten digits.

A plain PyTorch script with what a real job has: batches that come from storage at a stated rate
and are augmented, evaluations, checkpoints, and a batch that doubles halfway. It knows nothing of
commensal and runs anywhere.

    python examples/digits_cnn.py --steps 160 --double-at 100
    commensal run --guaranteed -- python examples/digits_cnn.py --steps 160 --double-at 100

With `--device cuda` it augments and trains on a GPU, under PyTorch's deterministic settings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class StoredDigits(Dataset[tuple[Tensor, Tensor]]):
    """Handwritten digits behind a storage that delivers `read_rate` bytes a second.

    A batch is read at once: its images are waited for, then augmented, unless a GPU is to do that.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, read_rate: float, seed: int, device: torch.device
    ) -> None:
        self.images = images
        self.labels = labels
        self.read_rate = read_rate
        self.device = device
        self.random = torch.Generator(device).manual_seed(seed)

    def __len__(self) -> int:
        return len(self.images)

    def wait_seconds(self, count: int) -> float:
        """Return how long the storage takes for `count` images."""
        return count * self.images[0].numel() / self.read_rate if self.read_rate else 0.0

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        time.sleep(self.wait_seconds(len(indices)))
        images, labels = self.images[indices], self.labels[indices]
        return (self.augmented(images) if self.device.type == "cpu" else images), labels

    def augmented(self, images: Tensor) -> Tensor:
        """Return images shifted, scaled and made noisy, as floats."""
        images = images.float().div_(255.0)
        shift = torch.randint(-4, 5, (2,), generator=self.random, device=self.device).tolist()
        brightness = torch.empty(len(images), 1, 1, 1, device=self.device)
        brightness.uniform_(0.8, 1.2, generator=self.random)
        noise = torch.empty_like(images).uniform_(-0.05, 0.05, generator=self.random)
        return images.roll(shift, dims=(2, 3)).mul_(brightness).add_(noise)

    def to_device(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Bring a batch to where it is trained on."""
        if self.device.type == "cpu":
            return images, labels
        return self.augmented(images.to(self.device)), labels.to(self.device)


def choose_device(name: str) -> torch.device:
    """Return a device; on a GPU the same run then gives the same bits."""
    device = torch.device(name)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    return device


def as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def batches(dataset: StoredDigits, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches for ever, epoch after epoch."""
    loader = DataLoader(
        dataset,
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        collate_fn=as_it_is,
        generator=torch.Generator().manual_seed(seed),
    )
    while True:
        yield from loader


def read_digits(file: Path | None) -> tuple[Tensor, Tensor]:
    """Return images of 8 x 8 pixels from 0 to 16, and what they show."""
    if file is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return torch.from_numpy(digits.images), torch.from_numpy(digits.target)
    rows = torch.from_numpy(numpy.loadtxt(file, delimiter=","))
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]


def load(size: int, file: Path | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, then test images and labels; uint8, `size` x `size`."""
    pixels, shown = read_digits(file)
    images = pixels.float().unsqueeze(1) / 16.0
    images = functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    images = images.mul(255.0).to(torch.uint8)
    labels = shown.long()
    test = torch.arange(len(images)) % 6 == 0
    return images[~test], labels[~test], images[test], labels[test]


def make_model(size: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (size // 8) ** 2, 10),
    )


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of test images that are recognised."""
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(part.float().div(255.0)).argmax(1) == answers).sum())
            for part, answers in zip(images.split(32), labels.split(32), strict=True)
        )
    model.train()
    return right / len(images)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--double-at", type=int, help="the batch doubles at this step")
    parser.add_argument("--size", type=int, default=64, help="images are enlarged to this, pixels")
    parser.add_argument(
        "--digits", type=Path, help="digits.csv.gz of scikit-learn; default: it is installed"
    )
    parser.add_argument(
        "--read-rate", type=float, default=4.4e6, help="bytes a second of the storage; 0: no wait"
    )
    parser.add_argument("--evaluate-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, help="default: PyTorch's own choice")
    parser.add_argument("--log", type=Path, help="one JSON line a step")
    parser.add_argument("--result", type=Path, help="JSON with the hash of losses and parameters")
    return parser.parse_args(argv)


def write_line(log: TextIO | None, **values: object) -> None:
    if log is not None:
        log.write(json.dumps({"time": time.monotonic(), **values}) + "\n")


def train(arguments: argparse.Namespace, log: TextIO | None, folder: Path) -> dict[str, object]:
    """Train for a fixed number of steps; return the result with its hash."""
    device = choose_device(arguments.device)
    torch.manual_seed(arguments.seed)
    images, labels, *test = load(arguments.size, arguments.digits)
    test_images, test_labels = (part.to(device) for part in test)
    dataset = StoredDigits(images, labels, arguments.read_rate, arguments.seed, device)
    model = make_model(arguments.size).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    digest = hashlib.sha256()
    batch = arguments.batch
    source = batches(dataset, batch, arguments.seed)
    loss_value = float("nan")
    accuracy = 0.0
    write_line(log, event="start", threads=torch.get_num_threads())
    for step in range(arguments.steps):
        if step == arguments.double_at:
            batch *= 2
            source = batches(dataset, batch, arguments.seed + 1)
            write_line(log, event="double", batch=batch)
        begin = time.monotonic()
        inputs, answers = dataset.to_device(*next(source))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), answers)
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        digest.update(loss_value.hex().encode())
        write_line(
            log,
            step=step,
            seconds=time.monotonic() - begin,
            wait_seconds=dataset.wait_seconds(batch),
            loss=loss_value.hex(),
            batch=batch,
        )
        if (step + 1) % arguments.evaluate_every == 0:
            begin = time.monotonic()
            accuracy = evaluate(model, test_images, test_labels)
            seconds = time.monotonic() - begin
            write_line(log, event="evaluation", seconds=seconds, accuracy=accuracy)
        if (step + 1) % arguments.checkpoint_every == 0:
            begin = time.monotonic()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "checkpoint.pt")
            write_line(log, event="checkpoint", seconds=time.monotonic() - begin)
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().numpy().tobytes())
    write_line(log, event="end")
    return {
        "steps": arguments.steps,
        "loss": loss_value,
        "sha256": digest.hexdigest(),
        "accuracy": accuracy,
    }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.log:
            with arguments.log.open("w", buffering=1) as log:
                result = train(arguments, log, Path(folder))
        else:
            result = train(arguments, None, Path(folder))
    if arguments.result:
        arguments.result.write_text(json.dumps(result))
    print(
        f"{result['steps']} steps, loss {result['loss']:.4f}, "
        f"accuracy {result['accuracy']:.1%}, sha256 {result['sha256']}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
