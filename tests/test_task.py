import copy
import re

import pytest
import timm
import torch
from transformers import ViTConfig, ViTForImageClassification

import attnmix
from tests.conftest import NUM_CLASSES
from tests.methods.settings import options_for

HUGGING_FACE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


def make_method(name, **options):
    return attnmix.create_method(name, num_classes=NUM_CLASSES, **options)


def make_task(model, name="cutmix", **options):
    return attnmix.MixTask(model, make_method(name, **options))


def make_batch(batch=4):
    return torch.randn(batch, 3, 16, 24), torch.arange(batch) % NUM_CLASSES


def test_it_is_a_timm_training_task(make_vit):
    model = make_vit()
    task = make_task(model)
    assert isinstance(task, timm.task.TrainingTask)
    assert task.get_eval_model() is model
    assert not task.has_ema()
    evaluator = task.create_evaluator()
    assert evaluator is not None


def test_adaptive_clipping_leaves_out_the_models_head(make_vit):
    model = make_vit()
    task = make_task(model, "automix", **options_for("automix", make_vit))
    every = {id(parameter) for parameter in task.parameters()}
    without_head = {id(parameter) for parameter in task.get_clip_parameters(exclude_head=True)}
    assert {id(parameter) for parameter in task.get_clip_parameters()} == every
    assert every - without_head == {id(parameter) for parameter in model.head.parameters()}


def test_mix_looks_without_training(make_vit):
    task = make_task(make_vit(), "smmix")
    mixed = task.mix(*make_batch())
    assert not mixed.images.requires_grad
    assert isinstance(mixed, attnmix.MixedBatch)


def test_mix_draws_what_a_step_would(make_vit):
    images, labels = make_batch()
    looked = make_task(make_vit(), seed=4).mix(images, labels)
    stepped = make_task(make_vit(), seed=4)(images, labels)["mixed"]
    assert looked.images.equal(stepped.images)


def test_ema_averages_the_plain_model(make_vit):
    task = make_task(make_vit(), "smmix", token_head=True)
    task.setup_ema(decay=0.5)
    start = task.view.model.head.weight.detach().clone()
    with torch.no_grad():
        task.view.model.head.weight += 1
    task.update_ema()
    average = task.get_eval_model(ema=True)
    assert torch.allclose(average.head.weight, start + 0.5)
    assert average(make_batch()[0]).shape == (4, NUM_CLASSES)
    assert set(average.state_dict()) == set(task.get_eval_model().state_dict())


def test_task_state_resumes_the_draws_and_the_methods_parameters(make_vit):
    images, labels = make_batch()
    first = make_task(make_vit(), "smmix", token_head=True)
    first(images, labels)
    state = first.get_task_state()
    state = {"method": copy.deepcopy(state["method"]), "generator": state["generator"]}
    second = make_task(make_vit(), "smmix", token_head=True, seed=9)
    second.load_task_state(state)
    assert second.method.token_head.weight.equal(first.method.token_head.weight)
    for _ in range(5):
        one, two = first(images, labels)["mixed"], second(images, labels)["mixed"]
        assert one.images.equal(two.images)


def test_checkpoint_state_is_the_plain_models(make_vit):
    model = make_vit()
    state = make_task(model, "smmix", token_head=True).get_checkpoint_state()
    assert set(state["state_dict"]) == set(model.state_dict())
    assert set(state["task_state"]) == {"method", "generator"}


def test_no_weight_decay_follows_the_model(make_vit):
    task = make_task(make_vit())
    assert "model.cls_token" in task.get_trainable_module().no_weight_decay()


def test_a_compiled_task_reads_attention_and_tokens(make_vit):
    images, labels = make_batch()
    for name in ("transmix", "smmix"):
        plain = make_task(make_vit(), name, mixup_prob=0.0)
        compiled = make_task(make_vit(), name, mixup_prob=0.0)
        compiled.compile(backend="aot_eager")
        ours, wanted = compiled(images, labels), plain(images, labels)
        assert torch.allclose(ours["target"], wanted["target"], atol=1e-6)
        assert torch.allclose(ours["loss"], wanted["loss"], atol=1e-5)
        assert compiled.get_eval_model()(images).shape == (4, NUM_CLASSES)
        assert set(compiled.state_dict()) == set(plain.state_dict())


def test_a_copied_task_trains_its_own_model(make_vit):
    task = make_task(make_vit(), "smmix", mixup_prob=0.0)
    twin = copy.deepcopy(task)
    twin(*make_batch())["loss"].backward()
    assert twin.view.model.head.weight.grad is not None
    assert task.view.model.head.weight.grad is None


def test_device_and_dtype_follow_the_model(make_vit):
    task = make_task(make_vit().double())
    assert task.dtype == torch.float64
    images, labels = make_batch()
    assert task(images.double(), labels)["output"].dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", attnmix.METHODS)
def test_draws_on_a_gpu_equal_those_on_the_cpu(make_vit, name):
    images, labels = make_batch(8)
    on_cpu, on_gpu = (
        make_task(model, name, **options_for(name, make_vit)) for model in (make_vit(), make_vit().cuda())
    )
    for _ in range(4):
        wanted, ours = on_cpu(images, labels), on_gpu(images.cuda(), labels.cuda())
        assert torch.allclose(ours["mixed"].images.cpu(), wanted["mixed"].images, atol=1e-6)
        assert torch.allclose(ours["target"].cpu(), wanted["target"], atol=1e-4)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 16, 24, dtype=torch.uint8), torch.zeros(2).long(), r"want \[B, C, H, W\] floats"),
        (torch.zeros(3, 16, 24), torch.zeros(2).long(), r"images of shape \(3, 16, 24\)"),
        (torch.zeros(2, 3, 16, 24), torch.zeros(3).long(), "2 images but 3 labels"),
        (
            torch.zeros(2, 3, 16, 26),
            torch.zeros(2).long(),
            "image width 26 is not a multiple of the patch, 4 pixels",
        ),
        (
            torch.zeros(2, 3, 20, 24),
            torch.zeros(2).long(),
            "20 x 24 pixels, but VisionTransformer takes 16 x 24 only",
        ),
        (torch.zeros(2, 3, 16, 24), torch.tensor([0, 9]), r"label 9 is outside 0\.\.4"),
    ],
)
def test_wrong_batches_are_named(make_vit, images, labels, message):
    with pytest.raises(ValueError, match=message):
        make_task(make_vit())(images, labels)


@pytest.mark.parametrize(
    ("classes", "scores"),
    [
        ((4, 2, 3, 3), (4, 2, 3, 4)),
        ((4, 2, 3, 3), (4, 1, 3, 3)),
        ((3, 2, 3, 3), (3, 2, 3, 3)),
        ((1, 2, 3, 3), (1, 2, 3, 3)),
        ((4, 2, 9), (4, 2, 9)),
        ((2, 3, 3), (4, 2, 3, 3)),
    ],
)
def test_label_maps_of_wrong_shapes_are_named(make_vit, classes, scores):
    images, labels = make_batch(4)
    maps = attnmix.mixing.LabelMaps(labels, torch.zeros(classes, dtype=torch.long), torch.zeros(scores))
    said = re.escape(
        f"label maps with classes of shape {classes} and scores of {scores}: want both as [4, k, h, w]"
    )
    for name in ("relabel", "cutmix"):
        task = make_task(make_vit(), name)
        for use in (task, task.mix):
            with pytest.raises(ValueError, match=said):
                use(images, maps)
    fit = attnmix.mixing.LabelMaps(labels, torch.zeros(4, 2, 3, 3, dtype=torch.long), torch.zeros(4, 2, 3, 3))
    assert make_task(make_vit(), "relabel")(images, fit)["loss"].isfinite()


def test_class_counts_must_agree(make_vit):
    method = attnmix.create_method("cutmix", num_classes=7)
    with pytest.raises(
        ValueError, match=r"model has 5 classes, the method 7; create the model with num_classes=7"
    ):
        attnmix.MixTask(make_vit(), method)


def test_a_transformers_classifier_trains_by_its_own_conventions():
    model = ViTForImageClassification(ViTConfig(**HUGGING_FACE, num_labels=3))
    plain = attnmix.create_method("none", num_classes=3, smoothing=0.0)
    batch = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([0, 1, 2, 0])}
    model.eval()  # dropout draws
    out = attnmix.MixTask(model, plain)(**batch)
    wanted = model(**batch)
    assert torch.allclose(out["loss"], wanted.loss)
    assert torch.allclose(out["output"], wanted.logits)


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_a_transformers_model_for_other_problems_is_refused(kind):
    model = ViTForImageClassification(ViTConfig(**HUGGING_FACE, num_labels=3, problem_type=kind))
    with pytest.raises(ValueError, match=f'problem_type is "{kind}".*single_label_classification'):
        attnmix.MixTask(model, attnmix.create_method("cutmix", num_classes=3))


def test_layer_decay_of_a_model_without_layers_is_named():
    model = ViTForImageClassification(ViTConfig(**HUGGING_FACE, num_labels=3))
    task = attnmix.MixTask(model, attnmix.create_method("cutmix", num_classes=3))
    with pytest.raises(ValueError, match="ViTForImageClassification does not say which layer"):
        task.get_trainable_module().group_matcher()


def test_a_pyramid_takes_images_that_its_last_grid_does_not_divide_where_nothing_reads_it():
    sizes = {"embed_dims": (8, 8, 8, 8), "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}
    model = timm.create_model("pvt_v2_b0", num_classes=NUM_CLASSES, **sizes)
    images, labels = torch.randn(2, 3, 48, 64), torch.tensor([0, 1])
    assert attnmix.MixTask(model, make_method("cutmix"))(images, labels)["loss"].isfinite()
    with pytest.raises(ValueError, match="image height 48 is not a multiple"):
        attnmix.MixTask(model, make_method("smmix", mixup_prob=0.0))(images, labels)


def test_a_step_without_images_or_labels_is_named(make_vit):
    task = attnmix.MixTask(make_vit(), attnmix.create_method("cutmix", num_classes=NUM_CLASSES))
    with pytest.raises(ValueError, match="needs images"):
        task(labels=torch.tensor([0]))
