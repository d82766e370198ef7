"""How an operator passes relative errors on: the gain of each of its inputs.

With e the relative L2 error of a tensor, the error of an output is expected to be

    E^2 = r_target^2 + r_golden^2 + accumulation^2 + sum over inputs (gain_j e_j)^2

where r = 0.4 u is the rms rounding error of a dtype with unit roundoff u = 2^-p (uniform over a binade) and the accumulation term
is gain sqrt(K) 2^-24 for K products added in fp32 (N. Higham, Accuracy and Stability of Numerical Algorithms, ch. 3 and 4, with
the statistical sqrt in place of K). Gains follow from first derivatives: add: ||x_j|| / ||y||; matrix product: max(1, ||x|| ||w||
/ (sqrt(K) ||y||)), which grows where the sum cancels; mul: 1; softmax: sqrt(2) rms(logits), an absolute error of the logits.
"""

from __future__ import annotations

import enum
from functools import lru_cache

from numprobe.record.names import OpName


class Family(enum.IntEnum):
    """Kinds of operators that pass errors on in the same way."""

    UNKNOWN = 0
    MOVE = 1  # views, copies, casts, selections: e unchanged; tables of constants
    SUM = 2  # add, sub, and sums over an axis
    PRODUCT = 3  # elementwise products, quotients, roots
    MATMUL = 4
    NORM = 5
    ACTIVATION = 6
    SOFTMAX = 7
    ATTENTION = 8
    EXP = 9
    LOSS = 10
    DISCRETE = 11  # top-k, comparisons, sorts, rounding: small errors may flip the result
    RANDOM = 12
    COMMUNICATION = 13
    CREATE = 14  # memory as it is found: empty
    CONTAINER = 15  # a module whose inside is recorded


_WORDS = {
    Family.MOVE: """view reshape transpose permute t squeeze unsqueeze expand expand_as repeat repeat_interleave chunk split
        split_with_sizes cat concat concatenate stack flatten unflatten to float half bfloat16 double type type_as clone
        contiguous gather index_select select narrow index index_put masked_select take take_along_dim embedding embedding_bag
        scatter pad roll flip where masked_fill clamp clamp_min clamp_max maximum minimum max min amax amin relu triu tril
        diagonal
        index_add index_copy copy detach identity unbind movedim swapaxes swapdims broadcast_to getitem setitem fill dropout
        npu_format_cast abs neg hardtanh relu6 zeros ones full zeros_like ones_like full_like arange linspace eye new_zeros
        new_ones new_full tensor as_tensor scalar_tensor max_pool1d max_pool2d max_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d clip fmax fmin threshold""",
    Family.SUM: "add sub rsub sum mean cumsum addcmul addcdiv lerp iadd isub radd add_rmsnorm var std",
    Family.PRODUCT: """mul div truediv true_divide rmul rtruediv imul itruediv pow rpow sqrt rsqrt reciprocal square prod outer
        kron""",
    Family.MATMUL: """linear matmul rmatmul mm bmm addmm baddbmm addbmm mv addmv dot einsum conv1d conv2d conv3d conv_transpose1d
        conv_transpose2d conv_transpose3d tensordot inner chain_matmul npu_grouped_matmul grouped_mm grouped_matmul npu_linear
        npu_quant_matmul bilinear""",
    Family.NORM: """layer_norm rms_norm npu_rms_norm group_norm batch_norm instance_norm local_response_norm normalize norm
        vector_norm npu_add_rms_norm npu_layer_norm_eval""",
    Family.ACTIVATION: """silu gelu tanh sigmoid softplus elu leaky_relu prelu mish hardswish hardsigmoid swiglu npu_swiglu
        fast_gelu selu celu logsigmoid glu sin cos quick_gelu npu_gelu fused_swiglu log1p erf""",
    Family.SOFTMAX: "softmax log_softmax npu_scaled_masked_softmax logsumexp",
    Family.ATTENTION: """scaled_dot_product_attention npu_fusion_attention flash_attn_func flash_attn_varlen_func
        multi_head_attention_forward npu_prompt_flash_attention npu_incre_flash_attention npu_fused_infer_attention_score
        flex_attention unified_attention unified_attention_with_output""",
    Family.EXP: "exp exp2 expm1 log log2 log10 sinh cosh",
    Family.LOSS: """cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss kl_div binary_cross_entropy
        binary_cross_entropy_with_logits huber_loss""",
    Family.DISCRETE: """topk argmax argmin sort argsort msort kthvalue median mode eq ne lt gt le ge bool int long short byte char
        nonzero unique unique_consecutive bincount searchsorted bucketize round floor ceil trunc sign sgn heaviside isnan isinf
        isfinite isclose equal one_hot histc logical_and logical_or logical_not floor_divide remainder fmod histogram
        npu_moe_gating_top_k_softmax npu_moe_gating_top_k""",
    Family.RANDOM: "rand randn randint randperm multinomial bernoulli normal uniform exponential rand_like randn_like poisson",
    Family.CREATE: "empty empty_like new_empty empty_strided new_empty_strided empty_with_format",
}
_FAMILIES = {word: family for family, words in _WORDS.items() for word in words.split()}

_KINKS = """relu relu6 leaky_relu prelu rrelu threshold hardtanh hardsigmoid hardswish hardshrink softshrink selu clamp clamp_min
    clamp_max clip abs absolute maximum minimum fmax fmin max min amax amin cummax cummin aminmax max_pool1d max_pool2d
    max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d l1_loss
    hinge_embedding_loss margin_ranking_loss triplet_margin_loss"""
_KINKED = frozenset(_KINKS.split())  # the derivative jumps, or the gradient goes to an element that was chosen
_KINKED_CLASSES = ("relu", "hardtanh", "hardsigmoid", "hardswish", "threshold", "shrink", "selu", "maxpool", "l1loss")

_MODULES = (  # classes by what their names contain, the first that fits
    ("embedding", Family.MOVE),
    ("dropout", Family.MOVE),
    ("identity", Family.MOVE),
    ("layernorm", Family.NORM),
    ("rmsnorm", Family.NORM),
    ("groupnorm", Family.NORM),
    ("batchnorm", Family.NORM),
    ("linear", Family.MATMUL),
    ("conv1d", Family.MATMUL),
    ("conv2d", Family.MATMUL),
    ("conv3d", Family.MATMUL),
    ("dense", Family.MATMUL),
    ("silu", Family.ACTIVATION),
    ("gelu", Family.ACTIVATION),
    ("swiglu", Family.ACTIVATION),
    ("sigmoid", Family.ACTIVATION),
    ("relu", Family.MOVE),
    ("hardtanh", Family.MOVE),
    ("maxpool", Family.MOVE),
    ("softmax", Family.SOFTMAX),
    ("loss", Family.LOSS),
)

CONSTANT = {  # gain of an input where no figures are needed
    Family.UNKNOWN: 2.0,
    Family.MOVE: 1.0,
    Family.PRODUCT: 1.0,
    Family.NORM: 2.0,
    Family.ACTIVATION: 1.1,
    Family.ATTENTION: 2.0,
    Family.LOSS: 2.0,
    Family.DISCRETE: 1.0,
    Family.RANDOM: 1.0,
    Family.COMMUNICATION: 1.0,
    Family.CREATE: 0.0,
    Family.CONTAINER: 2.0,
}
UNIT_ROUNDOFF_FP32 = 2.0**-24

# positions of weights and biases among the arguments, for dumps that record no modules
PARAMETER_SLOTS = {
    "linear": (1, 2),
    "embedding": (1,),
    "layer_norm": (2, 3),
    "rms_norm": (2,),
    "npu_rms_norm": (1,),
    "group_norm": (2, 3),
    "batch_norm": (3, 4),
    "conv1d": (1, 2),
    "conv2d": (1, 2),
    "conv3d": (1, 2),
    "addmm": (0, 2),
    "prelu": (1,),
}
PARAMETER_NAMES = ("weight", "bias", "gamma", "beta")


def family(op: OpName) -> Family:
    """The family of a record, by the API's name (without underscores around it) or by the module's class."""
    return Family.COMMUNICATION if op.prefix.endswith("Distributed") else _family(op.kind == "api", op.api)


def bends(op: OpName) -> bool:
    """May the gradient jump where an input is all but equal to a bound, to zero or to another element?

    So it does behind relu, clamp, maximum or pooling, and may behind whatever is not known: there an error of rounding sends
    single elements the other way."""
    return _bends(op.kind == "api", op.api)


@lru_cache(maxsize=4096)
def _bends(api: bool, name: str) -> bool:
    if _family(api, name) in (Family.UNKNOWN, Family.DISCRETE):
        return True
    if api:
        return name.rsplit(".", 1)[-1].strip("_").lower() in _KINKED
    return any(part in name.lower() for part in _KINKED_CLASSES)


@lru_cache(maxsize=4096)
def _family(api: bool, name: str) -> Family:
    if api:
        return _FAMILIES.get(name.rsplit(".", 1)[-1].strip("_").lower(), Family.UNKNOWN)
    name = name.lower()
    return next((found for part, found in _MODULES if part in name), Family.UNKNOWN)
