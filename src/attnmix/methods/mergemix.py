"""MergeMix (Jin et al., 2025): the source's most attended tokens pasted, where like tokens stand together."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.attention import AttentionTap
from attnmix.attention.call import SoftmaxCall, aside
from attnmix.attention.flow import AttentionStep, WindowAttention, attention_steps, share_out
from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.frozen import trial_images
from attnmix.methods.guide import AttentionGuide
from attnmix.methods.label_names import LABELS
from attnmix.methods.pasting import Pasting
from attnmix.mixing import PasteMask, fold_tokens
from attnmix.mixing.draws import check_choice
from attnmix.mixing.grid_masks import cells_to_mask
from attnmix.mixing.patch_masks import top_cells
from attnmix.mixing.token_merging import merge_tokens, recover_scores
from attnmix.mixing.whole_numbers import is_whole

WAY_OUT = 'use match="tokens", the final tokens'


def rescaled_weight(noise: Tensor, mask_share: Tensor) -> Tensor:
    """The paper's re-scaled label weight: a Gaussian number for each image, scaled to [0, 1] over the batch.

    Its deviation is the share of the mask (in the paper's notation that of the wished tokens in the mask, which is
    1). Its mean, in the paper the share of tokens that merging keeps, is left out: one for all, it is taken off
    again by the scaling. Where one share is drawn for the whole batch, the scaling undoes the deviation too.

    Args:
        noise: `[B]` standard normal numbers.
        mask_share: `[B]`, the mask's share of the image.

    Returns:
        `[B]` in [0, 1]; 0 for a batch of one.
    """
    drawn = mask_share * noise
    low, high = drawn.aminmax()
    return (drawn - low) / (high - low + 1e-5)


class MergedGuide(AttentionGuide):
    """Attention on an image in which tokens that are alike have one score, `[B, N]` on the model's final grid.

    Arguments of `AttentionGuide`; and:

    Args:
        match: what makes tokens alike: the block's `keys`, mean over heads, or the final `tokens`.
        merged: share of the tokens merged away.
        rounds: of matching.
        group_score: a group's score is the `sum` or the `mean` of its tokens'.
    """

    def __init__(
        self,
        attention: str,
        block: int,
        provider: str | nn.Module | None,
        provider_options: Mapping[str, Any] | None,
        *,
        match: str,
        merged: float,
        rounds: int,
        group_score: str,
    ) -> None:
        super().__init__(attention, block, provider, provider_options)
        self.match = match
        self.merged = merged
        self.rounds = rounds
        self.group_score = group_score

    def bind(self, view: BackboneView, *, reader: str, way_out: str | None = None) -> None:
        """Also that keys stand on the final grid, one for each token."""
        super().bind(view, reader=reader, way_out=way_out)
        if self.match != "keys" or not self.merges:
            return
        guide = self.provider or view
        example = trial_images(guide, guide.model)
        size = example.shape[-2:]
        step = self._step(guide, size)
        if isinstance(step, WindowAttention) or step.key_grid != guide.grid_size(size):
            raise ValueError(
                f"the keys of block {self.block} of {guide.name} are not one for each final token: {WAY_OUT}"
            )
        with torch.no_grad(), guide.evaluating(), guide.open_stopping_tap(self.blocks) as tap:
            self._forward(guide, example)
        self._keys(guide, tap, example)  # refuses attention that is spelled out, which only a forward shows

    @property
    def merges(self) -> bool:
        """Whether there is anything to merge: random scores look at no model."""
        return self.merged > 0 and self.attention != "random"

    @torch.no_grad()
    def merged_attention(self, view: BackboneView, images: Tensor, generator: torch.Generator) -> Tensor:
        """The map of a forward as at inference, recovered from groups of tokens: `[B, N]`."""
        if self.attention == "random":
            return self.draw(view, images, generator)
        if not self.merges:
            return self.clean_attention(view, images)
        guide, seen = self._guide(view, images)
        if self.match == "tokens":
            with guide.evaluating(), guide.open_tap(self.blocks) as tap:
                _, features = guide.forward_tokens(seen)
        else:
            with guide.evaluating(), guide.open_stopping_tap(self.blocks) as tap:
                self._forward(guide, seen)
            features = self._keys(guide, tap, seen)
        with aside(features.device):
            groups = merge_tokens(features, int(self.merged * features.shape[1]), rounds=self.rounds)
        scores = recover_scores(self._read(guide, tap, seen), groups, how=self.group_score)
        maps = fold_tokens(scores, guide.grid_size(seen.shape[-2:]))
        return share_out(maps, view.grid_size(images.shape[-2:])).flatten(1)

    def _keys(self, guide: BackboneView, tap: AttentionTap, images: Tensor) -> Tensor:
        """Keys of the image tokens, mean over heads, `[B, N, D]` (ToMe, section 3)."""
        call = tap.call(guide.check_block(self.block))
        if isinstance(call, SoftmaxCall):
            raise ValueError(f"{guide.name} spells its attention out, so that its keys cannot be seen: {WAY_OUT}")
        return call.key.float().mean(dim=1)[:, self._step(guide, images.shape[-2:]).prefix :]

    def _step(self, guide: BackboneView, image_size: tuple[int, int] | torch.Size) -> AttentionStep:
        return attention_steps(guide.flow(image_size))[guide.check_block(self.block)]


class MergeMix(Pasting):
    """MergeMix (Jin et al., 2025): the source's best tokens, by an attention map recovered from merged tokens.

    A clean forward of the unmixed batch (no gradient, evaluation mode) gives attention and features. Tokens that
    are alike are merged by bipartite soft matching (ToMe); every token gets back its group's score; the
    `floor(share * N)` best tokens of the source go onto the target, in place. The label weight is their area.

    The authors merge inside the forward, some tokens in every layer; here the model stays as it is, and one
    block's features are matched in `rounds` rounds. With `merged=0` no tokens are merged (the authors' ablation);
    with `attention="random"` the tokens are random ones, and the model is not looked at.

    Args:
        merged: share of the tokens merged away; half, as the authors train on CIFAR-100 (on ImageNet a quarter).
        rounds: of matching, which merge about equally many tokens each; 12 is the depth of their models.
        match: what makes tokens alike: `keys` of the block that attention is read from, mean over heads, as ToMe
            does; or the final `tokens`, for models whose keys are not one for each final token.
        group_score: of merged tokens, the `sum` of theirs, as the authors' proportional attention gives it, or
            their `mean`.
        attention: `class`, the class token's row or the attention pool's; `image`, for models that have neither,
            and the others of `AttentionGuide`.
        block: whose attention and keys, counted over the model's attention layers from 0; -1 is the last.
        provider: a frozen model that looks instead of the one under training: timm's name, the folder of an
            exported run, or a module.
        provider_options: of `timm.create_model`, for that model.
        label: `area`; `rescaled`, the paper's Gaussian number for each image (see `rescaled_weight`), which the
            authors leave out on ImageNet; or as `Pasting`'s.
        mixup_prob: share of the mixed steps that draw Mixup instead.
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range; attention or keys that the model does not have.
    """

    about = About(
        paper="Jin et al., 2025",
        images="the source's most attended tokens in place, like ones together",
        labels="by area, or a re-scaled random weight",
        forwards=1,
        more="rounds of matching",
        needs=("class attention, or `attention=image`",),
    )

    def __init__(
        self,
        *,
        merged: float = 0.5,
        rounds: int = 12,
        match: str = "keys",
        group_score: str = "sum",
        attention: str = "class",
        block: int = -1,
        provider: str | nn.Module | None = None,
        provider_options: Mapping[str, Any] | None = None,
        label: str = "area",
        mixup_prob: float = 0.5,
        **options: Any,
    ) -> None:
        check_choice("label", label, ("rescaled", *LABELS))
        super().__init__(mixup_prob=mixup_prob, label="area" if label == "rescaled" else label, **options)
        check_choice("match", match, ("keys", "tokens"))
        check_choice("group_score", group_score, ("sum", "mean"))
        if not is_whole(rounds) or rounds < 1:
            raise ValueError(f"rounds is {rounds!r}, but must be a whole number, at least 1")
        most = rounds / (rounds + 1)
        if not 0 <= merged <= most:
            raise ValueError(
                f"merged is {merged}, but must be a share of the tokens from 0 to {most:.3g}: of {rounds} rounds "
                "each merges at most half of what is left; for more, take more rounds"
            )
        self.guide = MergedGuide(
            attention,
            block,
            provider,
            provider_options,
            match=match,
            merged=merged,
            rounds=rounds,
            group_score=group_score,
        )
        self.rescales = label == "rescaled"

    def bind(self, view: BackboneView) -> None:
        """Needs every token in its place, and the attention and keys it reads."""
        super().bind(view)
        view.require_all_tokens()
        self.guide.bind(view, reader="MergeMix")

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> PasteMask:
        """The best tokens of each source."""
        size = images.shape[-2], images.shape[-1]
        grid = view.grid_size(size)
        count = grid[0] * grid[1]
        taken = (self.pasted_shares(images).double() * count).floor()
        partners = self.partners(images)
        weight = None
        if self.rescales:
            noise = torch.randn(len(images), generator=self.generator)
            weight = rescaled_weight(noise, taken.float() / count)
        scores = self.guide.merged_attention(view, images, self.generator)
        cells = top_cells(scores[partners], taken.to(images.device, non_blocking=True))
        return PasteMask(partners, cells_to_mask(fold_tokens(cells, grid), size), weight)
