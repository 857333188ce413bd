"""What is registered is checked first, known by its content, and never changed afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts import store
from rollouts.errors import Conflict, InvalidInput, NotAllowed
from rollouts.models import AuditEvent, Backend, BaseModel, Case, Subject, Suite
from rollouts.services import backends, runs, subjects, suites
from tests import factories
from tests.factories import call_case, decline_case, jsonl

pytestmark = pytest.mark.django_db


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


# suites


def test_a_suite_sealed_twice_is_the_same_row(engineer: User) -> None:
    data = jsonl([call_case("a"), decline_case("b")])

    first = suites.seal(name="named", data=data, by=engineer)
    again = suites.seal(name="named", data=data, by=engineer)

    assert first == again and Suite.objects.count() == 1 and Case.objects.count() == 2
    assert AuditEvent.objects.filter(action="suite.sealed").count() == 1


def test_line_ends_key_order_and_blank_lines_do_not_make_another_suite(engineer: User) -> None:
    rows = [call_case("a"), decline_case("b")]
    first = suites.seal(name="named", data=jsonl(rows), by=engineer)
    other = b"\r\n\r\n".join(json.dumps(row, sort_keys=True, indent=None).encode() for row in rows) + b"\r\n"

    assert suites.seal(name="named", data=other, by=engineer) == first


def test_other_cases_under_the_same_name_are_the_next_version(engineer: User) -> None:
    first = suites.seal(name="named", data=jsonl([call_case("a")]), by=engineer)
    second = suites.seal(name="named", data=jsonl([call_case("a"), call_case("b")]), by=engineer)

    assert (first.version, second.version) == (1, 2)
    assert first.digest != second.digest
    assert first.cases.count() == 1


def test_the_order_of_cases_belongs_to_the_content(engineer: User) -> None:
    first = suites.seal(name="named", data=jsonl([call_case("a"), call_case("b")]), by=engineer)

    assert suites.seal(name="named", data=jsonl([call_case("b"), call_case("a")]), by=engineer) != first


def test_the_same_cases_under_another_name_are_refused(engineer: User) -> None:
    suites.seal(name="named", data=jsonl([call_case("a")]), by=engineer)

    with pytest.raises(Conflict, match="sealed already as named v1"):
        suites.seal(name="other", data=jsonl([call_case("a")]), by=engineer)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (jsonl([call_case("a"), call_case("a")]), "line 2: example_id"),
        (jsonl([call_case("a")]) + b"{broken\n", "line 2"),
        (b"", "named"),
        (b"\xff\xfe", "line 1"),
        (b"[]\n", "line 1"),
    ],
)
def test_a_broken_suite_is_refused_whole_with_its_line(engineer: User, data: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        suites.seal(name="named", data=data, by=engineer)

    assert refused.value.field == field
    assert not Suite.objects.exists() and not Case.objects.exists() and not AuditEvent.objects.exists()


def test_what_applies_to_a_case_is_fixed_when_it_is_sealed(engineer: User) -> None:
    suites.seal(name="named", data=jsonl([call_case("a"), decline_case("b")]), by=engineer)

    assert dict(Case.objects.values_list("key", "expects_call")) == {"a": True, "b": False}


@pytest.mark.parametrize("name", ["", "Named", "a/b", "..", "a" * 61])
def test_a_suite_has_a_name_that_can_stand_in_a_path(engineer: User, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        suites.seal(name=name, data=jsonl([call_case("a")]), by=engineer)


# backends


def save(by: User, **changes: Any) -> Backend:
    values: dict[str, Any] = {
        "name": "b",
        "kind": "openai_compatible",
        "config": {"base_url": "https://host/v1"},
        "by": by,
    }
    return backends.save(**{**values, **changes})


def test_an_unchanged_backend_is_the_revision_there_is(engineer: User) -> None:
    first = save(engineer)

    assert save(engineer) == first
    assert save(engineer, config={"base_url": "https://host/v1/"}) == first
    assert AuditEvent.objects.filter(action="backend.saved").count() == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"base_url": "https://other/v1"}},
        {"concurrency": 2},
        {"timeout_s": 7},
        {"max_attempts": 1},
        {"key_env": "ASSAY_KEY_OTHER"},
        {"prompt_price": 0},
        {"kind": "llama_cpp", "config": {}},
    ],
)
def test_a_changed_backend_is_a_new_revision_and_leaves_the_old_one(
    engineer: User, changes: dict[str, Any]
) -> None:
    first = save(engineer)
    before = Backend.objects.filter(pk=first.pk).values().get()

    second = save(engineer, **changes)

    assert (second.revision, second.digest == first.digest) == (2, False)
    assert Backend.objects.filter(pk=first.pk).values().get() == before


def test_a_change_that_is_taken_back_is_a_third_revision(engineer: User) -> None:
    save(engineer)
    save(engineer, timeout_s=7)

    assert save(engineer).revision == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "carrier_pigeon"}, "kind"),
        ({"config": {}}, "config.base_url"),
        ({"config": {"base_url": "https://h/v1", "colour": "red"}}, "config.colour"),
        ({"config": {"base_url": 7}}, "config.base_url"),
        ({"config": {"base_url": "ftp://h/v1"}}, "config.base_url"),
        ({"config": {"base_url": "https://"}}, "config.base_url"),
        ({"config": {"base_url": "https://user:secret@h/v1"}}, "config.base_url"),
        ({"config": {"base_url": "https://h/v1?key=secret"}}, "config.base_url"),
        ({"config": None}, "config"),
        ({"kind": "llama_cpp", "config": {"threads": 0}}, "config.threads"),
        ({"kind": "llama_cpp", "config": {"context": "2048"}}, "config.context"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 1025}, "concurrency"),
        ({"timeout_s": 1.5}, "timeout_s"),
        ({"timeout_s": 3601}, "timeout_s"),
        ({"max_attempts": 11}, "max_attempts"),
        ({"key_env": "sk-abcdef1234567890"}, "key_env"),
        ({"key_env": "lower_case"}, "key_env"),
        ({"prompt_price": -1}, "prompt_price"),
        ({"completion_price": 0.5}, "completion_price"),
        ({"name": "My Backend"}, "name"),
    ],
)
def test_a_senseless_backend_is_refused_with_its_field(
    engineer: User, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        save(engineer, **changes)

    assert refused.value.field == field
    assert not Backend.objects.exists()


def test_a_refused_backend_does_not_repeat_a_password(engineer: User) -> None:
    with pytest.raises(InvalidInput) as refused:
        save(engineer, key_env="sk-abcdef1234567890")

    assert "sk-abcdef" not in refused.value.message


# base models and subjects


def test_a_base_model_is_registered_once(engineer: User) -> None:
    first = factories.base_model(engineer)

    assert factories.base_model(engineer) == first
    with pytest.raises(Conflict, match="registered already as base"):
        factories.base_model(engineer, name="other")
    with pytest.raises(Conflict, match="Another file is registered as base"):
        factories.base_model(engineer, data=b"GGUF other")
    assert BaseModel.objects.count() == 1


def test_a_base_without_a_chat_template_is_refused(engineer: User) -> None:
    with pytest.raises(InvalidInput, match="holds no chat template"):
        subjects.register_base(
            name="base",
            artifact=store.put([b"GGUF"]),
            architecture="llama",
            header={},
            chat_template=None,
            by=engineer,
        )


def test_a_subject_is_known_by_everything_that_shapes_its_answers(engineer: User) -> None:
    base, other = (
        factories.base_model(engineer),
        factories.base_model(engineer, name="other", data=b"GGUF other"),
    )
    one, two = store.put([b"adapter 1"]), store.put([b"adapter 2"])
    values: dict[str, Any] = {
        "base": base,
        "adapter": one,
        "adapter_source_sha256": "s" * 64,
        "sampling": factories.SAMPLING,
    }

    def digest(**changes: Any) -> str:
        return subjects.local_subject(**{**values, **changes}).digest

    digests = [
        digest(),
        digest(base=other),
        digest(adapter=two),
        digest(adapter=None),
        digest(adapter_source_sha256="t" * 64),
        digest(sampling={**factories.SAMPLING, "temperature": 1}),
    ]
    assert len(set(digests)) == 6
    assert digest() == digests[0] and Subject.objects.count() == 6


def test_a_remote_subject_depends_on_model_backend_and_sampling() -> None:
    def digest(**changes: Any) -> str:
        return subjects.remote_subject(
            **{"model": "m", "backend_name": "b", "sampling": {"temperature": 0}, **changes}
        ).digest

    assert (
        len({digest(), digest(model="n"), digest(backend_name="c"), digest(sampling={"temperature": 1})}) == 4
    )
    assert digest() == digest()


@pytest.mark.parametrize("model", ["", "m" * 201])
def test_a_remote_model_has_a_name(model: str) -> None:
    with pytest.raises(InvalidInput, match="model"):
        subjects.remote_subject(model=model, backend_name="b", sampling={})


# who may


@pytest.mark.parametrize("role", ["approver", "auditor", None])
def test_only_engineers_and_administrators_register(engineer: User, role: str | None) -> None:
    by = factories.person("someone", *([role] if role else []))

    for attempt in (
        lambda: suites.seal(name="named", data=jsonl([call_case("a")]), by=by),
        lambda: save(by),
    ):
        with pytest.raises(NotAllowed):
            attempt()

    assert not Suite.objects.exists() and not Backend.objects.exists()


@pytest.mark.parametrize("role", ["approver", "auditor", "administrator", None])
def test_only_engineers_start_cancel_and_repeat_runs(engineer: User, role: str | None) -> None:
    by = factories.person("someone", *([role] if role else []))
    values: dict[str, Any] = {
        "subject": factories.remote_subject(),
        "suite": factories.suite(engineer),
        "backend": save(engineer),
    }
    run = runs.plan(**values, by=engineer)

    for attempt in (
        lambda: runs.plan(**values, by=by, samples=2),
        lambda: runs.cancel(run_id=run.pk, by=by),
        lambda: runs.run_again(run_id=run.pk, by=by),
    ):
        with pytest.raises(NotAllowed, match="may not start, cancel or repeat eval runs"):
            attempt()

    run.refresh_from_db()
    assert run.state == "queued"


def test_an_inactive_engineer_may_do_nothing(engineer: User) -> None:
    inactive = factories.person("gone", "engineer", active=False)

    with pytest.raises(NotAllowed):
        suites.seal(name="named", data=jsonl([call_case("a")]), by=inactive)
    with pytest.raises(NotAllowed):
        save(inactive)
