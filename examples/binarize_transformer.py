"""A stock transformers model in 1 bit: a tiny BERT learns which of two tokens comes first."""

import torch
from transformers import BertConfig, BertForSequenceClassification

import surge

EPOCHS, BATCH, LENGTH = 5, 64, 12
MARKS = torch.tensor([1, 2])

torch.manual_seed(0)
tokens = torch.randint(3, 32, (2048, LENGTH))
places = torch.rand(len(tokens), LENGTH).argsort(dim=1)[:, :2]
tokens.scatter_(1, places, MARKS.expand(len(tokens), 2))
labels = (places[:, 0] < places[:, 1]).long()  # 1 where mark 1 stands before mark 2
train = torch.arange(512, len(tokens))  # the first 512 sentences are the test set

config = BertConfig(
    vocab_size=32,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=LENGTH,
    hidden_act="tanh",  # a GELU makes -0 of what is far below zero, and the bit of that is +1
)
model = BertForSequenceClassification(config)  # random weights: nothing is downloaded
print(surge.binarize_(model, "bireal", skip="*pooler*"))
compensation = surge.compensate_(model, eta=0.01, auxiliary="copied")
print(compensation)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)  # after compensate_
compensation.follow(optimizer)
start = compensation.scales()

for epoch in range(EPOCHS):
    surge.on_epoch(model, epoch, EPOCHS)
    for batch in train[torch.randperm(len(train))].split(BATCH):
        optimizer.zero_grad()
        loss = model(input_ids=tokens[batch], labels=labels[batch]).loss
        (loss + surge.extra_loss(model)).backward()
        optimizer.step()
        surge.on_step(model)

for name, scale in compensation.scales().items():
    print(f"{name}: scale {start[name]:.6f} -> {scale:.6f}")
with torch.no_grad():
    before = model.eval()(tokens[:512]).logits
    surge.strip_(model)
    assert torch.equal(model(tokens[:512]).logits, before), "strip_ must not change a bit"
print(f"accuracy {(before.argmax(1) == labels[:512]).float().mean():.1%}")
