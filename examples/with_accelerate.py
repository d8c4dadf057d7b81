"""SURGE with Accelerate, accumulating gradients (python examples/with_accelerate.py)."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import surge
from surge.models import cnn_digits

EPOCHS = 10

torch.manual_seed(0)
stored = load_digits()
images = torch.tensor(stored.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
labels = torch.tensor(stored.target)
test = torch.arange(len(labels)) % 5 == 0  # every fifth image
accelerator = Accelerator(gradient_accumulation_steps=2)

model = cnn_digits(width=16)
accelerator.print(surge.binarize_(model, "recu"))
compensation = surge.compensate_(model, eta=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # after compensate_
compensation.follow(optimizer)  # torch's own optimizer, before prepare wraps it
start = compensation.scales()
loader = DataLoader(TensorDataset(images[~test], labels[~test]), batch_size=32, shuffle=True)
wrapped, stepper, batches = accelerator.prepare(model, optimizer, loader)

for epoch in range(EPOCHS):
    surge.on_epoch(model, epoch, EPOCHS)  # schedules inside the method: ReCU's tau
    for x, target in batches:
        with accelerator.accumulate(wrapped):  # norms add up: one renewal per real step
            loss = F.cross_entropy(wrapped(x), target)
            accelerator.backward(loss + surge.extra_loss(model))  # losses of methods: RAD, BONN
            stepper.step()
            surge.on_step(model)  # methods that act on their weights: BNN clamps them
            stepper.zero_grad()

for name, scale in compensation.scales().items():
    accelerator.print(f"{name}: scale {start[name]:.6f} -> {scale:.6f}")
with torch.no_grad():
    unseen = images[test].to(accelerator.device)
    before = model.eval()(unseen)
    surge.strip_(model)
    assert torch.equal(model(unseen), before), "strip_ must not change a bit"
accelerator.print(f"accuracy {(before.argmax(1).cpu() == labels[test]).float().mean():.1%}")
