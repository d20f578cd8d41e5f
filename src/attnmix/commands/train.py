"""Train a vision transformer by a recipe.

Every key of the recipe can be set on the command line: --lr 1e-3, --optimizer.weight_decay 0.1,
--method_options.mixup_prob 0.5. The defaults shown below are the recipe's.
"""

import os
import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from attnmix.training.arguments import add_recipe_arguments, recipe_from_arguments

IN_SEVERAL_PROCESSES = True
EXAMPLES = """
examples:
  attnmix train quickstart --method smmix --out runs/smmix
  attnmix train quickstart --method smmix --out runs/smmix --resume          # after an interruption
  attnmix train quickstart --method smmix --out runs/smmix --resume --epochs 60
  attnmix train folder --data path/to/images --model deit_tiny_patch16_224 --out runs/mine
  attnmix train quickstart --help                                            # its values as defaults
  torchrun --nproc-per-node 8 -m attnmix train folder --data path/to/images --out runs/eight
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add RECIPE, --out, --resume, --force and every key of the recipe."""
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder of the run: metrics, checkpoint, model; on several nodes one that all of them share",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument(
        "--force", action="store_true", help="resume although the recipe or the number of processes has changed"
    )
    add_recipe_arguments(parser)


def run(arguments: Namespace) -> int:
    """Train and print where the results lie; 130 after Ctrl-C, 143 after SIGTERM."""
    from attnmix.training.checkpoint import has_checkpoint
    from attnmix.training.loop import train
    from attnmix.training.stopping import Stopped

    recipe = recipe_from_arguments(arguments)
    out = Path(arguments.out)
    is_first = os.environ.get("RANK", "0") == "0"  # the others of torchrun's say nothing
    if arguments.force and not arguments.resume:
        raise ValueError("--force says how to resume: give --resume with it")
    try:
        result = train(recipe, out, resume=arguments.resume, force=arguments.force)
    except Stopped as stopped:
        if is_first:
            print(f"\nstopped by {stopped}, and saved: the same command with --resume goes on", file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        again = "the same command with --resume goes on from the last checkpoint"
        if is_first:
            print(
                f"\ninterrupted; {again if has_checkpoint(out) else 'no checkpoint yet: start again'}",
                file=sys.stderr,
            )
        return 130
    if not is_first:
        return 0
    top5 = "" if result.top5 is None else f", top-5 {result.top5:.1f} %"
    print(f"top-1 {result.top1:.1f} %{top5} in {result.seconds:.0f} s, {result.images_per_second:.0f} images/s")
    print(f'model: {result.model}  (timm.create_model("local-dir:{result.model}", pretrained=True))')
    print(f"curves: {out / 'metrics.jsonl'}, or tensorboard --logdir {out}")
    return 0
