"""Which tokens of an attention call are image tokens, told from the model and the calls around it."""

from collections.abc import Sequence

from torch import nn

_CLASS_TOKENS = ("cls_token", "class_token")
_REGISTERS = ("reg_token", "register_token")


def has_class_token(model: nn.Module, num_prefix_tokens: int) -> bool:
    """Whether the first prefix token is a class token, not a register."""
    if num_prefix_tokens == 0:
        return False
    if hasattr(model, "cls_token"):  # timm: None where there are registers alone
        return model.cls_token is not None
    return _owns(model, _CLASS_TOKENS) or not _owns(model, _REGISTERS)


def default_prefix_tokens(model: nn.Module) -> int:
    """The model's own `num_prefix_tokens`, else 0; ValueError where 0 cannot be right."""
    count: int | None = getattr(model, "num_prefix_tokens", None)
    if count is not None:
        return count
    if _owns(model, _CLASS_TOKENS + _REGISTERS):
        raise ValueError(
            f"{type(model).__name__} has a class or register token but no attribute num_prefix_tokens: "
            "pass num_prefix_tokens=..."
        )
    return 0


def _owns(model: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether a parameter's name begins like one of `names`, at any depth (often inside an embedding)."""
    return any(name.rpartition(".")[2].startswith(names) for name, _ in model.named_parameters())


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
