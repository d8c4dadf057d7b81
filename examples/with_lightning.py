"""SURGE in a LightningModule: the optimizer is followed where it is made, two hooks do the rest.

Run: python examples/with_lightning.py
"""

import logging

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import surge
from surge.models import cnn_digits

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class BinaryDigits(lightning.LightningModule):
    """A compensated binary network and everything that SURGE needs of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = cnn_digits(width=16)
        print(surge.binarize_(self.model, "recu"))
        self.compensation = surge.compensate_(self.model, eta=0.01)

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        self.compensation.follow(optimizer)  # the scales are renewed after every step
        return optimizer

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:  # noqa: D102
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def on_train_epoch_start(self) -> None:  # noqa: D102
        surge.on_epoch(self.model, self.current_epoch, self.trainer.max_epochs)  # ReCU's tau

    def on_train_batch_end(self, *_: object) -> None:  # noqa: D102
        surge.on_step(self.model)  # methods that act on their weights: BNN clamps them


logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
torch.manual_seed(0)
stored = load_digits()
images = torch.tensor(stored.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
labels = torch.tensor(stored.target)

digits = BinaryDigits()
start = digits.compensation.scales()
trainer = lightning.Trainer(accelerator="cpu", max_epochs=8, enable_model_summary=False, **QUIET)
train = TensorDataset(images[360:], labels[360:])
trainer.fit(digits, DataLoader(train, batch_size=64, shuffle=True))

for name, scale in digits.compensation.scales().items():
    print(f"{name}: scale {start[name]:.6f} -> {scale:.6f}")
with torch.no_grad():
    before = digits.eval().model(images[:360])
    surge.strip_(digits)
    assert torch.equal(digits.model(images[:360]), before), "strip_ must not change a bit"
print(f"accuracy {(before.argmax(1) == labels[:360]).float().mean():.1%}")
