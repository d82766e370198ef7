"""Four experts on four ranks, tokens sent by all_to_all_single with uneven splits; hash routing by token id and layer.

Expert 3 of layer 0 takes log(x[:, 0] + 4). Token 31 has embedding -5 in that place, and only rank 1's batch holds it: the
combine gives the NaN back to rank 1 alone. Layer 1 carries it to another expert, the gradient all_reduce to everyone.
No token of layer 0 goes to expert 2: it computes on an empty batch.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Run, options
from torch import nn

HIDDEN, VOCABULARY, TOKENS = 16, 32, 12


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, output_splits, input_splits):
        ctx.splits = input_splits, output_splits
        out = torch.empty(sum(output_splits), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), output_splits, input_splits, group=experts)
        return out

    @staticmethod
    def backward(ctx, grad):
        output_splits, input_splits = ctx.splits
        out = torch.empty(sum(output_splits), *grad.shape[1:])
        dist.all_to_all_single(
            out,
            grad.contiguous(),
            output_split_sizes=output_splits,
            input_split_sizes=input_splits,
            group=experts,
        )
        return out, None, None


class Expert(nn.Module):
    def __init__(self, has_log: bool) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, HIDDEN)
        self.down = nn.Linear(HIDDEN, HIDDEN)
        self.has_log = has_log

    def forward(self, x):
        h = self.down(F.silu(self.up(x)))
        return h * torch.log(x[:, :1] + 4.0) if self.has_log else h


class MoE(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.expert = Expert(has_log=layer == 0 and run.rank == 3)

    def forward(self, x, ids):
        route = (ids + self.layer) % run.world
        order = torch.argsort(route, stable=True)
        sent = torch.bincount(route, minlength=run.world)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=experts)
        sent, received = sent.tolist(), received.tolist()
        inside = AllToAll.apply(x[order], received, sent)
        back = AllToAll.apply(self.expert(inside), sent, received)
        return x + torch.zeros_like(x).index_copy(0, order, back)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([MoE(0), MoE(1)])
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, ids)
        return self.head(x)


run = Run(options())
experts = dist.new_group(list(range(run.world)))
torch.manual_seed(run.rank)
model = Net()
with torch.no_grad():
    model.embed.weight.copy_(torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(5)).clamp(-3, 3))
    model.embed.weight[31, 0] = -5.0
    model.head.weight.copy_(torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(6)) * 0.1)
for step in run.steps(model):
    ids = run.tokens(step, 1, TOKENS, VOCABULARY - 1).flatten()
    ids = torch.where(ids % 4 == 2, ids - 1, ids)
    if run.rank == 1:
        ids[5] = 31
    loss = F.cross_entropy(model(ids), (ids + 1) % VOCABULARY)
    loss.backward()
    for parameter in (model.embed.weight, model.head.weight):
        dist.all_reduce(parameter.grad)
    print(run.rank, step, loss.item())
run.close()
