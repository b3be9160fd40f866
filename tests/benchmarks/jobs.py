# SPDX-License-Identifier: Apache-2.0
"""The training jobs that the benchmarks run: the demo's two and three larger ones.

A plain PyTorch script with fixed seeds: it knows nothing of commensal and runs anywhere.

    python tests/benchmarks/jobs.py gpt --steps 20
    commensal run --opportunistic -- python tests/benchmarks/jobs.py gpt --steps 20
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

from char_transformer import CharTransformer, read_text
from digits_cnn import StoredDigits, batches, load, make_model

SEED = 1
PICTURE = 64  # pixels, both ways

Step = Callable[[], float]  # trains one step and returns its loss


def text_job(model: CharTransformer, optimizer: torch.optim.Optimizer, batch: int) -> Step:
    """Predict each next byte of the standard library's sources."""
    data = torch.frombuffer(bytearray(read_text(4 << 20)), dtype=torch.uint8).long()
    window = torch.arange(65)

    def step() -> float:
        sequences = data[torch.randint(len(data) - len(window), (batch, 1)) + window]
        optimizer.zero_grad()
        logits = model(sequences[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def char_transformer() -> Step:
    """The demo's opportunistic job."""
    model = CharTransformer(224, 4, 4, 64)
    return text_job(model, torch.optim.AdamW(model.parameters(), lr=3e-4), batch=8)


def gpt() -> Step:
    """Six layers, 24.3 million parameters, Adam: most of its memory is weights and their state."""
    model = CharTransformer(576, 6, 9, 64)
    return text_job(model, torch.optim.Adam(model.parameters(), lr=3e-4), batch=2)


def picture_job(
    model: nn.Module, optimizer: torch.optim.Optimizer, source: Iterator[tuple[Tensor, Tensor]]
) -> Step:
    """Tell the classes of pictures."""

    def step() -> float:
        pictures, answers = next(source)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures), answers)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def digits_cnn() -> Step:
    """The demo's guaranteed job, whose storage is fast here: it never waits."""
    images, labels, _, _ = load(PICTURE)
    model = make_model(PICTURE)
    source = batches(StoredDigits(images, labels, 0.0, SEED, torch.device("cpu")), 32, SEED)
    return picture_job(model, torch.optim.Adam(model.parameters(), lr=1e-3), source)


class Residual(nn.Module):
    """Two convolutions with a path around them."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        stride = 1 if channels_in == channels else 2
        self.first = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.around: nn.Module = nn.Identity()
        if stride > 1:
            narrow = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.around = nn.Sequential(narrow, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        inside = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inside)) + self.around(x))


def resnet18() -> Step:
    """11.2 million parameters, SGD with momentum: most of its memory is activations."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels_in = 64
    for channels in (64, 128, 256, 512):
        layers += [Residual(channels_in, channels), Residual(channels, channels)]
        channels_in = channels
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def pictures() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield torch.randn(8, 3, 128, 128), torch.randint(10, (8,))

    return picture_job(model, optimizer, pictures())


class ShiftedDigits(Dataset[Tensor]):
    """Handwritten digits, each shifted and made noisy by numbers that its place determines."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        random = torch.Generator().manual_seed(index)
        shift = torch.randint(-4, 5, (2,), generator=random).tolist()
        image = self.images[index].float().div_(255.0).roll(shift, dims=(1, 2))
        return image.add_(torch.empty_like(image).uniform_(-0.05, 0.05, generator=random))


def loader() -> Step:
    """An autoencoder of 17.9 million parameters, fed by a DataLoader with two workers."""
    pixels = PICTURE * PICTURE
    model = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(pixels, 2048), nn.ReLU(), nn.Linear(2048, 256), nn.ReLU()),
        *(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, pixels)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data: DataLoader[Tensor] = DataLoader(
        ShiftedDigits(load(PICTURE)[0]),
        batch_size=64,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(SEED),
    )

    def for_ever() -> Iterator[Tensor]:
        while True:
            yield from data

    source = for_ever()

    def step() -> float:
        images = next(source)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(images), images.flatten(1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def mlp_tiny() -> Step:
    """Steps of half a millisecond: what commensal costs a step as such."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inputs, answers = torch.randn(32, 64), torch.randint(10, (32,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def same() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield inputs, answers

    return picture_job(model, optimizer, same())


FIVE: dict[str, Callable[[], Step]] = {
    "digits_cnn": digits_cnn,
    "char_transformer": char_transformer,
    "gpt": gpt,
    "resnet18": resnet18,
    "loader": loader,
}
JOBS = {**FIVE, "mlp_tiny": mlp_tiny}


def start(job: str) -> Step:
    """Make a job's model and data, always alike."""
    torch.manual_seed(SEED)
    return JOBS[job]()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--result", type=Path, help="JSON with losses and seconds of each step")
    arguments = parser.parse_args(argv)
    step = start(arguments.job)
    losses, seconds = [], []
    for _ in range(arguments.steps):
        begin = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - begin)
    if arguments.result:
        result = {"losses": [loss.hex() for loss in losses], "seconds": seconds}
        arguments.result.write_text(json.dumps(result))
    print(f"{arguments.job}: {arguments.steps} steps, loss {losses[-1]:.6f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
