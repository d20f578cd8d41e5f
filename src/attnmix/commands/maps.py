"""Write down what a teacher sees in every place of each training image, for methods that train on it.

The teacher scores all classes in every cell of its own grid, once for each image, and the best of them are kept:
training then needs no teacher. The maps cover whole images, stretched onto the size that the teacher takes, so
that a crop of an image is a crop of its map. Give the recipe as to `attnmix train`, and then train with
--label_maps OUT: crops, flips and RandAugment's moves are followed.

An interrupted command goes on where it stopped when it is given again.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from attnmix.training.arguments import add_recipe_arguments, recipe_from_arguments
from attnmix.training.recipe import Recipe

EXAMPLES = """
examples:
  attnmix maps quickstart --teacher runs/none --out maps/quickstart
  attnmix train quickstart --label_maps maps/quickstart --method token-labeling --out runs/labelled
  attnmix maps deit-small --data path/to/imagenet --teacher dm_nfnet_f6 --image_size 576 --out maps/imagenet \\
    --batch_size 64 --loader.workers 16
"""

KEYS = ("model", "model_options", "data", "data_options", "train_split", "batch_size", "device", "loader")


def add_arguments(parser: ArgumentParser) -> None:
    """Add RECIPE, the teacher, what is kept, --out and the recipe's keys that say which images."""
    parser.add_argument(
        "--teacher",
        required=True,
        help="who scores: timm's name of a model, or the folder of a run of `attnmix train`",
    )
    parser.add_argument(
        "--teacher_options",
        type=dict[str, Any],
        default={},
        help="keywords of timm.create_model, for timm's names",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the maps, which must be new")
    parser.add_argument(
        "--top", type=int, default=None, help="classes kept in each cell; default: 5, or all of fewer"
    )
    parser.add_argument(
        "--image_size",
        type=int,
        default=None,
        help="side of the images that the teacher sees; larger: more cells in a CNN's maps; default: its own",
    )
    names = Recipe.__dataclass_fields__
    add_recipe_arguments(parser, skip=[name for name in names if name not in KEYS])


def run(arguments: Namespace) -> int:
    """Score every training image that is not scored yet; 130 after Ctrl-C."""
    recipe = replace(recipe_from_arguments(arguments), label_maps=None)
    for name in ("top", "image_size"):
        if arguments[name] is not None and arguments[name] < 1:
            raise ValueError(f"{name} is {arguments[name]}, but must be 1 or more")

    from rich.console import Console

    from attnmix.benchmark.device import chosen_device
    from attnmix.commands.map_making import prepare, score_all
    from attnmix.data.label_map_writer import LabelMapWriter
    from attnmix.evaluation.pasting import spelled_out
    from attnmix.methods.frozen import frozen_model
    from attnmix.training.setup import create_data

    console = Console()
    out, device = Path(arguments.out), chosen_device(recipe.device)
    name = spelled_out(arguments.teacher, arguments.teacher_options)
    with console.status("opening data and teacher"):
        images = create_data(recipe)[0]
        teacher = frozen_model(arguments.teacher, arguments.teacher_options, role="teacher").to(device)
        teacher_images, columns, about = prepare(
            images, teacher, recipe, name=name, top=arguments.top, image_size=arguments.image_size
        )
        writer = LabelMapWriter(out, about)
    if writer.done:
        console.print(f"going on after {writer.done} of {about.count} images", highlight=False)
    try:
        right = score_all(writer, teacher, teacher_images, columns, recipe, console)
    except KeyboardInterrupt:
        console.print(
            f"\n{writer.done} of {about.count} images are done, in {writer.part}: the same command goes on",
            highlight=False,
            soft_wrap=True,
        )
        return 130
    store = writer.finish()
    cells = f"{about.grid[0]} x {about.grid[1]} cells, the best {about.top} of {about.num_classes} classes in each"
    print(f"{out}: {about.count} images, {cells}, {_size(about.bytes)}")
    if right is not None:
        chance = 1 / about.num_classes
        print(
            f"the teacher's best class over the whole image is the label's in {100 * right:.1f} % of the images "
            f"(chance {100 * chance:.1f} %)"
        )
        if right < min(2 * chance, (1 + chance) / 2):  # the second: of two classes, twice chance is all
            print("warning: that is hardly more than chance: is this teacher trained, and for these classes?")
    if store.about.missing:
        print(f"{len(store.about.missing)} images could not be read: training passes them over")
    print(f"next: attnmix train {arguments.recipe} --label_maps {out} --method ...")
    return 0


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
