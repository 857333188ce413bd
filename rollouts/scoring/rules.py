"""Rules: checks that a program can make of an answer's text and calls. The whole task is done when every check passes.

Checks of outcome say what the answer must say or do, checks of form how it must look. A case of form alone measures
nothing, so `suite_format` refuses it, with everything else that could not be checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import re2

from rollouts.scoring.base import Answer, Score
from rollouts.scoring.classes import kind_of
from rollouts.scoring.marker import only_denied
from rollouts.scoring.tools import wire_name

OUTCOME_OPS: Final = ("contains", "not_contains", "exact", "regex", "tool_called", "no_refusal")
LENGTH_OPS: Final = ("min_chars", "max_chars")
SECTION_OPS: Final = ("section_present", "section_contains")
OPS: Final = (*OUTCOME_OPS, *LENGTH_OPS, *SECTION_OPS)

MAX_PATTERN_CHARS = 1000
# RE2's time is at worst the size of the compiled program times the text's; a case's patterns share this much
MAX_PROGRAM_SIZE = 2000
REGEX_MEMORY_BYTES = 4 << 20

REFUSALS = (
    "cannot complete",
    "i cannot",
    "i can't",
    "i'm unable",
    "i am unable",
    "unable to complete",
    "sorry, i can't",
    "sorry, i cannot",
    "no can do",
)
# an answer of this length that starts like a refusal explains itself
EXPLAINED_CHARS = 600
MARKDOWN_LEAD = re.compile(r"(?:[>\-*_#\s]|[0-9]+[.)])*+")
HEADING = re.compile(r" {0,3}#{1,6}(?!#)(.*)")
ATX_HEADING = re.compile(r" {0,3}#{1,6}[ \t](.*)")
BOLD_LINE = re.compile(r" {0,3}\*\*(.+)\*\*:?")
NOT_WORD = re.compile(r"\W+")


def score(content: Mapping[str, Any], answer: Answer) -> Score:
    """Scores an answer by the case's checks. Never raises because of it.

    `score` is the share of checks that pass, `tool` whether all tool_called checks do. `details` holds each check's
    outcome even where the answer was cut off or empty and is therefore wrong.
    """
    kind = kind_of(answer)
    text = (answer.text or "").encode(errors="replace").decode()
    checks = []
    for check in content["checks"]:
        op, arg = check["op"], check.get("arg")
        outcome, problem = _tool_called(arg, answer) if op == "tool_called" else (TESTS[op](text, arg), "")
        checks.append({"op": op, "arg": arg, "passed": outcome, **({"problem": problem} if problem else {})})
    called = [check["passed"] for check in checks if check["op"] == "tool_called"]
    passed = sum(check["passed"] for check in checks)
    return Score(
        answer_class=kind.answer_class,
        exact=kind.usable and passed == len(checks),
        tool=kind.usable and all(called) if called else None,
        score=passed / len(checks) if kind.usable else 0.0,
        details={**({"reason": kind.reason} if kind.reason else {}), "checks": checks},
    )


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """The pattern for RE2, which takes time linear in the text. Raises `ValueError` with RE2's or our own reason."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"has {len(pattern)} characters, and at most {MAX_PATTERN_CHARS} are taken")
    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES
    options.log_errors = False
    # only whether there is a match is asked
    options.never_capture = True
    try:
        regex = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(
            "is not understood: " + (reason.decode() if isinstance(reason, bytes) else str(reason))
        ) from error
    if regex.programsize > MAX_PROGRAM_SIZE:
        raise ValueError(f"compiles to {regex.programsize} steps, and at most {MAX_PROGRAM_SIZE} are taken")
    return regex


def words(text: str) -> str:
    """The words of a text in lower case, one blank between them: how `exact` compares."""
    return NOT_WORD.sub(" ", text.lower()).strip()


def _contains(text: str, arg: str) -> bool:
    return arg.lower() in text.lower()


def _not_contains(text: str, arg: str) -> bool:
    return not _contains(text, arg)


def _exact(text: str, arg: str) -> bool:
    return f" {words(arg)} " in f" {words(text)} "


def _regex(text: str, arg: str) -> bool:
    regex, data = compiled(arg), text.encode()
    # `$` also stands before one last line break: models end their answers with one
    return bool(regex.search(data) or (data.endswith(b"\n") and regex.search(data[:-1])))


def _no_refusal(text: str, _arg: None) -> bool:
    lead = MARKDOWN_LEAD.match(text)
    assert lead is not None
    said = text[lead.end() :].rstrip()
    start = said[:160].lower().replace("’", "'")
    return bool(said) and not (len(said) < EXPLAINED_CHARS and start.startswith(REFUSALS))


def _min_chars(text: str, arg: int) -> bool:
    return len(text) >= arg


def _max_chars(text: str, arg: int) -> bool:
    return len(text) <= arg


def _section_present(text: str, arg: str) -> bool:
    """A heading that ends with the name, a line in bold that holds it, or a label `name:` at a line's start."""
    name = arg.strip().casefold()
    for line in text.split("\n"):
        line = line.rstrip().casefold()
        if line.startswith(f"{name}:"):
            return True
        if name in line:
            heading, bold = HEADING.fullmatch(line), BOLD_LINE.fullmatch(line)
            if (heading and heading[1].endswith(name)) or (bold and name in bold[1]):
                return True
    return False


def _section_contains(text: str, arg: str) -> bool:
    """An ATX heading that holds the name anywhere."""
    name = arg.strip().casefold()
    headings = (ATX_HEADING.fullmatch(line.rstrip("\r")) for line in text.split("\n"))
    return any(heading is not None and name in heading[1].casefold() for heading in headings)


def _tool_called(name: str, answer: Answer) -> tuple[bool, str]:
    """Whether the tool was called, and what is wrong or doubtful about it.

    On the tools route only a call that ran counts; what the text says of a call never does. On the marker route a
    marker counts as a claim, also in a sentence that denies it, which is noted.
    """
    wanted = wire_name(name).casefold()
    calls = [call for call in answer.tool_calls if wire_name(call.name).casefold() == wanted]
    if answer.route == "marker":
        if not calls:
            return False, "no marker names it"
        denied = only_denied(answer.text or "", name)
        return True, "claimed in a sentence that denies it" if denied else ""
    if any(call.executed for call in calls):
        return True, ""
    return False, "called, but it never ran" if calls else "not called"


TESTS: Final[Mapping[str, Callable[[str, Any], bool]]] = {
    "contains": _contains,
    "not_contains": _not_contains,
    "exact": _exact,
    "regex": _regex,
    "no_refusal": _no_refusal,
    "min_chars": _min_chars,
    "max_chars": _max_chars,
    "section_present": _section_present,
    "section_contains": _section_contains,
}
