"""The label policies that can be named, for methods whose pixels are their own."""

from attnmix.methods.guide import AttentionGuide
from attnmix.methods.labels import AreaLabel, LabelPolicy
from attnmix.methods.tl_align import AlignedLabel
from attnmix.methods.transmix import AttentionLabel
from attnmix.mixing.draws import check_choice

LABELS = ("area", "transmix", "transmix-image", "tl-align")


def named_label(name: str) -> LabelPolicy:
    """The source's label weight by `area`, or read from the training forward by another method's policy.

    `transmix` reads class attention, `transmix-image` image attention (models without class token), `tl-align`
    traces token labels; each with its defaults.

    Raises:
        ValueError: another name.
    """
    check_choice("label", name, LABELS)
    if name == "area":
        return AreaLabel()
    if name == "tl-align":
        return AlignedLabel()
    return AttentionLabel(
        AttentionGuide("class" if name == "transmix" else "image", -1), way_out='label="transmix-image"'
    )
