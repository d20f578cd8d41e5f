"""Which tokens of an attention call are image tokens, told from the model and the calls around it."""

from collections.abc import Sequence

from torch import nn

_CLASS_TOKENS = frozenset({"cls_token", "class_token"})
_REGISTERS = frozenset({"reg_token", "reg_tokens", "register_token", "register_tokens"})


def has_class_token(model: nn.Module, num_prefix_tokens: int) -> bool:
    """Whether the first prefix token is a class token, not a register."""
    if num_prefix_tokens == 0:
        return False
    if hasattr(model, "cls_token"):  # timm: None where there are registers alone
        return model.cls_token is not None
    names = {
        name.rpartition(".")[2] for name, _ in model.named_parameters()
    }  # elsewhere: inside an embedding
    return bool(names & _CLASS_TOKENS) or not names & _REGISTERS


def prefix_tokens(shapes: Sequence[tuple[int, int]], block: int, num_prefix_tokens: int) -> tuple[int, int]:
    """How many of the queries and of the keys of call `block` are prefix tokens.

    `shapes` are (M_query, M_key) of all calls in order: attention pooling (one query) may leave the prefix
    tokens out (SigLIP), and the class token may join only later (CaiT).
    """
    queries, keys = shapes[block]
    if queries == 1:
        below = next((q for q, k in reversed(shapes[:block]) if q == k), None)
        pool_leaves_prefix_out = below is not None and keys == below - num_prefix_tokens
        return 0, 0 if pool_leaves_prefix_out else num_prefix_tokens
    above = next((k for q, k in shapes[block + 1 :] if q == 1), None)
    if above is not None and above == keys + num_prefix_tokens:
        return 0, 0
    return num_prefix_tokens, num_prefix_tokens
