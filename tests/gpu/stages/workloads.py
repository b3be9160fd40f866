# SPDX-License-Identifier: Apache-2.0
"""Training scripts as their users write them; they know nothing of commensal.

    python workloads.py NAME --steps 8 --result FILE [--stand-in]

Each trains on random data from a fixed seed under PyTorch's deterministic settings and writes JSON:
`losses` (hexadecimal, a step each), `seconds` a step, and what the allocator counted.

`--stand-in` is for a driver whose kernels do nothing: the same calls with a model of copies and
element-wise kernels. What it tells as losses are checksums of batches that went to the device,
from there to other memory of it, and back.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WORKLOADS: dict[str, Callable[[argparse.Namespace], list[str]]] = {}


def workload(run: Callable[[argparse.Namespace], list[str]]) -> Callable[..., list[str]]:
    WORKLOADS[run.__name__] = run
    return run


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.short(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Gpt(nn.Module):
    """A decoder of PyTorch's own layers: next-token loss of a batch of tokens."""

    def __init__(self, width: int, layers: int, heads: int, context: int, tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.ModuleList(
            nn.TransformerEncoder(layer, 1, enable_nested_tensor=False) for _ in range(layers)
        )
        self.head = nn.Linear(width, tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask)

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.positions.weight[: text.shape[1]]
        for layer in self.layers:
            x = layer(x, mask=self.mask)
        return functional.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class StandIn(nn.Module):
    """Parameters, activations and gradients without a matrix product."""

    def __init__(self, width: int = 1 << 16, layers: int = 6) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = functional.relu(x * weight + x)
        return x.sum()


def there_and_back(batch: Tensor) -> str:
    """Return a checksum of a batch after it was copied to other memory of the device and back."""
    return hashlib.sha256(batch.clone().cpu().numpy().tobytes()).hexdigest()


def images(count: int, side: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, side, side), torch.randint(1000, (count,))


def stand_in_batches(arguments: argparse.Namespace) -> Iterator[Tensor]:
    for _ in range(arguments.steps):
        yield torch.randn(8, 1 << 16)


class Clock:
    """Seconds of each step, the device's work included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - begin)


CLOCK = Clock()


def train_stand_in(arguments: argparse.Namespace, model: nn.Module) -> list[str]:
    """Train a stand-in for a model; return checksums of what it was fed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    told = []
    for batch in stand_in_batches(arguments):
        with CLOCK.step():
            x = batch.cuda()
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
            told.append(there_and_back(x))
    return told


def train(
    arguments: argparse.Namespace,
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[str]:
    """Train for the steps that were asked for; return the losses."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(arguments.steps):
        with CLOCK.step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of()
            loss.backward()
            optimizer.step()
        losses.append(loss.item().hex())
    return losses


@workload
def resnet(arguments: argparse.Namespace) -> list[str]:
    """ResNet-50 with SGD, channels last, bf16."""
    if arguments.stand_in:
        return train_stand_in(arguments, StandIn().cuda())
    model = resnet50().cuda().to(memory_format=torch.channels_last)
    x, y = (part.cuda() for part in images(32, 224))
    x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return train(
        arguments, model, lambda: functional.cross_entropy(model(x), y), optimizer=optimizer
    )


def small_gpt() -> tuple[nn.Module, Tensor]:
    return Gpt(512, 6, 8, 256, 8192).cuda(), torch.randint(8192, (16, 256)).cuda()


@workload
def gpt_compiled(arguments: argparse.Namespace) -> list[str]:
    """A GPT under `torch.compile`."""
    if arguments.stand_in:
        return train_stand_in(arguments, torch.compile(StandIn().cuda()))
    model, text = small_gpt()
    compiled = torch.compile(model)
    return train(arguments, model, lambda: compiled(text))


@workload
def gpt_graphs(arguments: argparse.Namespace) -> list[str]:
    """A GPT under `torch.compile(mode="reduce-overhead")`: graph trees."""
    if arguments.stand_in:
        return train_stand_in(arguments, torch.compile(StandIn().cuda(), mode="reduce-overhead"))
    model, text = small_gpt()
    compiled = torch.compile(model, mode="reduce-overhead")
    return train(arguments, model, lambda: compiled(text))


@workload
def ddp(arguments: argparse.Namespace) -> list[str]:
    """Data-parallel training of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo" if arguments.stand_in else "nccl",
            init_method=f"file://{folder}/rendezvous",
            rank=0,
            world_size=1,
        )
        if arguments.stand_in:  # a library of collectives brings kernels of its own
            told = train_stand_in(arguments, StandIn().cuda())
        else:
            model, text = small_gpt()
            parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0])
            told = train(arguments, model, lambda: parallel(text))
        torch.distributed.destroy_process_group()
    return told


@workload
def loader(arguments: argparse.Namespace) -> list[str]:
    """Batches from worker processes through pinned memory."""
    if arguments.stand_in:
        model: nn.Module = StandIn().cuda()
        data = TensorDataset(torch.randn(8 * arguments.steps, 1 << 16))
    else:
        model = resnet50().cuda()
        data = TensorDataset(*images(16 * arguments.steps, 128))
    size = 8 if arguments.stand_in else 16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = []
    for batch in DataLoader(data, batch_size=size, num_workers=2, pin_memory=True):
        with CLOCK.step():
            x, *answers = (part.cuda(non_blocking=True) for part in batch)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), answers[0]) if answers else model(x)
            loss.backward()
            optimizer.step()
            told.append(loss.item().hex() if answers else there_and_back(x))
    return told


@workload
def trainer(arguments: argparse.Namespace) -> list[str]:
    """A GPT-2 of the transformers library under its Trainer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers  # the one of the machine

    class Timed(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.timer = CLOCK.step()
            self.timer.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.timer.__exit__(None, None, None)

    model: nn.Module
    if arguments.stand_in:
        model = WithLoss()
        rows = [{"x": torch.randn(1 << 16)} for _ in range(8 * arguments.steps)]
    else:
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=8192, n_positions=256, n_embd=512, n_layer=6, n_head=8
            )
        )
        texts = [torch.randint(8192, (256,)) for _ in range(8 * arguments.steps)]
        rows = [{"input_ids": text, "labels": text} for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=arguments.steps,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            full_determinism=not arguments.stand_in,
        )
        made = transformers.Trainer(
            model=model, args=settings, train_dataset=rows, callbacks=[Timed()]
        )
        made.train()
    if arguments.stand_in:
        return model.seen
    return [float(row["loss"]).hex() for row in made.state.log_history if "loss" in row]


class WithLoss(StandIn):
    """What a trainer of the transformers library wants: a model that names its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.seen.append(there_and_back(x))
        return {"loss": super().forward(x)}


@workload
def lightning(arguments: argparse.Namespace) -> list[str]:
    """A model under Lightning's Trainer."""
    import lightning as pl  # the one of the machine

    losses: list[str] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = StandIn() if arguments.stand_in else resnet50()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            if arguments.stand_in:
                losses.append(there_and_back(batch[0]))
                return self.model(batch[0])
            loss = functional.cross_entropy(self.model(batch[0]), batch[1])
            losses.append(loss.item().hex())
            return loss

        def on_train_batch_start(self, *_: Any) -> None:
            self.timer = CLOCK.step()
            self.timer.__enter__()

        def on_train_batch_end(self, *_: Any) -> None:
            self.timer.__exit__(None, None, None)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    if arguments.stand_in:
        data = TensorDataset(torch.randn(8 * arguments.steps, 1 << 16))
    else:
        data = TensorDataset(*images(8 * arguments.steps, 128))
    runner = pl.Trainer(
        accelerator="cuda",
        devices=1,
        max_epochs=1,
        deterministic=not arguments.stand_in,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    runner.fit(Module(), DataLoader(data, batch_size=8))
    return losses


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted(WORKLOADS))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--stand-in", action="store_true")
    arguments = parser.parse_args(argv)
    torch.manual_seed(1)
    if not arguments.stand_in:
        torch.use_deterministic_algorithms(True)
        # Cross attention kernels add gradients in any order; this one is exact and everywhere.
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    losses = WORKLOADS[arguments.name](arguments)
    torch.cuda.synchronize()
    gc.collect()  # what is alive is what somebody refers to, whenever Python last looked
    stats = torch.cuda.memory_stats()
    told = {
        "losses": losses,
        "seconds": CLOCK.seconds,
        "allocated_peak_bytes": stats["allocated_bytes.all.peak"],
        "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
        "allocations": stats["allocation.all.allocated"],
        "live": stats["allocation.all.current"],
    }
    arguments.result.write_text(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
