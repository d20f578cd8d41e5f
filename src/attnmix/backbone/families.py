"""The model families, and which layout each has."""

from torch import nn

from attnmix.backbone.class_attention import CaitLayout, XcitLayout
from attnmix.backbone.huggingface import (
    HuggingFaceDinov2Layout,
    HuggingFacePvtLayout,
    HuggingFaceSwinLayout,
    HuggingFaceTeacherLayout,
    HuggingFaceViTLayout,
)
from attnmix.backbone.layout import Layout
from attnmix.backbone.pyramid import PyramidLayout
from attnmix.backbone.sequence import SequenceLayout
from attnmix.backbone.swin import ClassAttentionSwinLayout, SwinLayout

# "package.class" -> layout, by name, so that nothing is imported; subclasses go with the nearest named class
FAMILIES: dict[str, type[Layout]] = {
    "timm.VisionTransformer": SequenceLayout,
    "timm.VisionTransformerRelPos": SequenceLayout,
    "timm.Eva": SequenceLayout,
    "timm.Beit": SequenceLayout,
    "timm.Cait": CaitLayout,
    "timm.Xcit": XcitLayout,
    "timm.PyramidVisionTransformerV2": PyramidLayout,
    "timm.SwinTransformer": SwinLayout,
    "attnmix.PyramidVisionTransformer": PyramidLayout,
    "attnmix.ClassAttentionSwin": ClassAttentionSwinLayout,
    "transformers.ViTForImageClassification": HuggingFaceViTLayout,
    "transformers.DeiTForImageClassification": HuggingFaceViTLayout,
    "transformers.DeiTForImageClassificationWithTeacher": HuggingFaceTeacherLayout,
    "transformers.Dinov2ForImageClassification": HuggingFaceDinov2Layout,
    "transformers.SwinForImageClassification": HuggingFaceSwinLayout,
    "transformers.PvtForImageClassification": HuggingFacePvtLayout,
}

SUPPORTED = (
    "timm's VisionTransformer (ViT, DeiT, DINOv2, SigLIP), Eva, Beit, Cait, Xcit, PyramidVisionTransformerV2 and "
    "SwinTransformer, attnmix's PVT, CCT, ViT-Lite and CA-Swin, and transformers' ViT, DeiT, DINOv2, Swin and PVT "
    "for image classification"
)


def layout_of(model: nn.Module) -> Layout:
    """The model's layout.

    Raises:
        ValueError: a model of no family in the table, or one of its variants that cannot be laid out.
    """
    for kind in type(model).__mro__:
        layout = FAMILIES.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        if layout is not None:
            return layout(model)
    raise ValueError(
        f"{type(model).__name__} does not lay out its tokens in a known way; supported are {SUPPORTED}"
    )
