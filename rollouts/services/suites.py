"""Suites: sealed once, by digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Max
from django.utils import timezone

from rollouts import audit, permissions
from rollouts.engine.dialogue import offered_tools, wanted_tools
from rollouts.errors import Conflict
from rollouts.leakage import Labelled, best_single_feature, prompt_sha256, schema_sha256, user_text
from rollouts.models import Case, Suite
from rollouts.races import settled
from rollouts.services.names import require_slug
from rollouts.suite_format import CaseSpec, ParsedSuite, parse_suite

# scorers whose cases send their tools beside the messages; elsewhere tools are what the messages say of them
SEND_TOOLS = ("function_call", "rules")


def seal(*, name: str, data: bytes, by: User, source: str = "", scorer: str = "decision") -> Suite:
    """Seal the cases of a JSONL file as the next version of a suite; the same content again gives the suite there is.

    `scorer` is one of `suite_format.SCORERS`. Raises `InvalidInput` with line and field; then nothing is written.
    """
    permissions.require_can_register(by)
    require_slug("name", name)
    parsed = parse_suite(data, source=source or name, scorer=scorer)
    # before the transaction: a database that locks whole must not wait for it
    leak = best_single_feature([_labelled(parsed.scorer, case) for case in parsed.cases])
    return settled(lambda: _keep(name, parsed, by, source, leak))


def _keep(name: str, parsed: ParsedSuite, by: User, source: str, leak: dict[str, Any] | None) -> Suite:
    same = Suite.objects.filter(digest=parsed.digest).first()
    if same is not None:
        if same.name != name:
            raise Conflict(f"These cases are sealed already as {same}. Use that suite.", suite=str(same))
        return same
    last = Suite.objects.filter(name=name).aggregate(Max("version"))["version__max"]
    suite = Suite.objects.create(
        name=name,
        version=(last or 0) + 1,
        digest=parsed.digest,
        scorer=parsed.scorer,
        case_count=len(parsed.cases),
        schema_sha256=schema_sha256(
            tool for case in parsed.cases for tool in case.content.get("tools") or ()
        ),
        leak=leak,
        source=source[:200],
        sealed_at=timezone.now(),
        sealed_by=by,
    )
    Case.objects.bulk_create(
        (
            Case(
                suite=suite,
                position=position,
                key=case.key,
                family=case.family,
                group=case.group,
                content=case.content,
                expects_call=case.expects_call,
                digest=case.digest,
                prompt_sha256=_prompt(parsed.scorer, case.content),
            )
            for position, case in enumerate(parsed.cases)
        ),
        batch_size=500,
    )
    audit.record("suite.sealed", subject=suite, actor=by, digest=suite.digest, cases=suite.case_count)
    return suite


def _shown_tools(scorer: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that the model is shown, beside the messages or by them."""
    if scorer == "rules" and not wanted_tools(content):
        return []  # asked as text
    return offered_tools(content)


def _prompt(scorer: str, content: Mapping[str, Any]) -> str:
    beside = _shown_tools(scorer, content) if scorer in SEND_TOOLS else None
    return prompt_sha256(content["messages"], beside)


def _labelled(scorer: str, case: CaseSpec) -> Labelled:
    names = [tool["name"] for tool in _shown_tools(scorer, case.content)]
    return Labelled(user_text(case.content["messages"]), names, case.expects_call)
