"""Push an exported model to the Hugging Face hub, and nothing else of the run.

Weights, configuration and model card: it says first what goes where, and asks. Training never pushes.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

EXAMPLES = """
examples:
  attnmix push runs/smmix USER/NAME --private
  attnmix push runs/smmix/model USER/NAME --message "60 epochs" --yes    # asks nothing
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add RUN_OR_EXPORT, USER/NAME, --private, --message and --yes."""
    parser.add_argument("export", metavar="RUN_OR_EXPORT", help="folder of a run, or of its exported model")
    parser.add_argument("repository", metavar="USER/NAME", help="of the hub; made where it does not exist")
    parser.add_argument("--private", action="store_true", help="only for you and those you let in")
    parser.add_argument("--message", help="of the commit")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: Namespace) -> int:
    """Push, and print the model's address; 1 where the answer is no."""
    from huggingface_hub import HfApi, get_token

    folder, files = find_export(Path(arguments.export).expanduser())
    repository = _checked_name(arguments.repository)
    if not arguments.yes and not sys.stdin.isatty():
        raise ValueError("push asks before it uploads, and there is no terminal to ask on: add --yes")
    if get_token() is None:
        raise ValueError("the hub wants to know who you are: run `hf auth login`, or set HF_TOKEN")
    api = HfApi()
    with _hub_errors(repository):
        is_there, what = _look_up(api, repository, private=arguments.private)
    _say(folder, files, f"{api.endpoint}/{repository} ({what})")
    if not arguments.yes and input("push? [y/N] ").strip().lower() not in ("y", "yes"):
        print("nothing was pushed")
        return 1
    with _hub_errors(repository):
        if not is_there:  # still not: what has come to be there while we asked may be public
            api.create_repo(repository, private=arguments.private, exist_ok=False)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=files,
            commit_message=arguments.message or f"Export of {folder.resolve().parent.name} by attnmix",
        )
    print(f'{api.endpoint}/{repository}  (timm.create_model("hf-hub:{repository}", pretrained=True))')
    return 0


def find_export(folder: Path) -> tuple[Path, list[str]]:
    """Return the exported model's folder, of a run or itself, and the names of its files.

    Raises:
        FileNotFoundError: no such folder, or no whole export in it.
    """
    from attnmix.commands.trained import EXPORT
    from attnmix.training.export import CARD, FILES

    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r} is not there; expected the folder of a run or of its export")
    needed = [name for name in FILES if name != CARD]
    for export in (folder / EXPORT, folder):
        if all((export / name).is_file() for name in needed):
            return export, [name for name in FILES if (export / name).is_file()]
    raise FileNotFoundError(
        f"{str(folder)!r} holds no exported model ({' and '.join(needed)}, there or in {EXPORT}/): a run has one "
        "when it is finished"
    )


def _checked_name(repository: str) -> str:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(f"{repository!r} is no name on the hub: {error}") from error
    if "/" not in repository:
        raise ValueError(f"{repository!r} does not say whose it is: want USER/{repository}")
    return repository


def _look_up(api: Any, repository: str, *, private: bool) -> tuple[bool, str]:
    """Whether the repository exists, and what a person wants to know of it."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        is_private = api.model_info(repository).private
    except RepositoryNotFoundError:
        return False, "new, private" if private else "new, public: everyone can read it"
    if private and not is_private:
        raise ValueError(
            f"{repository} exists and is public, which --private does not change: push to a new name, or make it "
            "private on the hub first"
        )
    return True, f"exists, {'private' if is_private else 'public'}: its files of these names are replaced"


def _say(folder: Path, files: list[str], where: str) -> None:
    from attnmix.training.export import CARD

    print(f"from {folder}")
    for name in files:
        print(f"  {name}  {(folder / name).stat().st_size / 1e6:.2f} MB")
    if CARD not in files:
        print(f"  no {CARD}: an older export, the hub shows no card for it")
    print(f"to {where}")


@contextlib.contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """One sentence for whatever the network or the hub does not do."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise OSError(f"the hub refuses: this token is not valid, or may not write to {repository}") from error
        reason = error.server_message or str(error).partition("\n")[0]
        raise OSError(f"the hub refuses {repository} ({status}): {reason}") from error
    except OfflineModeIsEnabled as error:
        raise OSError("HF_HUB_OFFLINE is set: nothing can be pushed") from error
    except ValueError:
        raise  # ours
    except Exception as error:  # the HTTP library's own kinds, and the uploader's
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OSError(f"the hub cannot be reached for {repository}: {reason}") from error
