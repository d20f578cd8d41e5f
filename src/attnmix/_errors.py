"""What an error says, in one line, in the words of who gave the command."""

import re

from attnmix._nearest import nearest

_ONE = re.compile(r'Parser key "(?P<key>[^"]+)": Expected a (?P<kinds>.+?)\. Got value: (?P<value>.*)')
_SEVERAL = re.compile(
    r'Parser key "(?P<key>[^"]+)": Does not validate against any of the Union subtypes '
    r"Subtypes: \[(?P<kinds>.+?)\] Errors: .* Given value: (?P<value>.*)"
)
_KIND = re.compile(r"<class '(\w+)'>|typing\.Literal\[(.+?)\]|(tuple\[float, float\])")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "list": "a list, as [a, b]",
    "tuple": "a list of numbers",
    "tuple[float, float]": "a list of two numbers",
    "NoneType": "null",
}


def plain_message(error: Exception) -> str:
    """The message on one line, without the traceback that torch adds to it in a loader's worker.

    Of a value that jsonargparse refuses: `epochs must be a whole number. Got value: x`.
    """
    text = str(error)
    if "Original Traceback" in text:
        text = re.split(r"\n[\w.]*(?:Error|Exception): ", text)[-1]
    return _refusal(" ".join(text.split()))


def _refusal(said: str) -> str:
    found = _SEVERAL.fullmatch(said) or _ONE.fullmatch(said)
    if found is None:
        return said
    wanted, choices = [], []
    for kind, literal, pair in _KIND.findall(found["kinds"]):
        if literal:
            choices = re.findall(r"'([^']*)'", literal)
            wanted += [repr(choice) for choice in choices]
        elif (kind or pair) in _WORDS:
            wanted.append(_WORDS[kind or pair])
        else:
            return said
    if not wanted:
        return said
    listed = " or ".join([", ".join(wanted[:-1]), wanted[-1]] if len(wanted) > 1 else wanted)
    hint = nearest(found["value"], choices) or "."
    return f"{found['key']} must be {listed}{hint} Got value: {found['value']}"
