"""`python -m attnmix`: the same as the command `attnmix`."""

import sys

from attnmix.cli import main

if __name__ == "__main__":
    sys.exit(main())
