"""SURGE with the Hugging Face Trainer (python examples/with_trainer.py)."""

from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from transformers import Trainer, TrainerCallback, TrainingArguments

import surge
from surge.models import cnn_digits

OPTIONS = {"num_train_epochs": 10, "per_device_train_batch_size": 64, "use_cpu": True}
QUIET = {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}


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
test = torch.arange(len(labels)) % 5 == 0  # every fifth image
train = [{"x": images[i], "labels": labels[i]} for i in (~test).nonzero().flatten()]

model = cnn_digits(width=16)
print(surge.binarize_(model, "recu"))
compensation = surge.compensate_(model, eta=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # after compensate_
compensation.follow(optimizer)  # the scales are renewed after every step
schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
start = compensation.scales()
with TemporaryDirectory() as folder:
    Trainer(
        model,
        TrainingArguments(folder, label_names=["labels"], **OPTIONS, **QUIET),
        train_dataset=train,
        optimizers=(optimizer, schedule),
        callbacks=[SurgeCallback()],
        compute_loss_func=lambda y, t, **_: F.cross_entropy(y, t) + surge.extra_loss(model),
    ).train()

for name, scale in compensation.scales().items():
    print(f"{name}: scale {start[name]:.6f} -> {scale:.6f}")
with torch.no_grad():
    before = model.eval()(images[test])
    surge.strip_(model)
    assert torch.equal(model(images[test]), before), "strip_ must not change a bit"
print(f"accuracy {(before.argmax(1) == labels[test]).float().mean():.1%}")
