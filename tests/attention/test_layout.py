import pytest
import torch
from torch import nn

from attnmix.attention.layout import default_prefix_tokens, has_class_token, prefix_tokens

VIT = [(17, 17)] * 3
CAIT = [(16, 16), (16, 16), (1, 17), (1, 17)]


@pytest.mark.parametrize(
    ("shapes", "prefix", "expected"),
    [
        (VIT, 1, [(1, 1)] * 3),
        ([(16, 16)] * 2, 0, [(0, 0)] * 2),
        ([(64, 16), (16, 16)], 0, [(0, 0)] * 2),  # spatially reduced keys
        (CAIT, 1, [(0, 0), (0, 0), (0, 1), (0, 1)]),
        ([(19, 19), (1, 16)], 3, [(3, 3), (0, 0)]),  # the pool leaves prefix tokens out
        ([(19, 19), (1, 19)], 3, [(3, 3), (0, 3)]),  # the pool looks at all tokens
        ([(16, 16), (1, 16)], 0, [(0, 0), (0, 0)]),
        ([(8, 8), (1, 17), (1, 17)], 1, [(1, 1), (0, 1), (0, 1)]),  # XCiT: attention between channels
    ],
)
def test_prefix_tokens(shapes, prefix, expected):
    assert [prefix_tokens(shapes, block, prefix) for block in range(len(shapes))] == expected


def with_parameter(name):
    model = nn.Module()
    model.embeddings = nn.Module()
    setattr(model.embeddings, name, nn.Parameter(torch.zeros(1)))
    return model


def test_class_token_is_told_from_registers():
    assert has_class_token(with_parameter("cls_token"), 1)
    assert has_class_token(with_parameter("class_token"), 1)
    assert has_class_token(with_parameter("first"), 1)  # a name we do not know: believe the caller
    assert not has_class_token(with_parameter("reg_token"), 4)
    assert not has_class_token(with_parameter("cls_token"), 0)
    model = with_parameter("cls_token")
    model.cls_token = None
    assert not has_class_token(model, 1)


def test_default_prefix_tokens():
    model = with_parameter("weight")
    assert default_prefix_tokens(model) == 0
    model.num_prefix_tokens = 2
    assert default_prefix_tokens(model) == 2


@pytest.mark.parametrize("name", ["cls_token", "cls_token_0", "class_token", "register_tokens"])
def test_prefix_tokens_that_nobody_counted_raise(name):
    with pytest.raises(ValueError, match=r"Module has a class or register token .* pass num_prefix_tokens="):
        default_prefix_tokens(with_parameter(name))
