# SPDX-License-Identifier: Apache-2.0
"""Training loops that are not the user's own: each step is counted, once.

Only where the packages are installed, which are large: `./scripts/soak` installs and runs them.
"""

from __future__ import annotations

import json
import sys

import pytest
from world import COMMENSAL, World

HF_TRAINER = """
import json, sys, torch, commensal
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 4)
    def forward(self, x=None, labels=None):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

class Data(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        return {"x": torch.randn(64), "labels": index % 4}

trainer = Trainer(
    Model(),
    TrainingArguments(
        "out", per_device_train_batch_size=8, num_train_epochs=2, report_to=[], logging_steps=10,
        gradient_accumulation_steps=int(sys.argv[1]), eval_strategy="epoch", save_strategy="epoch",
        disable_tqdm=True, use_cpu=True,
    ),
    train_dataset=Data(), eval_dataset=Data(),
)
trainer.train()
print(json.dumps({"true": trainer.state.global_step, "seen": commensal.stats()["step"]}))
"""

LIGHTNING = """
import json, sys, torch, commensal, lightning
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 4)
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.log("loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

data = TensorDataset(torch.randn(256, 64), torch.randint(0, 4, (256,)))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
    accumulate_grad_batches=int(sys.argv[1]), default_root_dir="out",
)
trainer.fit(Model(), DataLoader(data, 8), DataLoader(data, 8))
print(json.dumps({"true": trainer.global_step, "seen": commensal.stats()["step"]}))
"""

ACCELERATE = """
import json, sys, torch, commensal
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=int(sys.argv[1]))
data = TensorDataset(torch.randn(256, 64), torch.randint(0, 4, (256,)))
model = torch.nn.Linear(64, 4)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters()), DataLoader(data, 8))
steps = 0
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
    with torch.no_grad():
        for x, y in loader:
            model(x)
print(json.dumps({"true": steps, "seen": commensal.stats()["step"]}))
"""


@pytest.mark.soak
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(
    ("package", "script"),
    [("transformers", HF_TRAINER), ("lightning", LIGHTNING), ("accelerate", ACCELERATE)],
)
def test_each_step_of_the_loop_is_counted_once(
    world: World, package: str, script: str, accumulate: int
) -> None:
    pytest.importorskip(package)
    file = world.script(script)
    done = world.run(
        [str(COMMENSAL), "run", "--guaranteed", "--", sys.executable, file, str(accumulate)],
        HF_HUB_OFFLINE="1",
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["true"] == 64 // accumulate
    assert told["seen"]["number"] == told["true"]
    assert told["seen"]["confidence"] > 0.3
