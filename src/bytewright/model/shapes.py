"""The name and shape of every weight of a model, from its config alone.

What a file claims to be is checked against these before anything is built. Equal to the names and shapes of
`TransformerLM(config).state_dict()` for every choice in `ModelConfig`, which a test holds; building that on
the device "meta" would tell the same, a second later. Touches no tensor.
"""

from __future__ import annotations

from bytewright.model.config import ModelConfig

Shape = tuple[int, ...]


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Give the shape of every weight by its name, in the order of the data.

    >>> tiny = ModelConfig(vocab_size=50, context_length=8, d_model=16, num_layers=1, num_heads=2)
    >>> shapes = weight_shapes(tiny)
    >>> shapes["token_embeddings.weight"], shapes["layers.0.attn.q_proj.weight"], len(shapes)
    ((50, 16), (16, 16), 12)
    """
    d = config.d_model
    shapes: dict[str, Shape] = {"token_embeddings": (config.vocab_size, d)}
    block = _block_shapes(config)
    for layer in range(config.num_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
    if config.norm == "pre":
        shapes["ln_final"] = (d,)
    if not config.tie_embeddings:
        shapes["lm_head"] = (config.vocab_size, d)
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _block_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Give the shapes of one block, all of which are alike; matrices are (out, in)."""
    d, f, d_head = config.d_model, config.ffn_width, config.d_head
    queries, keys = config.num_heads * d_head, config.kv_heads * d_head
    shapes: dict[str, Shape] = {
        "attn.q_proj": (queries, d),
        "attn.k_proj": (keys, d),
        "attn.v_proj": (keys, d),
        "attn.output_proj": (d, queries),
        "ffn.w1": (f, d),
        "ffn.w2": (d, f),
    }
    if config.ffn == "swiglu":
        shapes["ffn.w3"] = (f, d)
    if config.qk_norm:
        shapes |= {"attn.q_norm": (d_head,), "attn.k_norm": (d_head,)}
    if config.norm != "none":
        shapes |= {"ln1": (d,), "ln2": (d,)}
    return shapes
