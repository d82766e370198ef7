"""One process, no process group, two steps: the first is clean; in the second the loader delivers a token mask without a token.

The loss is a sum over the kept tokens divided by their number: 0 / 0.
"""

import torch
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN, VOCABULARY = 16, 32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.norm = nn.RMSNorm(HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.mlp(self.norm(x)))


run = Run(options())
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in run.steps(model):
    ids = run.tokens(step, 2, 9, VOCABULARY)
    keep = torch.full((16,), 0.0 if step == 1 else 1.0)
    losses = F.cross_entropy(model(ids[:, :-1]).reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1), reduction="none")
    loss = torch.sum(losses * keep) / torch.sum(keep)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
run.close()
