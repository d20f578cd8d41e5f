"""Draw one of several methods at every step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan, Run


class Choice(MixMethod):
    """One of several methods at every step, as DeiT switches between Mixup and CutMix.

    All draws, the members' too, come from this method's one generator. By name: `"mixup+cutmix"`.

    Args:
        methods: the members.
        weights: how often each is drawn, relative to the others; equally often by default.
        seed: of the generator.

    Raises:
        ValueError: no member, members of different class counts, or weights that do not fit.
    """

    about = About(
        paper="-",
        images="a or b, with equal chances",
        labels="a's or b's",
        more="those of a and b",
        needs=("what a and b need",),
    )

    def __init__(
        self, methods: Sequence[MixMethod], weights: Sequence[float] | None = None, *, seed: int = 0
    ) -> None:
        if not methods:
            raise ValueError("Choice needs at least one method to choose from")
        counts = sorted({method.num_classes for method in methods})
        if len(counts) > 1:
            raise ValueError(f"the methods to choose from have different class counts: {counts}")
        super().__init__(num_classes=counts[0], smoothing=methods[0].smoothing, seed=seed)
        weights = [1.0] * len(methods) if weights is None else [float(weight) for weight in weights]
        if len(weights) != len(methods) or min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(
                f"weights {weights} do not fit {len(methods)} methods: want one each, none negative, not all 0"
            )
        self.methods: Any = nn.ModuleList(methods)
        self.weights = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        self.share_generator(self.generator)

    @property
    def shares(self) -> dict[str, float]:
        """The members' shares, by how often each is drawn."""
        members = [
            (float(weight), method.shares) for weight, method in zip(self.weights, self.methods, strict=True)
        ]
        return {kind: sum(weight * shares[kind] for weight, shares in members) for kind in members[0][1]}

    def bind(self, view: BackboneView) -> None:
        """Bind every member."""
        for method in self.methods:
            method.bind(view)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """The drawn member's plan, which remembers whose it is."""
        member = self._draw()
        plan = member.plan(view, images, labels)
        return plan if plan.method is not None else replace(plan, method=member)

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """As the member that made the plan runs it."""
        assert plan.method is not None
        return plan.method.run(view, plan)

    def losses(self, view: BackboneView, plan: Plan, run: Run, targets: Tensor) -> dict[str, Tensor]:
        """The losses of the member that made the plan."""
        assert plan.method is not None
        return plan.method.losses(view, plan, run, targets)

    def forward(self, view: BackboneView, images: Tensor, labels: Labels) -> dict[str, Any]:
        """The drawn member's step."""
        return self._draw()(view, images, labels)

    def _draw(self) -> MixMethod:
        index = int(torch.multinomial(self.weights, 1, generator=self.kinds))
        method = self.methods[index]
        assert isinstance(method, MixMethod)
        return method
