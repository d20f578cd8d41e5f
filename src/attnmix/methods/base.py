"""What every mixing method is: plan, run, outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.labels import AreaLabel, LabelPolicy
from attnmix.mixing import LabelMaps, MixedBatch, class_labels, mix_targets, soft_targets

Labels = Tensor | LabelMaps  # [B] int64, [B, C] soft, or either with a score map per image


@dataclass(frozen=True)
class Plan:
    """What was drawn for a step, before its training forward.

    Attributes:
        mixed: the batch after mixing; label weights as the pixels give them.
        guide: what the drawing method leaves for its own losses.
        method: whose plan it is, where several are drawn from.
        targets: label distributions `[B, C]` of the unmixed images, where they follow from the images themselves.
    """

    mixed: MixedBatch
    guide: Any = None
    method: MixMethod | None = None
    targets: Tensor | None = None


@dataclass(frozen=True)
class Run:
    """What the training forward gave.

    Attributes:
        output: logits `[B, C]`.
        mixed: the mixed batch with its final label weights.
        tokens: final image tokens `[B, N, D]`, for methods that asked for them.
    """

    output: Tensor
    mixed: MixedBatch
    tokens: Tensor | None = None


class MixMethod(nn.Module):
    """A way to mix a batch and to train on it.

    A step is `plan` (draw, and mix the pixels), `run` (the one training forward under the label policy
    `self.label`), `losses` (beside the cross-entropy) and `outcome`. A subclass implements the parts in which it
    differs; what it draws comes from `self.generator` alone, but which kind of step it is, by which all processes
    of a run go, from `self.kinds`: as many draws for every batch. Extra parameters are made in `bind`.

    Args:
        num_classes: classes of the labels.
        smoothing: label smoothing, the share spread evenly over all classes.
        seed: of the method's own generator.

    Raises:
        ValueError: an option outside its range, naming it.
    """

    about: ClassVar[About]
    # whether images are moved or erased: then even identical ones change
    moves_content: ClassVar[bool] = False
    # the option that names another model, without which it does not train
    teacher_option: ClassVar[str | None] = None
    # whether the source's label weight is another than its share of the pixels, already as it is drawn
    own_weight: ClassVar[bool] = False
    # whether targets are another's than the mixed labels: a teacher's
    own_labels: ClassVar[bool] = False
    # whether a teacher's score maps that come with the labels are of use to it
    takes_label_maps: ClassVar[bool] = False
    # the option that names another method, whose options are then accepted too; by its name, defaults of our own
    base_option: ClassVar[str | None] = None
    base_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, *, num_classes: int, smoothing: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}, but must be at least 1")
        if not isinstance(seed, int):
            raise ValueError(f"seed is {seed!r}, but must be a whole number")
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing is {smoothing}, but must be in [0, 1)")
        self.num_classes = num_classes
        self.smoothing = smoothing
        self.generator = torch.Generator().manual_seed(seed)
        # of what all processes of a run have to draw alike; another one only where there are several
        self.kinds = self.generator
        self.label: LabelPolicy = AreaLabel()

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps the batch, blends (Mixup) or pastes: compare what blends alike."""
        return {"keep": 1.0, "blend": 0.0, "paste": 0.0}

    @property
    def needs_label_maps(self) -> bool:
        """Whether labels have to come with score maps, as it asks no teacher itself."""
        return False

    def bind(self, view: BackboneView) -> None:
        """Check that the method can work on this model, and make the parameters it adds. Called once.

        Raises:
            ValueError: the model cannot serve this method; says what to use instead.
        """
        self.label.bind(view)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw a mix and apply it to the pixels `[B, C, H, W]`; may look at the model, and at the labels."""
        raise NotImplementedError

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """The training forward of the mixed images, under the label policy."""
        output, mixed = self.label(view, plan.mixed, view, self.generator)
        return Run(output, mixed)

    def losses(self, view: BackboneView, plan: Plan, run: Run, targets: Tensor) -> dict[str, Tensor]:
        """Scalar losses beside the cross-entropy; `targets` `[B, C]` are the unmixed images'."""
        return {}

    def mix(self, view: BackboneView, images: Tensor, labels: Labels) -> MixedBatch:
        """Draw a mix and apply it to the pixels: `[B, C, H, W]` -> `MixedBatch`."""
        return self.plan(view, images, labels).mixed

    def forward(self, view: BackboneView, images: Tensor, labels: Labels) -> dict[str, Any]:
        """One training step up to the loss; see `MixTask` for what the dictionary holds."""
        plan = self.plan(view, images, labels)
        targets = self.targets_of(plan, labels)
        run = self.run(view, plan)
        target = mix_targets(targets, run.mixed.source_index, run.mixed.source_weight)
        return self.outcome(run, target, self.losses(view, plan, run, targets))

    def share_generator(self, generator: torch.Generator, kinds: torch.Generator | None = None) -> None:
        """Draw from these generators from now on (one alone: kinds too), and so do the methods inside this one."""
        for module in self.modules():
            if isinstance(module, MixMethod):
                module.generator = generator
                module.kinds = generator if kinds is None else kinds

    def draw_as(self, rank: int) -> None:
        """In one of several processes: the kinds of steps as in all of them, the rest as in no other.

        Else processes of one seed would paste the same boxes, and drift apart once their batches differ in size.
        """
        seed = self.generator.initial_seed()
        self.share_generator(_generator_of(seed, rank), torch.Generator().manual_seed(seed))

    def draw_on_as(self, rank: int) -> None:
        """From where another process's generator stands, go on as in no other; kinds stay."""
        seed = int(torch.randint(2**62, (), generator=self.generator))
        self.share_generator(_generator_of(seed, rank), self.kinds)

    def get_draws(self) -> dict[str, Tensor]:
        """Where the generators stand: `generator`, and `kinds` in one of several processes."""
        states = {"generator": self.generator.get_state()}
        return states if self.kinds is self.generator else {**states, "kinds": self.kinds.get_state()}

    def set_draws(self, states: Mapping[str, Tensor]) -> None:
        """Put back what `get_draws` gave."""
        kinds = states.get("kinds")
        if (kinds is None) != (self.kinds is self.generator):
            self.share_generator(self.generator, None if kinds is None else torch.Generator())
        self.generator.set_state(states["generator"].cpu())
        if kinds is not None:
            self.kinds.set_state(kinds.cpu())

    def targets(self, labels: Labels) -> Tensor:
        """Smoothed label distributions `[B, C]` of the unmixed images."""
        return soft_targets(class_labels(labels), num_classes=self.num_classes, smoothing=self.smoothing)

    def targets_of(self, plan: Plan, labels: Labels) -> Tensor:
        """The plan's own label distributions `[B, C]` of the unmixed images, or the labels'."""
        return self.targets(labels) if plan.targets is None else plan.targets

    def outcome(
        self, run: Run, target: Tensor, losses: dict[str, Tensor], stats: dict[str, Tensor] | None = None
    ) -> dict[str, Any]:
        """Put a step's result together: cross-entropy against the mixed labels `[B, C]`, plus further losses."""
        losses = {"classification": F.cross_entropy(run.output.float(), target), **losses}
        return {
            "loss": torch.stack(list(losses.values())).sum(),
            "output": run.output,
            "target": target,
            "losses": losses,
            "stats": stats or {},
            "mixed": run.mixed,
        }


def _generator_of(seed: int, rank: int) -> torch.Generator:
    (word,) = np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(word >> np.uint64(1)))
