"""The layers of the simulated model: a mixture-of-experts transformer, with the look-alikes of faults that real ones have.

In full detail every module and API leaves its records. The lean model keeps to the operators that the large case of the
specification names: no inner modules but MoELayer, experts in every third layer, residuals in place (which costs the
collector the backward records of what they change), the router's gradient stopped.
"""

from __future__ import annotations

from numprobe.synth.nan import rules
from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.records import Item, Var, scalar
from numprobe.synth.nan.stage import Stage

_LOCAL_EXPERTS = 2
_MINUS_INFINITY = scalar("float", float("-inf"))


def layer(st: Stage, index: int, x: Var) -> Var:
    """One transformer layer: attention, then experts."""
    st.b.layer = index
    path = f"{st.layers_path}.{index}"
    if st.full:
        with st.b.module(path, "TransformerLayer", [x]) as m:
            y = _full_layer(st, path, m.inner[0])
            m.outputs = [y]
    else:
        y = _lean_layer(st, path, x)
    st.b.layer = -1
    return y


def _full_layer(st: Stage, path: str, x: Var) -> Var:
    x = _extras(st, x)
    if st.settings.mask_first:
        masks(st)
    y = norm(st, "norm1", f"{path}.input_layernorm", x)
    y = _attention_block(st, path, y)
    if not st.settings.mask_first:
        masks(st)
    if st.variant.division:
        _harmless_division(st)
    x = st.b.call("residual1", [x, y])
    y = norm(st, "norm2", f"{path}.pre_mlp_layernorm", x)
    y = _moe(st, path, y)
    return st.b.call("residual2", [x, y])


def _lean_layer(st: Stage, path: str, x: Var) -> Var:
    x = _extras(st, x)
    b, h = st.b, st.size.hidden
    y = norm(st, "norm1", f"{path}.input_layernorm", x)
    w = st.weight(f"{path}.qkv", (h, h), 0.02, "tp")
    y = linear(st, "qkv", st.copy_to_tensor_parallel(y), w)
    y = st.reduce_from_tensor_parallel("proj_reduce", y)
    args: list[Item] = [y, scalar("int", 4), scalar("str", "SBH")]
    y = b.call("attention", [y], operator="attention_lean", args=args, outs=lambda y: [y, "null", "null"], width=h)
    if st.variant.division and b.layer == 0:
        _harmless_division(st)
    y = _moe(st, path, y) if b.layer in st.size.expert_layers else _dense(st, path, y)
    return b.call("residual2", [x, y], operator="residual_in_place")


def _dense(st: Stage, path: str, x: Var) -> Var:
    """A feed-forward block without experts, replicated in the tensor-parallel group."""
    h, ffn = st.size.hidden, st.size.ffn
    y = linear(st, "fc1", x, st.weight(f"{path}.fc1", (2 * ffn, h), 0.021))
    y = st.b.call("swiglu", [y], kwargs={"dim": scalar("int", -1)})
    return linear(st, "fc2", y, st.weight(f"{path}.fc2", (h, ffn), 0.021))


def linear(st: Stage, role: str, x: Var, w: Var) -> Var:
    return st.b.call(role, [x, w], args=[x, w, "null"])


def norm(st: Stage, role: str, path: str, x: Var) -> Var:
    """Layer or RMS norm with a weight near one; a module of its own in full detail."""
    h = st.size.hidden
    w = st.weight(f"{path}.weight", (h,), 0.02, offset=1.0)
    eps = scalar("float", 1e-5)

    def call(x: Var) -> Var:
        if st.settings.norm == "npu_rms_norm" and st.full:
            return st.b.call(role, [x, w], operator="npu_rms_norm", kwargs={"epsilon": eps})
        shape: list[Item] = [scalar("int", h)]
        return st.b.call(
            role, [x, w], operator="layer_norm" if st.full else "norm_lean", args=[x, shape, w, "null", eps]
        )

    if not st.full:
        return call(x)
    with st.b.module(path, "FusedLayerNorm", [x], {"weight": w}) as m:
        y = call(m.inner[0])
        m.outputs = [y]
    return y


def _attention_block(st: Stage, path: str, x: Var) -> Var:
    b, h = st.b, st.size.hidden
    part = h // st.size.tp
    path = f"{path}.self_attention"
    with b.module(path, "SelfAttention", [x]) as outer:
        w = st.weight(f"{path.removesuffix('.self_attention')}.qkv", (3 * part, h), 0.03, "tp")
        with b.module(f"{path}.linear_qkv", "ColumnParallelLinear", outer.inner, {"weight": w}) as m:
            y = linear(st, "qkv", st.copy_to_tensor_parallel(m.inner[0]), w)
            m.outputs = [y]
        with b.module(f"{path}.core_attention", "DotProductAttention", [y]) as m:
            y = _attention(st, m.inner[0], part)
            m.outputs = [y]
        w = st.weight(f"{path}.proj", (h, part), 0.03, "tp")
        with b.module(f"{path}.linear_proj", "RowParallelLinear", [y], {"weight": w}) as m:
            y = linear(st, "proj", m.inner[0], w)
            y = st.reduce_from_tensor_parallel("proj_reduce", y)
            m.outputs = [y]
        outer.outputs = [y]
    return y


def _attention(st: Stage, qkv: Var, width: int) -> Var:
    b, seq = st.b, st.size.seq
    split: list[Item] = [qkv, scalar("int", 3)]
    # the record shows q, k and v; the three are views of one buffer, which is what the rule takes
    q = b.call("chunk", [qkv], args=split, kwargs={"dim": scalar("int", -1)}, shape=(seq, 1, width))
    mask = b.compute("causal", rules.made, [], make=lambda key: T.boolean((seq, seq), key))
    maxima = b.compute("softmax_max", rules.log_sum, [q])
    kwargs: dict[str, Item] = {"atten_mask": mask, "scale": scalar("float", 0.125), "keep_prob": scalar("float", 1.0)}
    args: list[Item] = [q, q, q, scalar("int", 4), scalar("str", "SBH")]
    masked: list[Item] = ["null", "null", "null", "null"]
    return b.call("attention", [q], args=args, kwargs=kwargs, outs=lambda y: [y, maxima, maxima, *masked], width=width)


# -- mixture of experts


def _moe(st: Stage, path: str, x: Var) -> Var:
    b = st.b
    with b.module(f"{path}.mlp", "MoELayer", [x]) as m:
        tokens = b.call("flatten", m.inner)
        probs = _router(st, path, tokens)
        # permuting the tokens is index arithmetic that no collector sees; what the router made of NaN goes along
        y = b.call("permute", [tokens, probs])
        here = (b.micro_batch, b.layer)
        if st.variant.unwritten or st.variant.uses_unwritten == here:
            y = _unwritten_buffer(st, y, used=st.variant.uses_unwritten == here)
        y = st.all_to_all("dispatch", y, dispatch=True)
        y = _experts(st, path, y)
        y = st.all_to_all("combine", y, dispatch=False)
        if st.full:
            y = b.call("weigh", [y, probs])
        y = b.call("unflatten", [y], shape=st.hidden_shape)
        m.outputs = [y]
    return y


def _router(st: Stage, path: str, tokens: Var) -> Var:
    b, seq = st.b, st.size.seq
    experts = max(8, st.size.ep)
    w = st.weight(f"{path}.router", (experts, st.size.hidden), 0.05)

    def call(x: Var) -> Var:
        logits = linear(st, "router", x, w)
        closed = b.compute("closed", rules.made, [], make=lambda key: T.boolean((seq, experts), key))
        finite = st.settings.masks == "finite"
        fill = scalar("float", -T.LIMIT[st.dtype]) if finite else _MINUS_INFINITY
        masked = b.call("router_mask", [logits, closed], args=[logits, closed, fill], finite=finite)
        index = b.compute("top_index", rules.made, [], make=lambda key: T.integers((seq, 2), 0, experts - 1, key))
        kwargs: dict[str, Item] = {"k": scalar("int", 2), "dim": scalar("int", 1)}
        top = b.call("router_topk", [masked], kwargs=kwargs, outs=lambda y: [y, index])
        return b.call("router_softmax", [top], kwargs={"dim": scalar("int", -1)})

    if not st.full:
        probs = call(tokens)
        probs.grad = False
        return probs
    with b.module(f"{path}.mlp.router", "TopKRouter", [tokens], {"weight": w}) as m:
        probs = call(m.inner[0])
        m.outputs = [probs]
    return probs


def _experts(st: Stage, path: str, x: Var) -> Var:
    b, s = st.b, st.size
    w1 = st.weight(f"{path}.w1", (_LOCAL_EXPERTS, s.hidden, 2 * s.ffn), 0.021, "ep")
    w2 = st.weight(f"{path}.w2", (_LOCAL_EXPERTS, s.ffn, s.hidden), 0.021, "ep")
    counts = b.compute("expert_rows", rules.group_sizes, [x], groups=_LOCAL_EXPERTS)

    def grouped(role: str, x: Var, w: Var) -> Var:
        # rows of x by expert: counts (group_list_type 1), not their running sum (0)
        kwargs: dict[str, Item] = {"group_list": counts, "split_item": scalar("int", 3)}
        kwargs |= {"group_type": scalar("int", 0), "group_list_type": scalar("int", 1)}
        return b.call(role, [x, w], operator=role if st.full else "grouped_lean", args=[[x], [w]], kwargs=kwargs)

    def call(x: Var) -> Var:
        y = grouped("gmm1", x, w1)
        y = b.call("swiglu", [y], kwargs={"dim": scalar("int", -1)})
        return grouped("gmm2", y, w2)

    if not st.full:
        return call(x)
    with b.module(f"{path}.mlp.experts", "GroupedMLP", [x], {"weight1": w1, "weight2": w2}) as m:
        y = call(m.inner[0])
        m.outputs = [y]
    return y


# -- look-alikes of faults


def masks(st: Stage) -> None:
    """Attention masks: -inf from full, triu and masked_fill, absorbed by softmax; and the dtype's most negative number."""
    b, kind = st.b, st.settings.masks
    length = min(st.size.seq, 64)
    square = (length, length)
    hides = b.compute("padding", rules.made, [], make=lambda key: T.boolean(square, key))
    if kind in ("inf", "both"):
        shape: list[Item] = [scalar("int", length), scalar("int", length)]
        dtype = '{\n     "type": "torch.dtype",\n     "value": "torch.float32"\n    }'
        full = b.call(
            "mask_full", [], args=[shape, _MINUS_INFINITY], kwargs={"dtype": dtype},
            make=lambda key: T.constant("fp32", square, float("-inf"), key),
        )  # fmt: skip
        b.call("mask_triu", [full], kwargs={"diagonal": scalar("int", 1)}, dtype="fp32", shape=square)
        if st.full:
            bias = b.compute("bias", rules.made, [], make=lambda key: T.finite("fp32", square, 0.3, key))
            filled = b.call("mask_scores", [bias, hides], args=[bias, hides, _MINUS_INFINITY])
            b.call("mask_softmax", [filled], kwargs={"dim": scalar("int", -1)})
    if kind in ("finite", "both"):
        zeros = b.compute("zeros", rules.made, [], make=lambda key: T.constant("fp32", square, 0.0, key))
        b.call("mask_minimum", [zeros, hides], args=[zeros, hides, scalar("float", -T.LIMIT["fp32"])])


def _harmless_division(st: Stage) -> None:
    """Tokens routed to an expert over its capacity, which may be zero; the infinite ratios are discarded at once."""
    b, shape = st.b, (8,)
    routed = b.compute("routed", rules.made, [], make=lambda key: T.finite("fp32", shape, 3.0, key))
    capacity = b.compute(
        "capacity", rules.made, [], make=lambda key: T.with_zero(T.finite("fp32", shape, 2.0, key, 4.0))
    )
    zeros = b.compute("no_ratio", rules.made, [], make=lambda key: T.constant("fp32", shape, 0.0, key))
    used = b.compute("used", rules.made, [], make=lambda key: T.boolean(shape, key))
    ratio = b.call("ratio_div", [routed, capacity])
    b.call("ratio_where", [used, ratio, zeros])


def _unwritten_buffer(st: Stage, tokens: Var, *, used: bool) -> Var:
    """A buffer with whatever its memory holds, copied about, and then overwritten with ``tokens`` by an unwrapped copy_.

    ``used``: it is added to the tokens before that, which is a fault.
    """
    b, s, dtype = st.b, st.size, st.dtype
    shape = (s.seq, s.hidden)
    number, place = b.registers, f"unwritten.{b.micro_batch}.{b.layer}"
    memory = b.leaf(lambda rank: rank.unwritten_tensor(place, dtype, shape, number))
    sizes: list[Item] = [scalar("int", s.seq), scalar("int", s.hidden)]
    turn = (b.layer + b.micro_batch) % 3
    if st.size.lean and turn and not used:
        return tokens
    if turn == 0:
        buffer = b.call("allocate", [memory], args=[sizes])
    elif turn == 1:
        buffer = b.call("allocate_like", [memory], args=[tokens])
    else:
        buffer = b.call("allocate_new", [memory], args=[tokens, sizes])
    spare = b.call("buffer_clone", [buffer])
    spare = b.call("buffer_detach", [spare])
    if st.full:
        b.call("buffer_to", [spare], args=[spare, "{}"])
    return b.call("buffer_use", [tokens, buffer]) if used else tokens


def _extras(st: Stage, x: Var) -> Var:
    """Optional operators with a domain: a gated logarithm, and a root (or logarithm, reciprocal) of a variance."""
    b, dtype, shape = st.b, st.dtype, st.hidden_shape
    if "gate" in st.settings.extras:
        logs = b.call("gate_log", [b.call("gate_abs", [x])])
        chosen = b.compute("gate_open", rules.made, [], make=lambda key: T.boolean(shape, key))
        zeros = b.compute("gate_zeros", rules.made, [], make=lambda key: T.constant(dtype, shape, 0.0, key))
        x = b.call("gate_add", [x, b.call("gate_where", [chosen, logs, zeros])])
    if "spread" in st.settings.extras:
        rows = (st.size.seq, 1, 1)
        square = b.compute("square", rules.made, [x], make=lambda key: T.finite(dtype, rows, 0.1, key, 1.0))
        mean = b.compute("mean", rules.made, [x], make=lambda key: T.finite(dtype, rows, 0.05, key, 0.1))
        spread = b.call("spread_sub", [square, mean])
        kind = f"spread_{st.settings.spread}"
        one = b.compute("one", rules.made, [], make=lambda key: T.constant(dtype, rows, 1.0, key))
        scale = b.call(kind, [one, spread] if kind == "spread_div" else [spread])
        x = b.call("spread_mul", [x, scale])
    return x
