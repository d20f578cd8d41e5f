import pytest
import torch
import torch.nn.functional as F

import attnmix
from tests import references
from tests.conftest import NUM_CLASSES, tiny_vit

MODELS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "class token, averaged": {"global_pool": "avg"},
}


def make_task(model, **options):
    options = {"mixup_prob": 0.0, **options}
    return attnmix.MixTask(model, attnmix.create_method("tl-align", num_classes=NUM_CLASSES, **options))


def make_batch(batch, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("size", [(16, 16), (16, 24)], ids=["square", "not square"])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("residual", [True, False])
def test_target_and_gradients_equal_the_full_label_matrixs(make_vit, batch, size, options, residual):
    model = make_vit(img_size=size, **options)
    task, (images, labels) = make_task(model, residual=residual, mode="elem"), make_batch(batch, size)
    out = task(images, labels)
    mixed = out["mixed"]
    wanted = references.tl_align_target(
        model,
        mixed.images,
        mixed.source_mask,
        labels.tolist(),
        mixed.source_index.tolist(),
        num_classes=NUM_CLASSES,
        smoothing=0.1,
        residual=residual,
        patch=4,
    )
    assert torch.allclose(out["target"], wanted, atol=1e-5)
    logits = model(mixed.images)
    loss = torch.stack([references.cross_entropy(logits[i], wanted[i]) for i in range(batch)]).mean()
    references.assert_same_gradients(out["loss"], loss, model)


@pytest.mark.parametrize("mode", ["batch", "elem"])
def test_boxes_are_whole_patches_of_every_size_and_never_empty(make_vit, mode):
    task, (images, labels) = make_task(make_vit(), mode=mode), make_batch(6)
    heights, widths = set(), set()
    for _ in range(300):
        mask = task.mix(images, labels).source_mask
        tokens = F.avg_pool2d(mask.float()[:, None], 4)
        assert ((tokens == 0) | (tokens == 1)).all()
        assert mask.flatten(1).any(dim=1).all()
        heights |= set((tokens.amax(dim=3).sum(dim=2)[:, 0]).tolist())
        widths |= set((tokens.amax(dim=2).sum(dim=2)[:, 0]).tolist())
    assert heights == {1, 2, 3, 4}
    assert widths == {1, 2, 3, 4, 5, 6}


def test_even_boxes_are_the_authors_and_may_be_empty(make_vit):
    task, (images, labels) = make_task(make_vit(), box="even", mode="elem"), make_batch(8)
    shares = torch.cat([task.mix(images, labels).source_weight for _ in range(50)])
    assert (shares == 0).any()
    inner = {
        tuple(box[2:].tolist())
        for _ in range(100)
        for box in task.mix(images, labels).draw.box // 4
        if (box[:2] > 0).all() and (box[:2] + box[2:] < torch.tensor([4, 6])).all() and box[2] * box[3]
    }
    assert inner
    assert all(side % 2 == 0 for box in inner for side in box)


def test_pixel_boxes_are_cutmixs_and_a_cut_token_starts_with_its_share(make_vit):
    model, (images, labels) = make_vit(), make_batch(4)
    task = make_task(model, box="pixel")
    cutmix = attnmix.MixTask(model, attnmix.create_method("cutmix", num_classes=NUM_CLASSES))
    for _ in range(5):
        assert task.mix(images, labels).images.equal(cutmix.mix(images, labels).images)


def test_uniform_attention_gives_cutmixs_label(make_vit):
    model = make_vit(class_token=False, global_pool="avg")
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight[: 2 * model.embed_dim])  # queries and keys
        torch.nn.init.zeros_(block.attn.qkv.bias)
    task, (images, labels) = make_task(model), make_batch(6)
    for _ in range(5):
        mixed = task(images, labels)["mixed"]
        share = mixed.source_mask.float().mean(dim=(1, 2))
        assert torch.allclose(mixed.source_weight, share, atol=1e-6)


def test_no_gradient_reaches_the_model_through_the_label(make_vit):
    out = make_task(make_vit())(*make_batch(2))
    assert not out["target"].requires_grad


def test_blended_batches_keep_their_weight_and_open_no_tap(make_vit):
    out = make_task(make_vit(), mixup_prob=1.0, mode="elem")(*make_batch(4))
    assert out["mixed"].source_weight.equal(out["mixed"].draw.source_weight)


@pytest.mark.parametrize("options", [{"box": "even"}, {"box": "pixel"}, {"residual": False}, {"mixup_prob": 1.0}])
def test_every_option_changes_the_weights(make_vit, options):
    model, (images, labels) = make_vit(), make_batch(4)
    default, other = make_task(model), make_task(model, **options)
    weights = [
        torch.stack([task(images, labels)["mixed"].source_weight for _ in range(4)]) for task in (default, other)
    ]
    assert not torch.allclose(*weights, atol=1e-4)


def test_mixup_half_of_the_time_by_default():
    assert attnmix.create_method("tl-align", num_classes=3).shares["blend"] == 0.5


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match='box is "odd", but must be one of token, even, pixel'):
        attnmix.create_method("tl-align", num_classes=3, box="odd")


@pytest.mark.parametrize("how", ["task", "in place", "a block"])
def test_a_compiled_model_is_traced_after_its_forward(how):
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    targets = []
    for compiled in (False, True):
        model = tiny_vit()
        task = attnmix.MixTask(model, attnmix.create_method("tl-align", num_classes=NUM_CLASSES, mixup_prob=0.0))
        if compiled and how == "task":
            task.compile(backend="eager")
        elif compiled:
            (model if how == "in place" else model.blocks[1]).compile(backend="eager")
        assert task.view.is_compiled == compiled
        out = task(images, labels)
        out["loss"].backward()
        targets.append(out["target"])
    assert torch.allclose(*targets, atol=1e-6)


def test_a_compiled_graph_does_not_grow_with_the_batch():
    sizes = []

    def counting(graph, inputs):
        sizes.append(len(graph.graph.nodes))
        return graph

    for batch in (2, 64):
        torch._dynamo.reset()
        method = attnmix.create_method("tl-align", num_classes=NUM_CLASSES, mixup_prob=0.0)
        task = attnmix.MixTask(tiny_vit(), method)
        task.compile(backend=counting)
        task(torch.randn(batch, 3, 16, 24), torch.arange(batch) % NUM_CLASSES)
    assert len(sizes) == 2
    assert sizes[0] == sizes[1]
