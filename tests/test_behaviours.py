"""Each behaviour of docs/behaviours.md is held by a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "behaviours.md"
ROW = re.compile(r"\| ([SEG])([1-9][0-9]*) \| ([^|]+) \| `(tests/[\w/]+\.py)::(test_\w+)` \|")
TABLES = {"S": "Samples", "E": "Attempts, answers and budgets", "G": "Calls, failures and counts"}


class Row(NamedTuple):
    table: str
    number: int
    behaviour: str
    file: str
    test: str


def sections(text: str) -> dict[str, str]:
    """Heading of the second level -> what stands under it."""
    _, *rest = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(rest[::2], rest[1::2], strict=True))


def lines_of_tables(text: str) -> list[str]:
    """Every line of a table but its two head lines."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line for line in lines if line != "| id | behaviour | test |" and set(line) != {"|", "-"}]


def rows(text: str) -> list[Row]:
    found = [ROW.fullmatch(line) for line in lines_of_tables(text)]
    return [Row(match[1], int(match[2]), *match.groups()[2:]) for match in found if match is not None]


@cache
def named_in(file: str) -> frozenset[str]:
    """The test functions of a module; none where there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    functions = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def missing(found: list[Row]) -> list[str]:
    return [f"{row.file}::{row.test}" for row in found if row.test not in named_in(row.file)]


def test_every_line_of_a_table_is_a_behaviour_with_one_test() -> None:
    text = DOCUMENT.read_text()

    assert [line for line in lines_of_tables(text) if ROW.fullmatch(line) is None] == []
    assert {row.table for row in rows(text)} == set(TABLES)


def test_every_test_that_is_named_exists() -> None:
    assert missing(rows(DOCUMENT.read_text())) == []


def test_ids_count_from_one_in_each_table_and_stand_where_they_belong() -> None:
    parts = sections(DOCUMENT.read_text())

    for letter, heading in TABLES.items():
        found = rows(parts[heading])
        assert {row.table for row in found} == {letter}
        assert [row.number for row in found] == list(range(1, len(found) + 1))


def test_no_behaviour_is_said_twice() -> None:
    found = rows(DOCUMENT.read_text())

    said = [(row.table, row.behaviour) for row in found if not row.behaviour.startswith("So does ")]
    assert len(said) == len(set(said))
    assert all(row.behaviour.endswith(".") for row in found)


def test_ids_that_are_referred_to_exist() -> None:
    text = DOCUMENT.read_text()
    known = {f"{row.table}{row.number}" for row in rows(text)}
    parts = sections(text)

    named = set(re.findall(r"\b[SEG][0-9]+\b", parts["Decided differently"]))
    assert named and named <= known
    later = set(re.findall(r"\b[SEG][0-9]+\b", parts["Not here yet"]))
    assert not later & known


def test_what_is_decided_otherwise_and_what_is_not_here_is_listed() -> None:
    parts = sections(DOCUMENT.read_text())

    for heading in ("Decided differently", "Not here yet"):
        assert re.findall(r"^- \S", parts[heading], flags=re.MULTILINE)


def test_a_test_that_is_gone_would_be_found() -> None:
    def row(file: str, test: str) -> Row:
        return Row("G", 1, "It holds.", file, test)

    here = "tests/test_behaviours.py"
    assert missing([row(here, "test_no_behaviour_is_said_twice")]) == []
    assert missing([row(here, "test_gone"), row("tests/gone.py", "test_gone")]) == [
        f"{here}::test_gone",
        "tests/gone.py::test_gone",
    ]
    assert missing([row(here, "missing")]) == [f"{here}::missing"]  # no test
