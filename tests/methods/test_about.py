"""What the table of methods says of each, counted."""

import pytest
import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block

import attnmix
from attnmix.methods import MixMethod, method_options
from attnmix.methods.about import About
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.methods.settings import NAMES, options_for


class Counter:
    """Counts forwards, and backward passes, of every tiny ViT among the modules."""

    def __init__(self):
        self.forwards = self.backwards = 0

    def watch(self, module):
        for part in module.modules():
            if isinstance(part, PatchEmbed):
                part.register_forward_pre_hook(self.forward)
            elif isinstance(part, Block) and part is last_block(module, part):
                part.register_full_backward_pre_hook(self.backward)

    def forward(self, *_):
        self.forwards += 1

    def backward(self, *_):
        self.backwards += 1


def last_block(module, block):
    """The last block of the model that this block is of."""
    for part in module.modules():
        blocks = list(getattr(part, "blocks", []))
        if any(block is other for other in blocks):
            return blocks[-1]
    return None


@pytest.mark.parametrize("name", NAMES)
def test_a_pasting_step_costs_what_the_table_says(name):
    teachers = []

    def make(**options):
        teachers.append(tiny_vit(**options))
        return teachers[-1]

    method = attnmix.create_method(name, num_classes=NUM_CLASSES, **options_for(name, make))
    task = attnmix.MixTask(tiny_vit(), method)
    ours, theirs = Counter(), Counter()
    ours.watch(task)
    for teacher in teachers:
        theirs.watch(teacher)
    task(torch.randn(4, 3, 16, 24), torch.arange(4))["loss"].backward()
    about = attnmix.METHODS[name].about
    assert ours.forwards - 1 == about.forwards
    assert ours.backwards - 1 == about.backwards
    assert theirs.forwards == about.teacher_forwards
    assert theirs.backwards == 0
    assert any(parameter.requires_grad for parameter in method.parameters()) == about.parameters


@pytest.mark.parametrize("name", NAMES)
def test_what_needs_a_teacher_says_so_and_names_the_option(name):
    kind = attnmix.METHODS[name]
    assert (kind.teacher_option is not None) == any("teacher" in need for need in kind.about.needs)
    assert kind.teacher_option is None or kind.teacher_option in method_options(name)


def test_costs_in_words():
    assert About("-", "as they are", "smoothed").cost == "-"
    about = About("-", "", "", forwards=2, backwards=1, teacher_forwards=1, parameters=True, more="a graph cut")
    assert about.cost == "2 forwards, 1 backward, 1 teacher forward, parameters, a graph cut"


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_who_published_it(name):
    kind = attnmix.METHODS[name]
    assert issubclass(kind, MixMethod)
    about = kind.about
    assert all((about.paper, about.images, about.labels))
    assert about.paper == "-" or about.paper.split()[-1].isdecimal()
