"""What a finished run left behind: its model, and what its method learnt."""

from pathlib import Path

import timm
from torch import nn

from attnmix.methods import MixMethod
from attnmix.task import MixTask
from attnmix.training.checkpoint import load_checkpoint
from attnmix.training.loop import CHECKPOINT

PREFIX = "method."


def trained_model(run: Path) -> nn.Module:
    """The model that a run exported."""
    return timm.create_model(f"local-dir:{run / 'model'}", pretrained=True)


def with_what_it_learnt(method: MixMethod, model: nn.Module, run: Path) -> MixMethod:
    """The method with the parameters that a run trained for it (AutoMix's Mix Block), put in from its checkpoint.

    A method built otherwise than the run's, the one of several that pastes for example, stays as it is.
    """
    MixTask(model, method)  # makes them
    if not method.state_dict():
        return method
    saved = load_checkpoint(run / CHECKPOINT)["trainable"]
    learnt = {key.removeprefix(PREFIX): value for key, value in saved.items() if key.startswith(PREFIX)}
    if learnt.keys() == method.state_dict().keys():
        method.load_state_dict(learnt)
    return method
