"""Two ranks call every recorded collective once, by position and by keyword, waited and not. Nothing is wrong.

Deterministic mode fills torch.empty with NaN, so every buffer that is only written to looks dirty before. The sender of the
point-to-point exchanges is late on purpose: what a record shows of a receive is then what it held before the data came.
"""

import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import Run, options
from torch import nn

N = 4


def both() -> list[torch.Tensor]:
    return [torch.empty(N) for _ in range(2)]


def point_to_point(x: torch.Tensor) -> torch.Tensor:
    """Rank 0 sends, late; rank 1 receives, in each way there is."""
    got = []
    for way in ("batch", "send", "isend", "send"):
        time.sleep(0.3 if run.rank == 0 else 0.0)
        if run.rank == 0:
            if way == "batch":
                for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)]):
                    work.wait()
            elif way == "isend":
                dist.isend(x, 1).wait()
            else:
                dist.send(x, 1)
        else:
            buffer = torch.empty(N)
            if way == "batch":
                for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, buffer, 0)]):
                    work.wait()
            elif way == "isend":
                dist.irecv(buffer, 0).wait()
            else:
                dist.recv(buffer, 0)
            got.append(torch.mul(buffer, 1.0))
        x = torch.add(x, 1.0)
    return torch.stack(got).sum() if got else x.sum()


def by_position(x: torch.Tensor) -> None:
    dist.all_reduce(x.clone())
    dist.all_reduce(x.clone(), dist.ReduceOp.AVG)
    dist.all_gather(both(), x)
    dist.all_gather_into_tensor(torch.empty(2 * N), x)
    dist.reduce_scatter(torch.empty(N // 2), [x[: N // 2].clone(), x[N // 2 :].clone()])
    dist.reduce_scatter_tensor(torch.empty(N // 2), x)
    dist.all_to_all_single(torch.empty(N), x)
    dist.all_to_all_single(torch.empty(N + 2 * run.rank), torch.ones(N + 2 * run.rank), splits, splits)
    dist.gather(x, both() if run.rank == 0 else None, 0)
    dist.scatter(torch.empty(N), [x.clone(), x.clone()] if run.rank == 1 else None, 1)
    dist.reduce(x.clone(), 1)
    dist.broadcast(x.clone(), 1)


def by_keyword(x: torch.Tensor) -> None:
    dist.all_reduce(tensor=x.clone(), op=dist.ReduceOp.MAX, group=pair)
    dist.all_gather(tensor_list=both(), tensor=x, group=pair)
    dist.all_gather_into_tensor(output_tensor=torch.empty(2 * N), input_tensor=x, group=pair)
    dist.reduce_scatter(output=torch.empty(N // 2), input_list=[x[: N // 2].clone(), x[N // 2 :].clone()])
    dist.reduce_scatter_tensor(output=torch.empty(N // 2), input=x)
    dist.all_to_all_single(output=torch.empty(N), input=x, group=pair)
    dist.gather(tensor=x, gather_list=both() if run.rank == 0 else None, dst=0)
    dist.scatter(tensor=torch.empty(N), scatter_list=[x.clone(), x.clone()] if run.rank == 1 else None, src=1)
    dist.reduce(tensor=x.clone(), dst=1)
    dist.broadcast(tensor=x.clone(), group_src=1, group=pair)


def asynchronous(x: torch.Tensor) -> None:
    """Every result is used only after its wait; the last one is never waited for inside the step and never used."""
    reduced = x.clone()
    gathered = torch.empty(2 * N)
    scattered = torch.empty(N // 2)
    waiting = [
        dist.all_reduce(reduced, async_op=True),
        dist.all_gather_into_tensor(gathered, x, async_op=True),
        dist.reduce_scatter_tensor(scattered, x, async_op=True),
    ]
    torch.mul(x, 3.0)
    for work in waiting:
        work.wait()
    torch.add(gathered[:N], reduced)
    torch.mul(scattered, 2.0)


def unrecorded(x: torch.Tensor) -> None:
    gathered = torch.empty(2 * N)
    dist.all_gather_single(gathered, x)
    torch.mul(gathered, 2.0)
    torch.mul(functional.all_reduce(x, "sum", dist.group.WORLD), 2.0)
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": run.rank})
    dist.barrier()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(N, N)

    def forward(self, x):
        return self.linear(x)


run = Run(options(), deterministic=True)
splits = [N, 0] if run.rank == 0 else [0, N + 2]
pair = dist.new_group([0, 1])
model = Net()
for _ in run.steps(model):
    x = model(torch.full((N,), float(run.rank + 1))).detach()
    point_to_point(x)
    by_position(x)
    by_keyword(x)
    asynchronous(x)
    unrecorded(x)
    late = dist.all_reduce(x.clone(), async_op=True)
late.wait()
run.close()
