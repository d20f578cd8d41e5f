"""What the rows of an ablation table are on a given recipe, and whether they work there."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from attnmix.backbone import BackboneView
from attnmix.commands.ablations import BLOCKS, Preset, Row
from attnmix.commands.method_specs import MethodSpec
from attnmix.evaluation.label_content import pasting_method
from attnmix.methods import create_method, method_options
from attnmix.task import MixTask
from attnmix.training import Recipe, load_recipe
from attnmix.training.setup import create_model, model_inputs

TOKENS = {"kappa": "vertical"}  # options that count tokens of an image -> the option that makes them count


@dataclass(frozen=True)
class PlannedRow:
    """What a row comes to on a recipe.

    Attributes:
        number: of the row in its table, from 0.
        row: as the paper has it.
        options: what the method is made with, beside the recipe's own options.
        same_as: label of an earlier row with the very same options, whose run serves both.
        note: why it differs from the paper's, or is left out.
        left_out: whether it cannot be run on this recipe.
    """

    number: int
    row: Row
    options: dict[str, Any]
    same_as: str | None = None
    note: str | None = None
    left_out: bool = False

    @property
    def folder(self) -> str:
        """A file name made from what is run, so that another choice of rows finds it again."""
        name = MethodSpec(self.row.method, self.options).folder
        return name if len(name) <= 100 else f"{name[:90]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class RowSpec(MethodSpec):
    """A row's method with its options, under the row's own name."""

    title: str = ""

    @property
    def label(self) -> str:
        """How tables name it: as the paper's does."""
        return self.title


def same_depth(block: int, *, of: int, on: int) -> int:
    """Block `block` of a model of `of` blocks, at the same relative depth of one of `on`; counted from 0.

    Counted from 1 as in the papers it is ceil(d * on / of): the last block stays the last.
    """
    return -(-(block + 1) * on // of) - 1


def plan_rows(
    preset: Preset,
    numbers: Sequence[int],
    *,
    typed: Mapping[str, Any],
    providers: Mapping[str, str],
    depth: int,
    tokens: int,
) -> list[PlannedRow]:
    """What the chosen rows are on a model with `depth` attention layers and `tokens` tokens per image.

    Args:
        preset: the table.
        numbers: of the rows.
        typed: options typed by the user; they go over what the rows have in common, and under a row's own.
        providers: frozen models by key.
        depth: attention layers of the recipe's model.
        tokens: image tokens that its first block takes.
    """
    planned: list[PlannedRow] = []
    for number in numbers:
        row = preset.rows[number]
        options = {**row.common, **{name: typed[name] for name in row.common if name in typed}, **row.own}
        notes = []
        if isinstance(options.get("provider"), str):
            options["provider"] = providers[options["provider"]]
        for option in BLOCKS:
            block = options.get(option)
            if preset.depth is None or preset.depth == depth or block is None:
                continue
            if option in row.own or option not in typed:
                options[option] = same_depth(block, of=preset.depth, on=depth)
                notes.append(f"block {options[option] + 1} of {depth} for {block + 1} of {preset.depth}")
        too_many = _too_many(options, tokens)
        if too_many is not None:
            way_out = f"; --method_options.{too_many} sets another" if too_many in row.common else ""
            notes = [f"left out: {too_many} is {options[too_many]}, but an image has {tokens} tokens{way_out}"]
        same = next((p for p in planned if (p.row.method, p.options) == (row.method, options)), None)
        if same is not None and too_many is None:
            notes.append(f"the same run as {same.row.label}")
        planned.append(
            PlannedRow(
                number,
                row,
                options,
                same_as=(same.same_as or same.row.label) if same is not None and too_many is None else None,
                note="; ".join(notes) or None,
                left_out=too_many is not None,
            )
        )
    return planned


def _too_many(options: Mapping[str, Any], tokens: int) -> str | None:
    """The option that asks for more tokens than an image has."""
    for option, needs in TOKENS.items():
        if options.get(needs) is not None and options.get(option, 0) > tokens:
            return option
    return None


def rehearse(
    preset: Preset,
    numbers: Sequence[int],
    recipe: Recipe,
    *,
    written: str,
    providers: Mapping[str, str],
    num_classes: int,
) -> tuple[list[PlannedRow], list[tuple[PlannedRow, RowSpec]]]:
    """Plan the rows, and take one step of each that will be run on two images of noise.

    Args:
        preset: the table.
        numbers: of the chosen rows.
        recipe: with the typed method_options alone.
        written: the recipe's name, for the options in its file.
        providers: frozen models by key.
        num_classes: of the data.

    Returns:
        All chosen rows; those to be run, with what they are run by.

    Raises:
        ValueError: a row that cannot be made, or does not work on the recipe's model; names it.
    """
    typed = recipe.method_options
    fresh = {**recipe.model_options, "pretrained": False}
    model = create_model(replace(recipe, init=None, model_options=fresh), num_classes=num_classes)
    view = BackboneView(model)
    size = model_inputs(recipe)["input_size"]
    rows, columns = view.token_grid_size(size[-2:])
    planned = plan_rows(
        preset,
        numbers,
        typed=typed,
        providers=providers,
        depth=view.num_attention_calls,
        tokens=rows * columns,
    )
    if all(plan.left_out for plan in planned):
        raise ValueError(f"no row of {preset.name} is left to run: {planned[0].row.label}: {planned[0].note}")
    specs = []
    for plan in planned:
        if plan.left_out or plan.same_as is not None:
            continue
        # the recipe's file has options for its own method alone
        below = {**load_recipe(written, method=plan.row.method).method_options, **typed}
        known = method_options(plan.row.method, {**below, **plan.options})
        shared = {name: value for name, value in below.items() if name in known}
        spec = RowSpec(plan.row.method, plan.options, shared, title=plan.row.label)
        try:
            _one_step(model, spec, size, num_classes)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            key = plan.row.own.get("provider")
            others = ",".join(str(other.number) for other in planned if other is not plan)
            way_out = f"; --providers {key}=MODEL names another model" if key else ""
            way_out += f"; --rows {others} leaves the row out" if others else ""
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"row {plan.number} ({plan.row.label}): {reason}{way_out}") from error
        specs.append((plan, spec))
    return planned, specs


def _one_step(model: nn.Module, spec: MethodSpec, size: Sequence[int], num_classes: int) -> None:
    """A training step up to the loss, of the kind that pastes where the method has one."""
    method = create_method(spec.name, num_classes=num_classes, **spec.options)
    method = pasting_method(spec.name, num_classes=num_classes, **spec.options) or method
    images = torch.rand(2, *size, generator=torch.Generator().manual_seed(0))
    MixTask(model, method).train()(images, torch.zeros(2, dtype=torch.int64))
