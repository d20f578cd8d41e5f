"""Look at what methods do to images: a picture of mixed images, attention and label weights.

The recipe says the data and the model. Attention-guided methods look through that model: a fresh one, or with
--init the weights of a run.
"""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from attnmix.training.arguments import add_recipe_arguments, recipe_from_arguments

EXAMPLES = """
examples:
  attnmix show quickstart --methods cutmix,smmix --out mixed.png
  attnmix show quickstart --methods all --count 6 --init runs/smmix/model/model.safetensors --out mixed.png
  attnmix show folder --data path/to/images --methods transmix --out mixed.png
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add RECIPE, --methods, --count, --out and every key of the recipe but the method."""
    parser.add_argument(
        "--methods",
        default="all",
        help="comma-separated, options after colons; or all. A teacher that is not named is the model itself",
    )
    parser.add_argument("--count", type=int, default=4, help="mixed images per method")
    parser.add_argument("--out", default="mixed.png", metavar="FILE", help="the picture: .png, .pdf or .svg")
    add_recipe_arguments(parser, skip=("method",))


def run(arguments: Namespace) -> int:
    """Draw the gallery and say where it is."""
    from attnmix.commands.method_specs import parse_methods

    recipe = recipe_from_arguments(arguments)
    specs = parse_methods(arguments.methods, shared=recipe.method_options)
    out = Path(arguments.out)
    if arguments.count < 1:
        raise ValueError(f"count is {arguments.count}, but must be 1 or more")
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{out} is no picture's name; want .png, .pdf or .svg")

    from attnmix.commands.looking import gallery_rows
    from attnmix.commands.runs import first_images, load_evaluation
    from attnmix.commands.trained import learnt_beside
    from attnmix.report import gallery
    from attnmix.training.setup import create_model, model_inputs

    inputs = model_inputs(recipe)
    data = load_evaluation(recipe)
    model = create_model(recipe, num_classes=data.num_classes)
    images, labels, masks = first_images(data, max(arguments.count, 2))
    rows = []
    for spec in specs:
        rows += gallery_rows(
            model,
            spec.taught_by("self"),
            images,
            labels,
            masks=masks,
            class_names=data.class_names,
            mean=inputs["mean"],
            std=inputs["std"],
            seed=recipe.seed,
            learnt=learnt_beside(recipe.init, spec.name),
        )[: arguments.count]
    out.parent.mkdir(parents=True, exist_ok=True)
    gallery(rows).savefig(out, dpi=150)
    print(out)
    return 0
