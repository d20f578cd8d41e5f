import pytest
import torch

import attnmix
from attnmix.methods.transmix import attention_weight
from attnmix.mixing import boxes_to_mask
from tests import references
from tests.conftest import NUM_CLASSES

NO_CLASS_TOKEN = {"class_token": False, "global_pool": "avg"}


def make_task(model, **options):
    options = {"mixup_prob": 0.0, **options}
    return attnmix.MixTask(model, attnmix.create_method("transmix", num_classes=NUM_CLASSES, **options))


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("image_size", [(16, 24), (16, 16)])
@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, NO_CLASS_TOKEN], ids=["class", "registers", "none"])
@pytest.mark.parametrize("mode", ["batch", "elem"])
def test_target_equals_softmax_of_the_unfused_model(make_vit, batch, image_size, options, mode):
    model = make_vit(img_size=image_size, **options).eval()
    images, labels = torch.randn(batch, 3, *image_size), torch.arange(batch) % NUM_CLASSES
    attention = "image" if options is NO_CLASS_TOKEN else "class"
    for share in (0.5, 1.0):
        out = make_task(model, attention_share=share, mode=mode, attention=attention)(images, labels)
        mixed = out["mixed"]
        wanted = references.transmix_target(
            model,
            mixed.images,
            mixed.source_mask,
            labels.tolist(),
            mixed.source_index.tolist(),
            num_classes=NUM_CLASSES,
            smoothing=0.1,
            attention_share=share,
            grid=(image_size[0] // 4, image_size[1] // 4),
            of_images=attention == "image",
        )
        assert torch.allclose(out["target"], wanted, atol=1e-6)
        logits = model(mixed.images)
        loss = torch.stack([references.cross_entropy(logits[i], wanted[i]) for i in range(batch)]).mean()
        references.assert_same_gradients(out["loss"], loss, model)


def test_pixels_are_exactly_cutmixs(make_vit):
    model = make_vit()
    images, labels = torch.randn(6, 3, 16, 24), torch.arange(6) % NUM_CLASSES
    cutmix = attnmix.MixTask(model, attnmix.create_method("cutmix", num_classes=NUM_CLASSES))
    transmix = make_task(model)
    for _ in range(5):
        ours, theirs = transmix(images, labels), cutmix(images, labels)
        assert ours["mixed"].images.equal(theirs["mixed"].images)
        assert ours["output"].equal(theirs["output"])


def test_each_sample_has_its_own_weight_in_its_own_loss(make_vit):
    task = make_task(make_vit(), attention_share=1.0, smoothing=0.0)
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    out = task(images, labels)
    assert len(out["mixed"].source_weight.unique()) == 4
    by_sample = [references.cross_entropy(out["output"][i], out["target"][i]) for i in range(4)]
    assert torch.allclose(out["loss"], torch.stack(by_sample).mean(), atol=1e-6)


def test_uniform_attention_and_a_patch_aligned_box_give_cutmixs_label():
    mask = boxes_to_mask(torch.tensor([[4, 8, 8, 12]]), (16, 24))
    area = mask.float().mean(dim=(1, 2))
    for how in ("nearest", "area"):
        weight = attention_weight(torch.full((1, 24), 1 / 24), mask, area, grid=(4, 6), mask_to_grid_by=how)
        assert torch.allclose(weight, area, atol=1e-6)


def test_no_gradient_reaches_the_model_through_the_label(make_vit):
    out = make_task(make_vit())(torch.randn(2, 3, 16, 24), torch.tensor([0, 1]))
    assert not out["target"].requires_grad
    assert not out["mixed"].source_weight.requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"block": 0},
        {"attention": "image"},
        {"attention_share": 1.0},
        {"mask_to_grid": "area"},
        {"attention": "class-rollout"},
        {"attention": "random"},
        {"cutmix_alpha": 0.3},
    ],
)
def test_every_option_changes_the_weights(make_vit, options):
    model = make_vit()
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    default, other = make_task(model), make_task(model, **options)
    weights = [
        torch.stack([task(images, labels)["mixed"].source_weight for _ in range(4)]) for task in (default, other)
    ]
    assert not torch.allclose(*weights, atol=1e-4)


def test_block_reads_that_blocks_attention(make_vit):
    model = make_vit().eval()
    images, labels = torch.randn(2, 3, 16, 24), torch.tensor([0, 1])
    out = make_task(model, block=1, attention_share=1.0, mask_to_grid="area", seed=3)(images, labels)
    attention = references.class_attention(model, out["mixed"].images, block=1)
    share = torch.nn.functional.adaptive_avg_pool2d(out["mixed"].source_mask.float(), (4, 6)).flatten(1)
    assert torch.allclose(out["mixed"].source_weight, (attention * share).sum(dim=1), atol=1e-6)


def test_mixup_half_of_the_time_by_default(make_vit):
    task = attnmix.MixTask(make_vit(), attnmix.create_method("transmix", num_classes=NUM_CLASSES))
    images, labels = torch.randn(2, 3, 16, 24), torch.tensor([0, 1])
    blended = [task(images, labels)["mixed"].source_mask is None for _ in range(200)]
    assert sum(blended) / 200 == pytest.approx(0.5, abs=0.1)


def test_a_model_without_class_row_is_refused_with_a_way_out(make_vit):
    model = make_vit(class_token=False, global_pool="avg")
    with pytest.raises(ValueError, match='VisionTransformer classifies by no class token.*use attention="image"'):
        make_task(model)
    make_task(model, attention="image")
    averaged = make_vit(global_pool="avg")  # has a class token that its classifier does not read
    with pytest.raises(ValueError, match='use attention="image"'):
        make_task(averaged)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "head"}, 'attention is "head", but must be one of class, image'),
        ({"mask_to_grid": "cubic"}, 'mask_to_grid is "cubic"'),
        ({"attention_share": 2.0}, "attention_share is 2.0"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("transmix", num_classes=3, **options)
