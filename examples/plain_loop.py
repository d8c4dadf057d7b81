"""SURGE in a plain PyTorch loop (python examples/plain_loop.py)."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import surge
from surge.models import cnn_digits

EPOCHS, BATCH = 10, 64

torch.manual_seed(0)
stored = load_digits()
images = torch.tensor(stored.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
labels = torch.tensor(stored.target)
test = torch.arange(len(labels)) % 5 == 0  # every fifth image
train = (~test).nonzero().flatten()

model = cnn_digits(width=16)
print(surge.binarize_(model, "recu"))
compensation = surge.compensate_(model, eta=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # after compensate_
compensation.follow(optimizer)  # the scales are renewed after every optimizer.step()
start = compensation.scales()

for epoch in range(EPOCHS):
    surge.on_epoch(model, epoch, EPOCHS)  # schedules inside the method: ReCU's tau
    for batch in train[torch.randperm(len(train))].split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        (loss + surge.extra_loss(model)).backward()  # losses of methods: BONN, IDa-Det, RAD, RBONN
        optimizer.step()
        surge.on_step(model)  # methods that act on their weights: BNN clamps them

for name, scale in compensation.scales().items():
    print(f"{name}: scale {start[name]:.6f} -> {scale:.6f}")
with torch.no_grad():
    before = model.eval()(images[test])
    surge.strip_(model)  # the auxiliary path has done its work
    assert torch.equal(model(images[test]), before), "strip_ must not change a bit"
print(f"accuracy {(before.argmax(1) == labels[test]).float().mean():.1%}")
