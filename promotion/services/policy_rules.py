"""What a policy may say: its shape, and the arithmetic of what could never fail or never be met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal

import pydantic
from django.db.models import Count, Q, QuerySet
from django.db.models.expressions import Combinable
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from promotion.checklist import QUESTIONS
from promotion.gates.base import GATES, Params, SuiteParams, parse_params, spent_alpha
from promotion.gates.params import LeakParams
from promotion.gates.regression import least_pairs
from rollouts.errors import InvalidInput
from rollouts.models import Case, Suite
from rollouts.roles import AUDITOR
from rollouts.scoring import SCORER_METRICS
from rollouts.statistics import minimum_n_for_bound

SUITE_DIGEST = r"^[0-9a-f]{64}$"
LAST_GATE = "human_approval_record"
LOOK_BUDGET = "look_budget"
# of each suite: its seal and the measured model's identity, or a number could come from elsewhere
OF_EACH_SUITE = ("sealed_eval_hash", "deployed_artifact_gauntlet")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SuitePart(_Strict):
    digest: Annotated[str, StringConstraints(pattern=SUITE_DIGEST)]


class Sampling(_Strict):
    """What shapes the answers besides the model: sent with every request."""

    temperature: Annotated[int | float, Field(ge=0, le=2)]
    max_tokens: Annotated[int, Field(ge=1, le=32768)]


class Approvers(_Strict):
    group: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,59}$")]
    count: Annotated[int, Field(ge=1, le=20)]


class ChecklistItem(_Strict):
    """What a signer must have seen to. `answered_by` is the signer or a question that the evidence answers."""

    key: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,59}$")]
    text: Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
    answered_by: Literal["reviewer", *QUESTIONS] = "reviewer"  # type: ignore[valid-type]


class ApprovalRule(_Strict):
    """`break_glass` lets an administrator promote without these signatures, to be reviewed afterwards; never without gates."""

    approvers: Annotated[list[Approvers], Field(min_length=1, max_length=10)]
    separation_of_duties: bool
    expires_after_days: Annotated[int, Field(ge=1, le=365)]
    checklist: Annotated[list[ChecklistItem], Field(max_length=20)] = []
    break_glass: bool = False


class Document(_Strict):
    """A policy. `note` is shown on the review page."""

    format: Annotated[int, Field(ge=1, le=1)]
    note: Annotated[str, StringConstraints(max_length=2000)] = ""
    suites: Annotated[list[SuitePart], Field(min_length=1, max_length=100)]
    samples: Annotated[int, Field(ge=1, le=100)]
    sampling: Sampling
    spend_alpha: bool
    gates: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=200)]
    approval: ApprovalRule


def canonical_gate(name: str) -> str:
    """The gate's present name; policies may use a former one and mean the same by it."""
    gate = GATES.get(name)
    return gate.alias_of or name if gate else name


def parse(document: Any) -> Document:
    """Raises `InvalidInput` with the path of the first wrong key."""
    parsed, wrong = _shaped(document)
    if parsed is None:
        raise wrong[0]
    return parsed


def canonical(parsed: Document) -> dict[str, Any]:
    """The values that are stored and hashed. What a policy does not use does not stand in it."""
    values = parsed.model_dump(mode="json")
    for name, unused in (("checklist", []), ("break_glass", False)):
        if values["approval"][name] == unused:
            del values["approval"][name]
    return values


def validate(document: Any) -> Document:
    """A document that can be met and can fail. Raises `InvalidInput` naming the entry and the arithmetic."""
    wrong = problems(document)
    if wrong:
        raise wrong[0]
    return parse(document)


def unlockable_reasons(document: Any) -> list[str]:
    """Why the document cannot become a track's policy, each reason with its path; empty where it can.

    A document that came from elsewhere may be evaluated with such faults (a floor of 0, say), never locked.
    """
    return [problem.message for problem in problems(document)]


def problems(document: Any) -> list[InvalidInput]:
    """Everything wrong with the document, in its order; what is wrong with its shape comes alone."""
    parsed, wrong = _shaped(document)
    return wrong if parsed is None else [*_general(parsed), *_gate_problems(parsed)]


def _shaped(document: Any) -> tuple[Document | None, list[InvalidInput]]:
    try:
        return Document.model_validate(document), []
    except pydantic.ValidationError as error:
        wrong = []
        for part in error.errors():
            path = ".".join(["document", *(str(step) for step in part["loc"])])
            wrong.append(InvalidInput(path, f"{part['msg']} (got {str(part.get('input'))[:80]!r})"))
        return None, wrong


def _general(parsed: Document) -> Iterator[InvalidInput]:
    groups = [part.group for part in parsed.approval.approvers]
    if len(set(groups)) != len(groups):
        yield InvalidInput("document.approval.approvers", "lists a group twice. Add the counts.")
    for index, group in enumerate(groups):
        if group == AUDITOR:
            where = f"document.approval.approvers.{index}.group"
            yield InvalidInput(
                where, "names auditors, who change nothing and so sign nothing. Name another group."
            )
    keys = [item.key for item in parsed.approval.checklist]
    if len(set(keys)) != len(keys):
        yield InvalidInput("document.approval.checklist", "uses a key twice.")
    digests = [part.digest for part in parsed.suites]
    if len(set(digests)) != len(digests):
        yield InvalidInput("document.suites", "lists a suite twice.")


# what the suites have


@dataclass(frozen=True, slots=True)
class Prompts:
    """Distinct prompts: of all cases, of those where a call is right, and of those where it is wrong."""

    every: int
    calls: int
    declines: int

    def having(self, metric: str) -> int:
        return {"tool": self.calls, "safe": self.declines}.get(metric, self.every)


@dataclass(frozen=True, slots=True)
class SuiteSize:
    name: str
    scorer: str
    total: Prompts
    families: dict[str, Prompts] = field(default_factory=dict)
    leak: dict[str, Any] | None = None


def suite_sizes(digests: list[str]) -> dict[str, SuiteSize]:
    """By digest, of those that are sealed. Three queries, whatever the number of suites.

    Cases that show the model the same prompt are one observation; where it was not kept, each case is its own.
    """
    sealed = {suite.pk: suite for suite in Suite.objects.filter(digest__in=digests)}
    cases = Case.objects.filter(suite__in=sealed).order_by()
    totals = {row["suite_id"]: _prompts(row) for row in _counted(cases.values("suite_id"))}
    families: dict[int, dict[str, Prompts]] = {}
    for row in _counted(cases.values("suite_id", "family")):
        families.setdefault(row["suite_id"], {})[row["family"]] = _prompts(row)
    return {
        suite.digest: SuiteSize(
            suite.name, suite.scorer, totals.get(pk, Prompts(0, 0, 0)), families.get(pk, {}), suite.leak
        )
        for pk, suite in sealed.items()
    }


def _counted(rows: QuerySet[Case, dict[str, Any]]) -> QuerySet[Case, dict[str, Any]]:
    return rows.annotate(
        every=_distinct(Q()), calls=_distinct(Q(expects_call=True)), declines=_distinct(Q(expects_call=False))
    )


def _distinct(cases: Q) -> Combinable:
    named = Count("prompt_sha256", distinct=True, filter=cases & ~Q(prompt_sha256=""))
    return named + Count("id", filter=cases & Q(prompt_sha256=""))


def _prompts(row: dict[str, Any]) -> Prompts:
    return Prompts(row["every"], row["calls"], row["declines"])


# gates


def _gate_problems(parsed: Document) -> Iterator[InvalidInput]:
    digests = [part.digest for part in parsed.suites]
    sizes = suite_sizes(digests)
    for index, digest in enumerate(digests):
        yield from _suite_problem(f"document.suites.{index}.digest", digest, sizes)
    entries: list[tuple[str, Params]] = []
    for index, entry in enumerate(parsed.gates):
        where = f"document.gates.{index}"
        if not isinstance(entry.get("gate"), str):
            yield InvalidInput(f"{where}.gate", f"{entry.get('gate')!r} is not a gate. Give its name.")
            continue
        try:
            entries.append((where, parse_params(entry, where)))
        except InvalidInput as error:
            yield error
    budgets = _look_budgets(entries)
    for where, params in entries:
        if isinstance(params, SuiteParams):
            looks = budgets.get(params.suite) if parsed.spend_alpha else None
            yield from _entry_problem(where, params, sizes, looks)
    if parsed.spend_alpha:
        yield from _budget_problems(entries, budgets)
    named = [entry.get("gate") for entry in parsed.gates]
    if named[-1] != LAST_GATE or named.count(LAST_GATE) != 1:
        yield InvalidInput("document.gates", f"must end with {LAST_GATE}, once: no model ships unsigned.")
    yield from _missing(parsed.gates, digests)


def _suite_problem(where: str, digest: str, sizes: dict[str, SuiteSize]) -> Iterator[InvalidInput]:
    suite = sizes.get(digest)
    if suite is None:
        yield InvalidInput(where, f"no sealed suite has the digest {digest[:12]}.")
    elif suite.scorer == "judge":
        yield InvalidInput(
            where,
            f"{suite.name} is scored by a judge, and a judge's word is no evidence for a gate yet. "
            "Use a suite that a program scores.",
        )


def _entry_problem(
    where: str, params: SuiteParams, sizes: dict[str, SuiteSize], looks: int | None
) -> Iterator[InvalidInput]:
    suite = sizes.get(params.suite)
    if suite is None:
        yield InvalidInput(f"{where}.suite", "is not among the policy's suites. Add it there.")
        return
    if isinstance(params, LeakParams):
        yield from _leak_problem(where, params, suite)
    metric = getattr(params, "metric", None)
    if metric is None or suite.scorer == "judge":
        return
    measured = SCORER_METRICS[suite.scorer]
    if metric not in measured:
        yield InvalidInput(
            f"{where}.metric",
            f"{metric} is not measured by {suite.scorer}, which scores {suite.name}. "
            f"It measures {', '.join(measured)}.",
        )
    elif not suite.total.having(metric):
        yield InvalidInput(f"{where}.metric", f"no case of {suite.name} has the metric {metric}.")
    elif hasattr(params, "alpha"):
        yield from _out_of_reach(where, params, suite, looks)


def _leak_problem(where: str, params: LeakParams, suite: SuiteSize) -> Iterator[InvalidInput]:
    """The gate can only pass where the label is not nearly always the same."""
    if suite.leak is None:
        yield InvalidInput(
            f"{where}.suite", f"{suite.name} was sealed before its prompts were looked through. Seal it anew."
        )
    elif Decimal(suite.leak["majority"]) >= params.max_accuracy:
        yield InvalidInput(
            f"{where}.max_accuracy",
            f"cannot be kept: on {suite.name} the more frequent label alone is right in {suite.leak['majority']} of "
            "the cases.",
        )


def _look_budgets(entries: list[tuple[str, Params]]) -> dict[str, int]:
    """By suite the last look that may pass: the least, where several entries set one."""
    budgets: dict[str, int] = {}
    for _, params in entries:
        if params.gate == LOOK_BUDGET and isinstance(params, SuiteParams):
            most: int = getattr(params, "max_looks", 0)
            budgets[params.suite] = min(most, budgets.get(params.suite, most))
    return budgets


def _budget_problems(entries: list[tuple[str, Params]], budgets: dict[str, int]) -> Iterator[InvalidInput]:
    bounded = dict.fromkeys(
        params.suite for _, params in entries if isinstance(params, SuiteParams) and hasattr(params, "alpha")
    )
    for digest in bounded:
        if digest not in budgets:
            yield InvalidInput(
                "document.spend_alpha",
                f"needs {LOOK_BUDGET} for suite {digest[:12]}, which has a bound: without a last look nobody "
                "can say that the bound stays within reach.",
            )


def _out_of_reach(
    where: str, params: SuiteParams, suite: SuiteSize, looks: int | None
) -> Iterator[InvalidInput]:
    """What a perfect candidate could not reach, at the last look that may pass, would block every one for ever."""
    metric: str = params.metric  # type: ignore[attr-defined]
    alpha: Decimal = params.alpha  # type: ignore[attr-defined]
    if looks is not None:
        alpha = spent_alpha(alpha, looks)
    at = f"alpha {alpha}" if looks is None else f"look {looks} (alpha {alpha:.6g})"
    minimum: Decimal | None = getattr(params, "min", None)
    margin: Decimal | None = getattr(params, "margin", None)
    if minimum is not None:
        if minimum >= 1:
            yield InvalidInput(f"{where}.min", "no lower bound ever reaches 1. Choose a value below 1.")
            return
        n, have = suite.total.having(metric), "there are"
        if params.gate == "per_family_safety_floor":
            sizes = {family: prompts.having(metric) for family, prompts in suite.families.items()}
            n, family = min((size, family) for family, size in sizes.items() if size)
            have = f"family {family} has"
        needed = minimum_n_for_bound(float(minimum), float(alpha))
        if n < needed:
            yield InvalidInput(
                f"{where}.min",
                f"cannot be reached: a {minimum} bound at {at} needs at least {needed} of {needed}, "
                f"and {have} {n} distinct prompts.",
            )
    elif margin is not None:
        if margin <= 0:
            yield InvalidInput(f"{where}.margin", "must be above 0: equal models have no bound at 0.")
            return
        n, needed = suite.total.having(metric), least_pairs(margin, alpha)
        if n < needed:
            yield InvalidInput(
                f"{where}.margin",
                f"cannot be reached: a margin of {margin} at {at} needs at least {needed} pairs, none of them "
                f"lost, and there are {n} distinct prompts.",
            )


def _missing(gates: list[dict[str, Any]], digests: list[str]) -> Iterator[InvalidInput]:
    present = {(canonical_gate(str(entry.get("gate"))), str(entry.get("suite", ""))) for entry in gates}
    if ("candidate_artifact_hash", "") not in present:
        yield InvalidInput("document.gates", "must hold candidate_artifact_hash.")
    for gate in OF_EACH_SUITE:
        for digest in digests:
            if (gate, digest) not in present:
                yield InvalidInput("document.gates", f"must hold {gate} for suite {digest[:12]}.")
