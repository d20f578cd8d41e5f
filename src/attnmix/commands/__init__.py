"""What a person types: one file a command.

A command module has a docstring (its first line stands in `attnmix --help`, all of it opens the
command's own help), `EXAMPLES` (closes that help), `add_arguments(parser)` and `run(arguments) -> exit code`;
`IN_SEVERAL_PROCESSES` where torchrun may start it.
One line in `attnmix.cli.COMMANDS` plugs it in. Import what is heavy inside `run`, so that help stays quick.
"""
