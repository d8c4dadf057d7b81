"""SURGE with the Hugging Face Trainer: hand it the followed optimizer and one callback.

Run: python examples/with_trainer.py
"""

from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from transformers import Trainer, TrainerCallback, TrainingArguments

import surge
from surge.models import cnn_digits

OPTIONS = {"num_train_epochs": 8, "per_device_train_batch_size": 64, "use_cpu": True}
QUIET = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none"}


class SurgeCallback(TrainerCallback):
    """What every loop owes to the methods: ReCU moves its tau, BNN clamps its weights."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: D102
        surge.on_epoch(more["model"], round(state.epoch), int(args.num_train_epochs))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: D102
        surge.on_step(more["model"])


torch.manual_seed(0)
stored = load_digits()
images = torch.tensor(stored.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
labels = torch.tensor(stored.target)
rows = [{"x": image, "labels": label} for image, label in zip(images, labels, strict=True)]

model = cnn_digits(width=16)
print(surge.binarize_(model, "recu"))
compensation = surge.compensate_(model, eta=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # after compensate_
compensation.follow(optimizer)  # the scales are renewed after every step
schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
start = compensation.scales()
with TemporaryDirectory() as folder:
    Trainer(
        model,
        TrainingArguments(folder, **OPTIONS, **QUIET),
        train_dataset=rows[360:],
        optimizers=(optimizer, schedule),
        callbacks=[SurgeCallback()],
        compute_loss_func=lambda logits, labels, **_: F.cross_entropy(logits, labels),
    ).train()

for name, scale in compensation.scales().items():
    print(f"{name}: scale {start[name]:.6f} -> {scale:.6f}")
with torch.no_grad():
    before = model.eval()(images[:360])
    surge.strip_(model)
    assert torch.equal(model(images[:360]), before), "strip_ must not change a bit"
print(f"accuracy {(before.argmax(1) == labels[:360]).float().mean():.1%}")
