"""What is known of operators by name: allocations, fills, copies, domains, matrix products, parameters' argument places.

A name is a hint, never a verdict: exclusions look at the values too (``local``), classes at domains (``classify``).
"""

from __future__ import annotations

from numprobe.record.names import OpName


def base(op: OpName) -> str:
    """The API's bare name: in-place underscore, dunders and reflected variants stripped: ``__rsub__`` -> ``sub``."""
    name = op.api.rsplit(".", 1)[-1]
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        name = name[2:-2]
        if name in (
            "iadd",
            "isub",
            "imul",
            "itruediv",
            "radd",
            "rsub",
            "rmul",
            "rtruediv",
            "ipow",
            "rpow",
            "imatmul",
            "rmatmul",
        ):
            name = name[1:]
        return name
    return name.rstrip("_") or name


ALLOCATIONS = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize", "resize_as", "malloc")
)

# Put a given value somewhere: an infinity of that value's sign is what they were asked for
FILLS = frozenset(
    (
        "masked_fill",
        "where",
        "triu",
        "tril",
        "full",
        "full_like",
        "new_full",
        "fill",
        "scatter",
        "scatter_add",
        "index_fill",
        "index_put",
        "masked_scatter",
        "setitem",
        "tensor",
        "as_tensor",
        "new_tensor",
    )
)

# Hand on what they are given, bit for bit
COPIES = frozenset(
    (
        "clone",
        "detach",
        "to",
        "type",
        "cast",
        "type_as",
        "view",
        "view_as",
        "reshape",
        "contiguous",
        "transpose",
        "permute",
        "t",
        "cat",
        "concat",
        "stack",
        "split",
        "chunk",
        "unbind",
        "squeeze",
        "unsqueeze",
        "flatten",
        "expand",
        "expand_as",
        "repeat",
        "getitem",
        "select",
        "narrow",
        "copy",
        "float",
        "half",
        "bfloat16",
        "double",
        "cpu",
        "cuda",
        "npu",
        "pin_memory",
        "alias",
        "as_strided",
        "flip",
        "roll",
        "index_select",
        "gather",
        "pad",
        "npu_dtype_cast",
        "npu_format_cast",
    )
)

SOFTMAX_LIKE = frozenset(
    (
        "softmax",
        "log_softmax",
        "_softmax",
        "scaled_masked_softmax",
        "npu_scaled_masked_softmax",
        "fused_scale_mask_softmax",
    )
)
ATTENTION = ("attention", "flash", "sdpa")

# Matrix products with their contraction: which inputs are (activation, weight) and the axis of the weight to sum over
MATMULS = frozenset(
    (
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "npu_grouped_matmul",
        "grouped_matmul",
        "npu_gmm",
        "gmm",
        "grouped_gemm",
        "npu_linear",
        "npu_batch_matmul",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "dense",
    )
)

# Arguments (by position or keyword) that hold parameters of the model
PARAMETER_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "linear": ("1", "2", "weight", "bias"),
    "embedding": ("1", "weight"),
    "layer_norm": ("2", "3", "weight", "bias"),
    "rms_norm": ("2", "weight"),
    "group_norm": ("2", "3", "weight", "bias"),
    "batch_norm": ("1", "2", "3", "4", "running_mean", "running_var", "weight", "bias"),
    "conv1d": ("1", "2", "weight", "bias"),
    "conv2d": ("1", "2", "weight", "bias"),
    "conv3d": ("1", "2", "weight", "bias"),
    "npu_rms_norm": ("1", "gamma"),
    "npu_linear": ("1", "2", "weight", "bias"),
    "npu_grouped_matmul": ("1", "2", "weight", "bias"),
    "npu_gmm": ("1", "2", "weight", "bias"),
    "grouped_matmul": ("1", "weight"),
    "gmm": ("1", "weight"),
    "prelu": ("1", "weight"),
    "addmm": ("0", "2"),
}

# value range outside of which a function has no finite real value: name -> (low, high, low_open)
LOGS = frozenset(("log", "log2", "log10"))
ROOTS = frozenset(("sqrt", "rsqrt"))
DIVISIONS = frozenset(("div", "truediv", "true_divide", "divide", "reciprocal", "floor_divide", "remainder", "fmod"))
EXPONENTIALS = frozenset(("exp", "exp2", "expm1", "cosh", "sinh"))
POWERS = frozenset(("pow", "float_power"))
UNIT_DOMAIN = frozenset(("acos", "asin", "atanh", "erfinv"))  # |x| <= 1
ABOVE_ONE = frozenset(("acosh",))  # x >= 1
MEANS = frozenset(("mean", "nanmean", "var", "std", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "kl_div"))
LOSSES = ("loss", "cross_entropy", "kl_div")

# Outputs that hold nothing of use: (API, output position)
PLACEHOLDER_OUTPUTS: dict[str, frozenset[int]] = {"npu_fusion_attention": frozenset((4, 5))}

# Record names that only an optimizer step leaves
OPTIMIZER_STEPS = (
    "addcdiv_",
    "lerp_",
    "_fused_adam",
    "_fused_sgd",
    "npu_apply_adam",
    "_foreach_addcdiv",
    "_foreach_lerp",
)

COMMUNICATION_PREFIXES = frozenset(("Distributed", "MintDistributed"))
# compute kernels with a collective inside: a victim shows clean inputs and a dirty output
FUSED_COMMUNICATION = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "mc2",
)


def is_communication(op: OpName) -> bool:
    return op.kind == "api" and op.prefix in COMMUNICATION_PREFIXES


def is_allocation(op: OpName) -> bool:
    name = base(op)
    return op.kind == "api" and (name in ALLOCATIONS or (op.prefix == "NPU" and name.endswith("_empty")))


def is_fill(op: OpName) -> bool:
    name = base(op)
    return op.kind == "api" and (name in FILLS or (op.prefix == "NPU" and name.endswith("_full")))


def is_copy(op: OpName) -> bool:
    return op.kind == "api" and base(op) in COPIES


def is_attention(op: OpName) -> bool:
    name = base(op).lower()
    return any(word in name for word in ATTENTION)


def is_softmax(op: OpName) -> bool:
    return base(op) in SOFTMAX_LIKE or (op.is_module and "softmax" in op.api.lower())


def is_matmul(op: OpName) -> bool:
    name = base(op).lower()
    return name in MATMULS or (op.is_module and "linear" in op.api.lower())


def is_loss(op: OpName) -> bool:
    name = op.api.lower()
    return any(word in name for word in LOSSES)


def is_fused_communication(op: OpName) -> bool:
    name = op.api.lower()
    return not is_communication(op) and any(word in name for word in FUSED_COMMUNICATION)


def is_kernel(op: OpName) -> bool:
    """One operator (an API, or a module that wraps one): a bad output from good inputs is its own fault."""
    if op.kind == "api":
        return not (is_copy(op) or is_fill(op) or is_allocation(op))
    return (
        is_matmul(op) or is_attention(op) or any(w in op.api.lower() for w in ("norm", "embedding", "softmax", "conv"))
    )


def is_parameter_argument(op: OpName, path: str) -> bool:
    """Is ``input_args.1`` or ``input_kwargs.weight`` of this API a parameter by its place?"""
    section, _, rest = path.partition(".")
    if section == "parameters":
        return True
    places = PARAMETER_ARGUMENTS.get(base(op).lower())
    return places is not None and section in ("input_args", "input_kwargs", "input") and rest.split(".")[0] in places
