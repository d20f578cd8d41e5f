import pytest
import timm

from attnmix.methods.frozen import frozen_model


@pytest.mark.parametrize(
    ("provider", "options", "message"),
    [
        ("runs/nowhere", {}, "there is no folder 'runs/nowhere', and teacher 'runs/nowhere' is neither"),
        (
            "resnet5",
            {},
            r"neither the folder of a run nor a model that timm can make \(did you mean 'resnet50'\?\)",
        ),
        ("resnet18", {"pretrained": False, "depth": 3}, "cannot be made by timm with options .*'depth': 3"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(provider, options, message):
    with pytest.raises(ValueError, match=message):
        frozen_model(provider, options, role="teacher")


def test_weights_that_cannot_be_had_are_not_called_an_unknown_model(monkeypatch):
    def offline(*_, **__):
        raise OSError("no route to host.")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(
        ValueError, match="'resnet50' cannot be made of timm's weights .no connection.* no route to host$"
    ):
        frozen_model("resnet50")
