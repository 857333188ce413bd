"""What two sets of prompts share, what a prompt is, and whether one thing in it gives the label away.

Compared is what the model is asked: the user's messages. System prompts are shared by design and answers may be equal.
Every pair counts and nothing is sampled: two workers find the same, and so does whoever checks it years later.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from rollouts.hashing import canonical_bytes, sha256_bytes, sha256_json
from rollouts.near_duplicates import Near, nearest

FORMAT = 1
NEAR = Decimal("0.8")
MAX_EXAMPLES = 10
MAX_NAME_CHARS = 200

# Invisible where they stand: format characters are removed by category, these are letters and marks by category.
_IGNORABLE = frozenset(
    map(chr, [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, 0xFFA0])
) | frozenset(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
# Scripts without spaces between words: each character is a word.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # Han
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_MINUS = re.compile(r"(?<!\w)[-\u2212](?=\d)")
_MINUS_MARK = "\ufdd0"  # no character: stands for the sign of a negative number until punctuation is gone


class _Characters(dict[int, str]):
    """What becomes of each character, found when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _becomes(chr(code))
        return found


def _becomes(character: str) -> str:
    if character == _MINUS_MARK:
        return "-"
    category = unicodedata.category(character)
    if category[0] in "PZ" or category in ("Cc", "Cs", "Sk"):
        return " "
    spaced = category[0] == "S" or any(first <= ord(character) <= last for first, last in _UNSPACED)
    return f" {character} " if spaced else character


class _Ignored(dict[int, str | None]):
    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        gone = unicodedata.category(character) == "Cf" or character in _IGNORABLE
        self[code] = found = None if gone else character
        return found


_CHARACTERS, _IGNORED = _Characters(), _Ignored()


def normalised(text: str) -> str:
    """The text as it is compared: its words in lower case with one space between them, punctuation gone.

    Compatible characters (NFKC), case and characters that nobody sees make no difference; the sign of a number and
    symbols such as + and $ do. A text of punctuation alone stays as it is but for case and spaces.
    """
    folded = _folded(text)
    words = _MINUS.sub(_MINUS_MARK, folded).translate(_CHARACTERS).split()
    return " ".join(words or folded.split())


def _folded(text: str) -> str:
    """NFKC, casefold and without invisible characters, until nothing changes: one pass can enable another."""
    while True:
        folded = unicodedata.normalize("NFKC", text).casefold().translate(_IGNORED)
        if folded == text:
            return text
        text = folded


class Asked(NamedTuple):
    """One row, as it is compared. `name` is what a report calls it; `text` is normalised."""

    name: str
    id: str | None
    group: str | None
    text: str


def asked(*, name: str, id: str | None, group: str | None, text: str) -> Asked:
    """`text` as it was written."""
    return Asked(name[:MAX_NAME_CHARS], id, group, normalised(text))


def user_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """What the user's messages of a case say, in order."""
    return "\n".join(message["content"] for message in messages if message["role"] == "user")


# overlap

# ours, theirs, how similar
_Example = tuple[str, str, str | None]


def overlap_report(
    ours: Sequence[Asked], theirs: Sequence[Asked], threshold: Decimal = NEAR
) -> dict[str, Any]:
    """What rows of ours share with theirs.

    `ids` and `groups` are distinct values on both sides, `texts` and `near` rows of ours: whose text is one of theirs,
    and, of the others, whose nearest text of theirs has a Jaccard similarity of `threshold` (above 0, up to 1) or more.
    Similar is measured over shingles of 5 words, and over words where either text has fewer than 50.
    """
    assert 0 < threshold <= 1, threshold
    texts, names = {row.text for row in theirs}, {row.text: row.name for row in reversed(theirs)}
    equal = [row for row in ours if row.text in texts]
    ours_left, theirs_left = _distinct(row for row in ours if row.text not in texts), _distinct(theirs)
    near = nearest(list(ours_left), list(theirs_left), threshold)
    near_rows = [(row, near[at]) for row in ours if (at := ours_left.get(row.text)) in near]
    their_texts = list(theirs_left)
    examples: dict[str, Sequence[_Example]] = {
        "text": [(row.name, names[row.text], "1.000000") for row in equal],
        "near": [
            (row.name, names[their_texts[found.theirs]], _similarity(found))
            for row, found in sorted(near_rows, key=_nearest_first)
        ],
        "id": _shared_names(ours, theirs, "id"),
        "group": _shared_names(ours, theirs, "group"),
    }
    return {
        "format": FORMAT,
        "ids": len(_values(ours, "id") & _values(theirs, "id")),
        "groups": len(_values(ours, "group") & _values(theirs, "group")),
        "texts": len(equal),
        "near": len(near_rows),
        "threshold": str(threshold),
        "rows": len(ours),
        "others": len(theirs),
        "examples": _some(examples),
    }


def _distinct(rows: Iterable[Asked]) -> dict[str, int]:
    """Text to its number, in the order of the first row that has it."""
    found: dict[str, int] = {}
    for row in rows:
        found.setdefault(row.text, len(found))
    return found


def _values(rows: Iterable[Asked], field: str) -> set[str]:
    return {value for row in rows if (value := getattr(row, field)) is not None}


def _nearest_first(pair: tuple[Asked, Near]) -> tuple[Fraction, str]:
    row, near = pair
    return -Fraction(near.shared, near.united), row.name


def _similarity(near: Near) -> str:
    return f"{Decimal(near.shared) / near.united:.6f}"


def _shared_names(ours: Sequence[Asked], theirs: Sequence[Asked], field: str) -> list[_Example]:
    first = {getattr(row, field): row.name for row in reversed(theirs)}
    mine = {getattr(row, field): row.name for row in reversed(ours)}
    both = (first.keys() & mine.keys()) - {None}
    return sorted((mine[value], first[value], None) for value in both)


def _some(examples: Mapping[str, Sequence[_Example]]) -> list[dict[str, Any]]:
    """At most `MAX_EXAMPLES`, an equal share for each kind that has any, the rest for the first kinds."""
    taken = dict.fromkeys(examples, 0)
    while sum(taken.values()) < MAX_EXAMPLES:
        open_kinds = [kind for kind, found in examples.items() if taken[kind] < len(found)]
        if not open_kinds:
            break
        taken[min(open_kinds, key=lambda kind: taken[kind])] += 1
    return [
        {"kind": kind, "ours": mine, "theirs": other, "similarity": similarity}
        for kind, found in examples.items()
        for mine, other, similarity in found[: taken[kind]]
    ]


# identity of prompts and tools


def prompt_sha256(messages: Iterable[Mapping[str, Any]], tools: Sequence[Any] | None) -> str:
    """The identity of what the model is shown: the messages as sent, and the tools where they are sent beside them."""
    sent = [{"role": message["role"], "content": message["content"]} for message in messages]
    return sha256_json({"messages": sent, "tools": list(tools) if tools else None})


def schema_sha256(tools: Iterable[Any]) -> str:
    """The identity of a set of tool schemas: order and repeats make no difference. "" where tools are mere names.

    A tool is a name, {name, description, parameters, ...}, or that under "function" as providers take it.
    """
    found: set[tuple[str, bytes]] = set()
    described = False
    for tool in tools:
        plain = plain_tool(tool)
        described = described or len(plain) > 1
        found.add((str(plain.get("name")), canonical_bytes(plain)))
    if not described:
        return ""
    return sha256_bytes(b"[" + b",".join(data for _, data in sorted(found)) + b"]")


def plain_tool(tool: Any) -> dict[str, Any]:
    """A tool as one object, without keys that hold nothing."""
    if not isinstance(tool, Mapping):
        return {"name": tool}
    inner = tool.get("function")
    described = inner if isinstance(inner, Mapping) else tool
    return {key: value for key, value in described.items() if value is not None and key != "type"}


# what gives the label away


class Labelled(NamedTuple):
    """A case as a learner of one rule sees it. `text` is the user's, as it was written; `tools` are names."""

    text: str
    tools: Sequence[str]
    expects_call: bool


MAX_WORDS_OF_A_TEXT = 2_000


class _Rule(NamedTuple):
    right: int
    order: int
    feature: str


def best_single_feature(cases: Sequence[Labelled]) -> dict[str, Any] | None:
    """The one feature of the prompts that says best whether a call is right. None without cases.

    Features: each word of two or more cases, the first word, the text's length and the number of tools at the best
    threshold, each tool shown, a question mark at the end. `majority` is what the commonest label alone reaches, and
    `accuracy` is never less. Of the text, the first 2,000 different words count, so the work is linear in the cases.
    """
    n = len(cases)
    if not n:
        return None
    calls = sum(case.expects_call for case in cases)
    most = max(calls, n - calls)
    rules = [] if most == n else _rules(cases, calls)
    nothing = _Rule(most, -1, "none does better than the commonest label" if rules else "")
    best = min([nothing, *rules], key=lambda rule: (-rule.right, rule.order, rule.feature))
    return {
        "format": FORMAT,
        "label": "expects_call",
        "n": n,
        "majority": f"{most / n:.6f}",
        "feature": best.feature,
        "accuracy": f"{best.right / n:.6f}",
        "features_tried": len(rules),
    }


def _rules(cases: Sequence[Labelled], calls: int) -> list[_Rule]:
    n = len(cases)
    present: Counter[tuple[int, str]] = Counter()
    with_call: Counter[tuple[int, str]] = Counter()
    lengths, shown = [], []
    for case in cases:
        features = _features(case)
        present.update(features)
        if case.expects_call:
            with_call.update(features)
        lengths.append((len(case.text), case.expects_call))
        shown.append((len(case.tools), case.expects_call))
    rules = [
        _rule(order, feature, n, calls, seen, with_call[order, feature])
        for (order, feature), seen in present.items()
        if seen >= 2
    ]
    thresholds = (
        (4, "at least {} tools are shown", shown),
        (5, "the text has at least {} characters", lengths),
    )
    return rules + [_threshold(order, words, values, calls) for order, words, values in thresholds]


def _features(case: Labelled) -> set[tuple[int, str]]:
    words = list(dict.fromkeys(normalised(case.text).split(" ")))[:MAX_WORDS_OF_A_TEXT]
    found = {(0, f'the word "{word[:60]}"') for word in words}
    if case.text.rstrip().endswith(("?", "？")):
        found.add((1, "a question mark at the end"))
    found.add((2, f'the first word "{words[0][:60]}"'))
    return found | {(3, f'the tool "{name[:60]}"') for name in case.tools}


def _rule(order: int, feature: str, n: int, calls: int, seen: int, seen_calls: int) -> _Rule:
    """The better of "with it a call, without it none" and the reverse."""
    right = seen_calls + (n - calls) - (seen - seen_calls)
    if right >= n - right:
        return _Rule(right, order, f"{feature}: a call")
    return _Rule(n - right, order, f"{feature}: no call")


def _threshold(order: int, words: str, values: list[tuple[int, bool]], calls: int) -> _Rule:
    n, seen, seen_calls = len(values), 0, 0
    best = _Rule(-1, order, "")
    ordered = sorted(values, reverse=True)
    for at, (value, expects_call) in enumerate(ordered, start=1):
        seen, seen_calls = seen + 1, seen_calls + expects_call
        if at == n or ordered[at][0] != value:
            rule = _rule(order, words.format(value), n, calls, seen, seen_calls)
            best = rule if rule.right > best.right else best
    return best
