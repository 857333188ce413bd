"""Rules of sealing suites for each scorer, by service, API and command, and of what a policy may ask of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from promotion.services import policies
from rollouts.engine.planner import digest_of_stored_cases
from rollouts.errors import Conflict, InvalidInput
from rollouts.models import Case, Suite
from rollouts.services import suites
from tests import factories
from tests.api.conftest import Api, token_of
from tests.factories import floor
from tests.scoring.test_bfcl import ANSWER, question
from tests.scoring.test_suite_rows import OWN, jsonl, row

pytestmark = pytest.mark.django_db


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


@pytest.fixture
def api(engineer: User) -> Api:
    return Api(token_of(engineer))


def sealed(by: User, scorer: str, *rows: dict[str, Any], name: str = "s") -> Suite:
    return suites.seal(name=name, data=jsonl(*(rows or [row(scorer)])), by=by, scorer=scorer)


@pytest.mark.parametrize("scorer", OWN)
def test_a_suite_keeps_its_scorer_its_contents_and_where_a_call_is_right(engineer: User, scorer: str):
    suite = sealed(engineer, scorer)
    found = Case.objects.get(suite=suite)
    assert suite.scorer == scorer
    assert found.content["tags"] == {"level": 3}
    assert found.expects_call is (scorer == "function_call")
    assert digest_of_stored_cases(suite) == suite.digest


def test_the_same_rows_for_another_scorer_are_another_suite(engineer: User):
    plain = {"example_id": "c", "family": "f", "messages": [{"role": "user", "content": "x"}]}
    first = sealed(engineer, "rules", {**plain, "checks": [{"op": "no_refusal"}]})
    second = sealed(engineer, "judge", {**plain, "rubric": "Is kind."})
    assert (first.version, second.version) == (1, 2) and first.digest != second.digest
    with pytest.raises(Conflict):
        sealed(engineer, "judge", {**plain, "rubric": "Is kind."}, name="other")


def test_an_unknown_scorer_seals_nothing(engineer: User):
    with pytest.raises(InvalidInput, match="use one of decision") as refused:
        sealed(engineer, "fancy", row("rules"))
    assert refused.value.field == "scorer"
    assert not Suite.objects.exists()


# API


def test_the_scorer_of_an_upload_is_given_in_the_query_or_in_the_form(api: Api, tmp_path: Path):
    file = tmp_path / "cases.jsonl"
    file.write_bytes(jsonl(row("rules")))
    made = api.upload("suites?name=s", {"file": file, "scorer": "rules"}).json()
    assert made["scorer"] == "rules"
    assert api.upload("suites?name=s&scorer=rules", {"file": file}).json() == made
    assert api.upload("suites?name=s&scorer=rules", {"file": file, "scorer": "rules"}).json() == made
    raw = api.send(
        "POST", "suites?name=s&scorer=rules", raw=file.read_bytes(), Content_Type="application/x-ndjson"
    )
    assert raw.status_code == 201 and raw.json() == made


def test_a_suite_without_a_named_scorer_is_one_of_decisions(api: Api, tmp_path: Path):
    file = tmp_path / "cases.jsonl"
    file.write_bytes(jsonl(factories.call_case("one")))
    assert api.upload("suites?name=s", {"file": file}).json()["scorer"] == "decision"


def test_two_scorers_or_an_unknown_one_are_refused_by_field(api: Api, tmp_path: Path):
    file = tmp_path / "cases.jsonl"
    file.write_bytes(jsonl(row("rules")))
    for query, fields in (
        ("&scorer=judge", {"scorer": "rules"}),
        ("", {"scorer": "fancy"}),
        ("&scorer=fancy", {}),
    ):
        found = api.upload(f"suites?name=s{query}", {"file": file, **fields}, status=400).json()
        assert found["field"] == "scorer"
    assert not Suite.objects.exists()


# command


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("seal_suite", *args, stdout=out)
    return out.getvalue()


def test_the_command_seals_for_the_scorer_it_is_given(engineer: User, tmp_path: Path):
    file = tmp_path / "cases.jsonl"
    file.write_bytes(jsonl(row("judge")))
    assert "scorer judge" in run("s", str(file), "--scorer", "judge", "--as", "engineer")
    assert Suite.objects.get().scorer == "judge"


def test_the_command_takes_the_leaderboards_files(engineer: User, tmp_path: Path):
    file, right = tmp_path / "questions.json", tmp_path / "answers.json"
    file.write_bytes(jsonl(question()))
    right.write_bytes(jsonl(ANSWER))
    calls = ("--scorer", "function_call", "--as", "engineer")
    run("calls", str(file), "--bfcl-answers", str(right), *calls)
    run("declines", str(file), "--bfcl-answers", "none", *calls)
    assert dict(Suite.objects.values_list("name", "cases__expects_call")) == {
        "calls": True,
        "declines": False,
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--bfcl-answers", "none"), "needs --scorer function_call"),
        (("--bfcl-answers", "/no/such/file", "--scorer", "function_call"), "No such file"),
        (("--bfcl-answers", "none", "--scorer", "function_call"), "line 1"),
        (("--scorer", "fancy"), "invalid choice"),
    ],
)
def test_the_command_says_what_is_missing(engineer: User, tmp_path: Path, args: tuple[str, ...], says: str):
    file = tmp_path / "questions.json"
    file.write_bytes(jsonl(row("rules")))
    with pytest.raises(CommandError, match=says):
        run("s", str(file), *args, "--as", "engineer")
    assert not Suite.objects.exists()


# policies


def many(scorer: str, count: int = 60) -> list[dict[str, Any]]:
    """Cases whose prompts differ: a bound counts distinct prompts."""
    return [
        row(scorer, example_id=f"case_{number}", messages=[{"role": "user", "content": f"Request {number}."}])
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("scorer", "metric", "measured"),
    [
        ("rules", "decision", "tool, exact"),
        ("rules", "safe", "tool, exact"),
        ("rules", "json_valid", "tool, exact"),
    ],
)
def test_a_gate_may_not_ask_for_a_metric_the_suites_scorer_does_not_measure(
    engineer: User, scorer: str, metric: str, measured: str
):
    suite = sealed(engineer, scorer, *many(scorer))
    gates = [floor("generalization_accuracy_floor", suite.digest, metric, "0.5")]
    with pytest.raises(InvalidInput) as refused:
        policies.validate(factories.policy_document([suite], extra=gates))
    assert refused.value.field == "document.gates.3.metric"
    assert f"It measures {measured}." in refused.value.message


@pytest.mark.parametrize(
    ("scorer", "metric"),
    [
        ("rules", "exact"),
        ("function_call", "decision"),
        ("function_call", "tool"),
        ("function_call", "exact"),
    ],
)
def test_a_gate_may_ask_for_a_metric_that_is_measured(engineer: User, scorer: str, metric: str):
    suite = sealed(engineer, scorer, *many(scorer))
    gates = [floor("generalization_accuracy_floor", suite.digest, metric, "0.5")]
    assert policies.validate(factories.policy_document([suite], extra=gates))


def test_a_measured_metric_that_no_case_has_is_still_refused(engineer: User):
    suite = sealed(engineer, "rules", *many("rules"))
    gates = [floor("generalization_accuracy_floor", suite.digest, "tool", "0.5")]
    with pytest.raises(InvalidInput, match="no case of s has the metric tool"):
        policies.validate(factories.policy_document([suite], extra=gates))


def test_a_judges_word_is_no_evidence_for_a_gate(engineer: User):
    plain, judged = factories.suite(engineer), sealed(engineer, "judge", *many("judge"))
    with pytest.raises(InvalidInput, match="no evidence for a gate yet") as refused:
        policies.validate(factories.policy_document([plain, judged]))
    assert refused.value.field == "document.suites.1.digest"
