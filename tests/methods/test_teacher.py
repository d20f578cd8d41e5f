"""What a teacher says of each place: of CNNs and transformers, and that it is left as it was."""

import copy

import pytest
import timm
import torch

import attnmix
from attnmix.backbone import BackboneView
from attnmix.methods.teacher import MapReader, Teacher, score_maps
from tests.conftest import NUM_CLASSES, tiny_vit

SIZE = (64, 96)
CNNS = {
    "resnet18": {"features": (512, 2, 3)},
    "convnext_atto": {"features": (320, 2, 3)},
    "mambaout_femto": {"features": (288, 2, 3)},  # NHWC
}


def centred(scores):
    return scores - scores.mean(dim=1, keepdim=True)


def cnn(name):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=NUM_CLASSES)
    for parameter in model.get_classifier().parameters():
        torch.nn.init.normal_(parameter)
    return model.eval()


@pytest.mark.parametrize("name", CNNS)
def test_a_cnns_places_are_classified_one_by_one(name):
    model, images = cnn(name), torch.randn(2, 3, *SIZE)
    channels, rows, columns = CNNS[name]["features"]
    found = score_maps(model, images)
    assert found.shape == (2, NUM_CLASSES, rows, columns)
    with torch.no_grad():
        features = model.forward_features(images)
        last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        assert tuple(features.shape[1:]) == ((rows, columns, channels) if last else (channels, rows, columns))
        for row in range(rows):
            for column in range(columns):  # a map that is this place everywhere
                cell = (slice(None), slice(row, row + 1), slice(column, column + 1))
                place = features[cell] if last else features[(slice(None), *cell)]
                wanted = model.forward_head(place.expand_as(features))
                assert torch.allclose(found[:, :, row, column], centred(wanted), atol=1e-3)


def test_a_cnn_with_a_linear_head_says_on_average_what_it_predicts():
    model, images = cnn("resnet18"), torch.randn(2, 3, *SIZE)
    with torch.no_grad():
        assert torch.allclose(score_maps(model, images).mean(dim=(2, 3)), centred(model(images)), atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}])
def test_a_vits_tokens_are_classified_one_by_one(options):
    model, images = tiny_vit(**options).eval(), torch.randn(2, 3, 16, 24)
    found = score_maps(model, images)
    assert found.shape == (2, NUM_CLASSES, 4, 6)
    with torch.no_grad():
        tokens = model.forward_features(images)[:, model.num_prefix_tokens :]
        wanted = model.head(model.fc_norm(tokens))
    for row in range(4):
        for column in range(6):
            assert torch.allclose(found[:, :, row, column], centred(wanted[:, row * 6 + column]), atol=1e-5)


def test_a_swin_is_read_on_its_last_grid():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224",
        pretrained=False,
        num_classes=NUM_CLASSES,
        img_size=64,
        window_size=2,
        embed_dim=16,
        depths=(1, 1, 1, 1),
        num_heads=(1, 1, 1, 1),
    )
    assert score_maps(model, torch.randn(2, 3, 64, 64)).shape == (2, NUM_CLASSES, 2, 2)


def bound(teacher, model, **options):
    view = BackboneView(model)
    asked = Teacher(teacher, **options)
    asked.bind(view, num_classes=NUM_CLASSES)
    return asked, view


def test_self_is_the_model_as_it_stands():
    model = tiny_vit(proj_drop_rate=0.5)
    model.train()
    asked, view = bound("self", model)
    images = torch.randn(2, 3, 16, 24)
    first = asked.score_maps(view, images)
    assert first.equal(score_maps(model, images))  # no dropout
    with torch.no_grad():
        model.head.weight += torch.randn_like(model.head.weight)
    assert not torch.allclose(asked.score_maps(view, images), first, atol=1e-3)


@pytest.mark.parametrize("make", [tiny_vit, lambda: cnn("resnet18")], ids=["vit", "cnn"])
def test_a_teacher_is_left_as_it_was_also_after_an_error(make):
    model = make()
    model.train()
    next(model.children()).eval()
    flags = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    images = torch.randn(2, 3, 16, 24)
    assert not score_maps(model, images).requires_grad
    hook = model.get_classifier().register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        score_maps(model, images)
    hook.remove()
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_no_scores_have_a_mean_of_their_own():
    model = tiny_vit()
    images = torch.randn(2, 3, 16, 24)
    before = score_maps(model, images)
    with torch.no_grad():
        model.head.bias -= 7  # as after training by binary cross-entropy
    assert torch.allclose(score_maps(model, images), before, atol=1e-4)
    assert torch.allclose(before.mean(dim=1), torch.zeros(2, 4, 6), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_images_are_given_in_the_teachers_type_and_scores_in_single_precision(dtype):
    teacher = tiny_vit()
    asked, view = bound(teacher, tiny_vit().to(dtype))
    images = torch.randn(2, 3, 16, 24, dtype=dtype)
    found = asked.score_maps(view, images)
    assert found.dtype == torch.float32
    assert torch.allclose(found, score_maps(teacher, images.float()), atol=1e-5)


def test_images_are_normalised_as_the_teacher_was_trained():
    teacher, model = tiny_vit(), tiny_vit()
    teacher.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    model.pretrained_cfg = {"mean": (0.2, 0.3, 0.4), "std": (0.1, 0.2, 0.3)}
    asked, view = bound(teacher, model)
    pixels = torch.rand(2, 3, 16, 24)
    mean, std = (torch.tensor(model.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    found = asked.score_maps(view, (pixels - mean) / std)
    assert torch.allclose(found, score_maps(teacher, (pixels - 0.5) / 0.5), atol=1e-4)


def test_a_teacher_by_name_is_made_when_it_is_bound_and_frozen():
    asked = Teacher("resnet18", {"pretrained": False, "num_classes": NUM_CLASSES})
    assert asked.reader is None
    view = BackboneView(tiny_vit())
    asked.bind(view, num_classes=NUM_CLASSES)
    made = asked.reader
    assert not any(parameter.requires_grad for parameter in made.model.parameters())
    asked.bind(view, num_classes=NUM_CLASSES)
    assert asked.reader is made
    with pytest.raises(ValueError, match="teacher 'resnet8000' is neither the folder of a run nor a model"):
        Teacher("resnet8000").bind(view, num_classes=NUM_CLASSES)


def test_a_method_does_not_hold_its_teachers_parameters():
    teacher = tiny_vit()
    method = attnmix.create_method("relabel", num_classes=NUM_CLASSES, teacher=teacher)
    task = attnmix.MixTask(tiny_vit(), method)
    assert not list(method.parameters())
    assert len(list(task.parameters())) == len(list(teacher.parameters()))


def test_a_wrong_teacher_is_refused_before_training():
    model = tiny_vit()
    with pytest.raises(ValueError, match="the teacher VisionTransformer predicts 9 classes, not 5: give one"):
        bound(tiny_vit(num_classes=9), model)
    message = "the teacher VisionTransformer does not take these images: Input .*give one made for their size"
    with pytest.raises(ValueError, match=message):
        bound(tiny_vit(img_size=32), model)
    with pytest.raises(ValueError, match="the teacher Linear gives no map of features: use a timm CNN or ViT"):
        bound(torch.nn.Linear(3, NUM_CLASSES), model)
    hiera = timm.create_model(
        "hiera_tiny_224", pretrained=False, num_classes=5, embed_dim=16, num_heads=1, stages=(1, 1, 1, 1)
    )
    with pytest.raises(ValueError, match="the teacher Hiera does not take these images"):
        bound(hiera, model)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_teacher_is_tried_on_as_many_channels_as_the_model_takes(channels):
    asked, view = bound(tiny_vit(in_chans=channels), tiny_vit(in_chans=channels))
    assert asked.score_maps(view, torch.randn(2, channels, 16, 24)).shape == (2, NUM_CLASSES, 4, 6)


def test_a_model_of_many_sizes_is_asked_at_its_teachers():
    model = tiny_vit(dynamic_img_size=True)
    asked, view = bound(tiny_vit(img_size=(24, 16)), model)
    assert asked.score_maps(view, torch.randn(2, 3, 24, 16)).shape == (2, NUM_CLASSES, 6, 4)
    with pytest.raises(ValueError, match="does not take these images"):
        asked.score_maps(view, torch.randn(2, 3, 16, 24))


@pytest.mark.parametrize(
    ("teacher", "options", "message"),
    [
        (3, None, "teacher is 3, but must be a model's name"),
        (torch.nn.Identity(), {"img_size": 3}, "need a teacher given by name"),
        ("self", {"img_size": 3}, 'teacher="self" is the model under training'),
    ],
)
def test_wrong_options_are_named(teacher, options, message):
    with pytest.raises(ValueError, match=message):
        Teacher(teacher, options)


def test_a_reader_takes_the_view_it_is_given():
    view = BackboneView(tiny_vit())
    assert MapReader(view.model, view).view is view
