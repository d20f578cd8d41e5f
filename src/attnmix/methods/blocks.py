"""Blocks of a model, by number, for methods that work inside it."""

from attnmix.backbone import BackboneView


def refuse_checkpointing(view: BackboneView) -> None:
    """ValueError where the blocks would run again, without what was mixed inside, in the backward pass."""
    if view.grad_checkpointing:
        raise ValueError(
            f"{view.name} checkpoints gradients, and would run its blocks again without the mixed tokens: switch "
            "gradient checkpointing off"
        )


def block_number(view: BackboneView, option: str, block: int) -> int:
    """A block counted from 0, where it may be counted from the end; ValueError, with the option, for none."""
    count = len(view.blocks)
    if not -count <= block < count:
        raise ValueError(
            f"{option} is {block}, but {view.name} has {count} blocks, {-count} to {count - 1} (counted from 0)"
        )
    return block % count
