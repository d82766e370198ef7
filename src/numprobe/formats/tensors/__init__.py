"""Tensor files without PyTorch: .pt and .pth, .npy, .safetensors.

::

    tensor = open_tensor("dump_tensor_data/Torch.exp.0.forward.output.0.pt")
    tensor.dtype, tensor.shape                  # "bf16", (4096, 4096)
    for block in tensor.blocks():               # flat arrays of up to 2**20 elements, in C order
        ...
    open_tensors("model_optim_rng.pt")          # {"model.embedding.weight": TensorFile, ...}
"""

from numprobe.formats.tensors.folder import TensorFolder
from numprobe.formats.tensors.open import MAX_BYTES, open_tensor, open_tensors
from numprobe.formats.tensors.tensor import BLOCK, Reader, TensorFile

__all__ = ["BLOCK", "MAX_BYTES", "Reader", "TensorFile", "TensorFolder", "open_tensor", "open_tensors"]
