"""float16 autocast with torch's GradScaler on two ranks. Nothing is wrong.

The first scale, 2**16, is too large: the scaled gradient of the logits overflows, the scaler skips the update and halves the
scale until it fits. The loss is summed over the tokens, so the first gradients are near the scale itself.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN, VOCABULARY = 16, 32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.down(F.gelu(self.up(x))))


run = Run(options())
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
for step in run.steps(model):
    ids = run.tokens(step, 2, 9, VOCABULARY)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1), reduction="sum") / 3
    scaler.scale(loss).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(run.rank, step, loss.item(), scaler.get_scale())
run.close()
