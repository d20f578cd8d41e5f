import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from attnmix.evaluation.input_gradient import frozen, input_gradient
from tests.conftest import tiny_vit


def test_it_is_each_images_own_gradient():
    model, images, labels = tiny_vit().eval(), torch.randn(3, 3, 16, 24), torch.tensor([0, 2, 4])
    with torch.no_grad():
        found = input_gradient(model, images, labels)
    for i in range(3):
        image = images[i : i + 1].clone().requires_grad_()
        F.cross_entropy(model(image), labels[i : i + 1]).backward()
        assert torch.allclose(found[i], image.grad[0], atol=1e-6)


def test_a_batch_of_one_is_no_exception():
    """torch's backward pass through XCiT's batch norms goes wrong for a single image."""
    torch.manual_seed(0)
    model = timm.create_model("xcit_nano_12_p16_224", img_size=64, num_classes=5).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 2)
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([0, 3])
    both = input_gradient(model, images, labels)
    alone = input_gradient(model, images[:1], labels[:1])
    assert torch.allclose(alone[0], both[0], rtol=1e-3, atol=1e-6 * float(both.abs().max()) + 1e-9)


def test_parameters_want_no_gradient_meanwhile_and_again_after_an_exception():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)

    def flags():
        return [parameter.requires_grad for parameter in model.parameters()]

    def break_off():
        with frozen(model):
            assert flags() == [False] * 4
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        break_off()
    assert flags() == [False, False, True, True]
