"""What a person types: one file a command.

A command module has a docstring (its first line is the command's line in `attnmix --help`, the rest opens its own
help), `EXAMPLES` (closes its help), `add_arguments(parser)` and `run(arguments) -> exit code`. It is named in
`attnmix.cli.COMMANDS`. Import what is heavy inside `run`, so that help stays quick.
"""
