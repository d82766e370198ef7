"""Three micro-batches of a small GPT of Megatron-Core, on one CPU: ``megatron_gpt.py DUMP [--ddp]``.

Prints, as its last line, the norm of the gradient of one weight after each micro-batch. Megatron asks for CUDA in a few places;
these are answered with the host.
"""

import contextlib
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(0)


class NoStream:
    def wait_stream(self, *_):
        pass


def on_host(make):
    def made(*args, **kwargs):
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return make(*args, **kwargs)

    return made


for name in ("zeros", "tensor", "empty", "ones"):
    setattr(torch, name, on_host(getattr(torch, name)))
torch.cuda.current_device = lambda: "cpu"
torch.cuda.Stream = torch.cuda.current_stream = lambda *_, **__: NoStream()
torch.cuda.stream = lambda *_: contextlib.nullcontext()
dist.init_process_group("gloo", init_method=f"file://{Path(sys.argv[1]).resolve()}.store", rank=0, world_size=1)

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

tensor_parallel.random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
parallel_state.initialize_model_parallel(1, 1)
config = TransformerConfig(
    num_layers=1,
    hidden_size=16,
    num_attention_heads=2,
    ffn_hidden_size=32,
    use_cpu_initialization=True,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    bias_activation_fusion=False,
    gradient_accumulation_fusion=False,
    masked_softmax_fusion=False,
    persist_layer_norm=False,
    bias_dropout_fusion=False,
    apply_rope_fusion=False,
    normalization="RMSNorm",
    add_bias_linear=False,
)
model = GPTModel(
    config=config,
    transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
    vocab_size=32,
    max_sequence_length=8,
    share_embeddings_and_output_weights=False,
)
weight = model.decoder.layers[0].self_attention.linear_qkv.weight
if "--ddp" in sys.argv:
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)

from numprobe.pytorch import PrecisionDebugger  # noqa: E402

mask = torch.ones(1, 1, 8, 8).triu(1).bool()
data = torch.randint(0, 32, (3, 1, 8), generator=torch.Generator().manual_seed(1))
norms = []


def norm():
    gradient = weight.main_grad if hasattr(weight, "main_grad") else weight.grad
    return 0.0 if gradient is None else gradient.double().norm().item()


def step(data, model):
    norms.append(norm())  # of the micro-batches before this one
    ids = next(data)
    return model(ids, torch.arange(8)[None], mask, labels=ids), lambda loss: (loss.mean(), {})


with PrecisionDebugger(dump_path=sys.argv[1], level="mix") as debugger:
    debugger.start(model=model)
    run = get_forward_backward_func()
    run(
        forward_step_func=step,
        data_iterator=iter(data),
        model=[model],
        num_microbatches=3,
        seq_length=8,
        micro_batch_size=1,
        forward_only=False,
    )
    debugger.stop()
    debugger.step()
print(json.dumps([*norms[1:], norm()]))
dist.destroy_process_group()
