"""SURGE in a LightningModule (python examples/with_lightning.py)."""

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import surge
from surge.models import cnn_digits

OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


class BinaryDigits(lightning.LightningModule):
    """A compensated binary network and everything that SURGE needs of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = cnn_digits(width=16)
        print(surge.binarize_(self.model, "recu"))
        self.compensation = surge.compensate_(self.model, eta=0.01)

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        self.compensation.follow(optimizer)  # the scales are renewed after every step
        return optimizer

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:  # noqa: D102
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        return loss + surge.extra_loss(self.model)  # losses of methods: RAD, BONN

    def on_train_epoch_start(self) -> None:  # noqa: D102
        surge.on_epoch(self.model, self.current_epoch, self.trainer.max_epochs)  # ReCU's tau

    def on_train_batch_end(self, *_: object) -> None:  # noqa: D102
        surge.on_step(self.model)  # methods that act on their weights: BNN clamps them


torch.manual_seed(0)
stored = load_digits()
images = torch.tensor(stored.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
labels = torch.tensor(stored.target)
test = torch.arange(len(labels)) % 5 == 0  # every fifth image

digits = BinaryDigits()
start = digits.compensation.scales()
trainer = lightning.Trainer(accelerator="cpu", max_epochs=10, **dict.fromkeys(OFF, False))
train = DataLoader(TensorDataset(images[~test], labels[~test]), batch_size=64, shuffle=True)
trainer.fit(digits, train)

for name, scale in digits.compensation.scales().items():
    print(f"{name}: scale {start[name]:.6f} -> {scale:.6f}")
with torch.no_grad():
    before = digits.eval().model(images[test])
    surge.strip_(digits)
    assert torch.equal(digits.model(images[test]), before), "strip_ must not change a bit"
print(f"accuracy {(before.argmax(1) == labels[test]).float().mean():.1%}")
