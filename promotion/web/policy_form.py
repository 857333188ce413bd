"""The policy editor's form: a document as fields, and fields as a document.

Lenient both ways: what does not fit is kept as it was typed, so that the services can say what is wrong with it, and
what they say is put at its field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, get_args, get_origin

from django.http import QueryDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from promotion.checklist import QUESTIONS, REVIEWER
from promotion.gates import GATES
from promotion.services.policy_rules import LAST_GATE, OF_EACH_SUITE, canonical_gate
from rollouts.errors import InvalidInput
from rollouts.models import Suite
from rollouts.text import split_unseen

MOST_GATES, MOST_ROWS = 150, 100
WHOLE = re.compile(r"-?[0-9]{1,9}")
NUMBER = re.compile(r"-?[0-9]{1,9}\.[0-9]{1,9}")
ROOT = "document."
# what a parameter asks of a person, where its name alone does not say
HINTS = {
    "min": "such as 0.85",
    "max_drop": "such as 0.02",
    "margin": "such as 0.02",
    "alpha": "0.05 if empty",
    "max_near": "0 if empty",
    "max_memory_mib": "no limit if empty",
    "max_percent": "% of the rollouts",
    "max_accuracy": "0.51 to 0.99",
}
SKELETON: dict[str, Any] = {
    "format": 1,
    "note": "",
    "suites": [],
    "samples": 1,
    "sampling": {"temperature": 0, "max_tokens": 256},
    "spend_alpha": False,
    "gates": [{"gate": "candidate_artifact_hash"}, {"gate": LAST_GATE}],
    "approval": {
        "approvers": [{"group": "approver", "count": 1}],
        "separation_of_duties": True,
        "expires_after_days": 30,
    },
}


@dataclass(slots=True)
class Field:
    """One input. `path` is where its value stands in the document, without the root."""

    path: str
    name: str
    label: str
    kind: str  # whole, decimal, text, note, choice, yes
    value: str = ""
    choices: list[tuple[str, str]] = field(default_factory=list)
    hint: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"id_{self.name}"


@dataclass(slots=True)
class Row:
    """A suite, a gate or a group of approvers: what it is, its fields, and what is wrong with it as a whole."""

    index: int
    path: str
    title: str
    summary: str = ""
    fields: list[Field] = field(default_factory=list)
    hidden: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    removable: bool = True
    digest: str = ""


@dataclass(slots=True)
class PolicyForm:
    """Everything that the editor shows of a document. `errors` are those that belong to no row and no field."""

    general: list[Field]
    suites: list[Row]
    gates: list[Row]
    approvers: list[Row]
    checklist: list[Row]
    signing: list[Field]
    errors: dict[str, list[str]]
    too_many: bool
    addable_suites: list[tuple[str, str]]
    addable_gates: list[tuple[str, str]]

    @property
    def rows(self) -> list[Row]:
        return [*self.suites, *self.gates, *self.approvers, *self.checklist]

    @property
    def fields(self) -> Iterable[Field]:
        yield from self.general
        for row in self.rows:
            yield from row.fields
        yield from self.signing

    @property
    def wrong(self) -> list[tuple[str, str]]:
        """(id of the element, sentence) of every problem, in the page's order."""
        found: list[tuple[str, str]] = []
        for part, texts in self.errors.items():
            found += [(f"at_{part}", text) for text in texts]
        for row in self.rows:
            found += [(f"row_{row.path.replace('.', '_')}", f"{row.title}: {text}") for text in row.errors]
        found += [(one.id, f"{one.label}: {text}") for one in self.fields for text in one.errors]
        return found


# from a document to a form


def form_of(
    document: Any,
    problems: Iterable[InvalidInput],
    *,
    named: Mapping[str, Suite],
    offered: Iterable[Suite],
    groups: Iterable[str],
) -> PolicyForm:
    """`named` are the suites of the document by digest, `offered` those to add, `groups` those that people sign in."""
    shown = document if isinstance(document, Mapping) else {}
    listed = digests_of(document)
    entries = _rows(shown, "gates")
    approval = _part(shown, "approval")
    choices = [
        ("", "choose a suite"),
        *((digest, str(named[digest]) if digest in named else digest[:12]) for digest in listed),
    ]
    form = PolicyForm(
        general=_general(shown),
        suites=[_suite_row(index, digest, named) for index, digest in enumerate(listed)],
        gates=[_gate_row(index, entry, choices) for index, entry in enumerate(entries[:MOST_GATES])],
        approvers=_approver_rows(approval, list(groups)),
        checklist=_checklist_rows(approval),
        signing=_signing(approval),
        errors={},
        too_many=len(entries) > MOST_GATES,
        addable_suites=[(suite.digest, _sized(suite)) for suite in offered if suite.digest not in listed],
        addable_gates=[
            (name, name) for name, gate in GATES.items() if name != LAST_GATE and not gate.alias_of
        ],
    )
    for problem in problems:
        _place(form, problem)
    return form


def digests_of(document: Any) -> list[str]:
    """The digests of the document's suites, as far as it has any."""
    shown = document if isinstance(document, Mapping) else {}
    return [part["digest"] for part in _rows(shown, "suites") if isinstance(part.get("digest"), str)]


def _sized(suite: Suite) -> str:
    return f"{suite} ({suite.case_count:,} cases)"


def _rows(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = document.get(key)
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, list) else []


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _general(document: Mapping[str, Any]) -> list[Field]:
    sampling, note = _part(document, "sampling"), _shown(document.get("note"))
    hint = "Shown on the review page."
    if unseen(note):
        # an input shows what is in it as it is: its direction may be turned, and part of it not seen
        hint = f"{hint} It holds characters that nobody sees: the JSON shows them."
    return [
        Field("note", "note", "Note", "note", note, hint=hint),
        Field("samples", "samples", "Samples of each case", "whole", _shown(document.get("samples"))),
        Field(
            "sampling.temperature",
            "temperature",
            "Temperature",
            "decimal",
            _shown(sampling.get("temperature")),
        ),
        Field(
            "sampling.max_tokens",
            "max_tokens",
            "Most tokens of an answer",
            "whole",
            _shown(sampling.get("max_tokens")),
        ),
        Field(
            "spend_alpha",
            "spend_alpha",
            "Spend alpha over looks",
            "yes",
            _shown(document.get("spend_alpha")),
            hint="At look k every bound is taken at alpha / (k (k + 1)). Needs look_budget for each suite with a bound.",
        ),
    ]


def _suite_row(index: int, digest: str, named: Mapping[str, Suite]) -> Row:
    return Row(
        index=index,
        path=f"suites.{index}",
        title=_sized(named[digest]) if digest in named else "a suite that nobody sealed",
        hidden=[(f"suite-{index}", digest)],
        digest=digest,
    )


def _gate_row(index: int, entry: Mapping[str, Any], suites: list[tuple[str, str]]) -> Row:
    name = _shown(entry.get("gate"))
    path = f"gates.{index}"
    gate = GATES.get(name)
    row = Row(
        index=index,
        path=path,
        title=name[:80] or "no gate",
        summary=gate.summary.replace("`", "") if gate else "",
        hidden=[(f"gate-{index}", name)],
        removable=name != LAST_GATE,
    )
    if gate is None:
        return row
    for key, info in gate.params.model_fields.items():
        if key == "gate":
            continue
        kind, choices = _kind(key, info, suites)
        value = _shown(entry.get(key))
        if kind == "choice" and value and value not in dict(choices):
            choices = [*choices, (value, f"{value[:40]} (not to be had)")]
        row.fields.append(
            Field(
                path=f"{path}.{key}",
                name=f"gate-{index}-{key}",
                label=key.replace("_", " "),
                kind=kind,
                value=value,
                choices=choices,
                hint=HINTS.get(key, ""),
            )
        )
    return row


def _kind(key: str, info: FieldInfo, suites: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]]:
    if key == "suite":
        return "choice", suites
    types = _types(info.annotation)
    words = [value for value in types if isinstance(value, str)]
    if words:
        return "choice", [("", "choose"), *((word, word) for word in words)]
    if bool in types:
        return "yes", []
    if int in types:
        return "whole", []
    return ("decimal" if Decimal in types else "text"), []


def _types(annotation: Any) -> list[Any]:
    """The plain types and literal values that an annotation is made of."""
    if get_origin(annotation) is None:
        return [annotation]
    return [found for part in get_args(annotation) for found in _types(part)]


def _approver_rows(approval: Mapping[str, Any], groups: list[str]) -> list[Row]:
    rows = []
    for index, part in enumerate(_rows(approval, "approvers")):
        path, group = f"approval.approvers.{index}", _shown(part.get("group"))
        names = groups if group in groups or not group else [*groups, group]
        rows.append(
            Row(
                index=index,
                path=path,
                title=f"Approvers {index + 1}",
                fields=[
                    Field(
                        f"{path}.group",
                        f"approver-{index}-group",
                        "group",
                        "choice",
                        group,
                        [("", "choose a group"), *((name, name) for name in names)],
                    ),
                    Field(
                        f"{path}.count",
                        f"approver-{index}-count",
                        "how many",
                        "whole",
                        _shown(part.get("count")),
                    ),
                ],
            )
        )
    return rows


def _checklist_rows(approval: Mapping[str, Any]) -> list[Row]:
    answers = [
        (REVIEWER, "whoever signs"),
        *((name, f"the evidence: {name.replace('_', ' ')}") for name in QUESTIONS),
    ]
    rows = []
    for index, item in enumerate(_rows(approval, "checklist")[:MOST_ROWS]):
        path, name = f"approval.checklist.{index}", f"item-{index}"
        row = Row(index=index, path=path, title=f"Item {index + 1}")
        row.fields = [
            Field(f"{path}.text", f"{name}-text", "text", "text", _shown(item.get("text"))),
            Field(
                f"{path}.key",
                f"{name}-key",
                "key",
                "text",
                _shown(item.get("key")),
                hint="such as read-flips",
            ),
            Field(
                f"{path}.answered_by",
                f"{name}-answered_by",
                "answered by",
                "choice",
                _shown(item.get("answered_by", REVIEWER)),
                answers,
            ),
        ]
        rows.append(row)
    return rows


def _signing(approval: Mapping[str, Any]) -> list[Field]:
    return [
        Field(
            "approval.separation_of_duties",
            "separation",
            "Separation of duties",
            "yes",
            _shown(approval.get("separation_of_duties")),
            hint="Who submitted, measured, sealed, wrote, locked or waived does not sign.",
        ),
        Field(
            "approval.expires_after_days",
            "expires",
            "Days until a signature expires",
            "whole",
            _shown(approval.get("expires_after_days")),
        ),
        Field(
            "approval.break_glass",
            "break_glass",
            "Break glass",
            "yes",
            _shown(approval.get("break_glass")),
            hint="An administrator may promote without these signatures, to be reviewed afterwards; never without the gates.",
        ),
    ]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _place(form: PolicyForm, problem: InvalidInput) -> None:
    """At its field, else at its row, else at its part of the page."""
    path = problem.field.removeprefix(ROOT)
    text = problem.message.removeprefix(f"{problem.field}: ")
    for one in form.fields:
        if _within(path, one.path):
            one.errors.append(text)
            return
    for row in form.rows:
        if _within(path, row.path):
            rest = path[len(row.path) + 1 :]
            row.errors.append(f"{rest}: {text}" if rest not in ("", "gate", "digest") else text)
            return
    part = path.split(".")[0]
    if part in ("suites", "gates", "approval"):
        form.errors.setdefault(part, []).append(text)
    else:
        form.errors.setdefault("document", []).append(f"{path}: {text}" if path != "document" else text)


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}.")


# from a form to a document


def document_from(posted: QueryDict) -> dict[str, Any]:
    """The document that the form's fields say. Values that are no numbers stay the text that was typed."""
    return {
        "format": 1,
        "note": posted.get("note", "").replace("\r\n", "\n"),
        "suites": [
            {"digest": posted[f"suite-{index}"]} for index in range(MOST_ROWS) if f"suite-{index}" in posted
        ],
        **_given("samples", posted.get("samples", "")),
        "sampling": {
            **_given("temperature", posted.get("temperature", "")),
            **_given("max_tokens", posted.get("max_tokens", "")),
        },
        "spend_alpha": "spend_alpha" in posted,
        "gates": [_entry(posted, index) for index in range(MOST_GATES + 1) if f"gate-{index}" in posted],
        "approval": {
            "approvers": [
                {
                    "group": posted[f"approver-{index}-group"],
                    **_given("count", posted.get(f"approver-{index}-count", "")),
                }
                for index in range(MOST_ROWS)
                if f"approver-{index}-group" in posted
            ],
            "separation_of_duties": "separation" in posted,
            **_given("expires_after_days", posted.get("expires", "")),
            # what a policy does not use does not stand in it
            **({"checklist": items} if (items := _items(posted)) else {}),
            **({"break_glass": True} if "break_glass" in posted else {}),
        },
    }


def _items(posted: QueryDict) -> list[dict[str, str]]:
    return [
        {part: posted.get(f"item-{index}-{part}", "").strip() for part in ("key", "text", "answered_by")}
        for index in range(MOST_ROWS)
        if f"item-{index}-key" in posted
    ]


def _given(key: str, text: str) -> dict[str, Any]:
    """The number that was typed, or the text; nothing for an empty field."""
    text = text.strip()
    if not text:
        return {}
    if WHOLE.fullmatch(text):
        return {key: int(text)}
    return {key: float(text) if NUMBER.fullmatch(text) else text}


def _entry(posted: QueryDict, index: int) -> dict[str, Any]:
    name = posted[f"gate-{index}"]
    entry: dict[str, Any] = {"gate": name}
    if name not in GATES:
        return entry
    for key, info in GATES[name].params.model_fields.items():
        if key == "gate":
            continue
        field_name = f"gate-{index}-{key}"
        kind, _ = _kind(key, info, [])
        if kind == "yes":
            entry[key] = field_name in posted
            continue
        text = posted.get(field_name, "").strip()
        if kind == "whole":
            entry |= _given(key, text)
        elif text or info.is_required():
            entry[key] = text
    return entry


def add_suite(document: dict[str, Any], digest: str) -> None:
    """With the gates that every suite must have."""
    if not digest or digest in [part["digest"] for part in document["suites"]]:
        return
    document["suites"].append({"digest": digest})
    for gate in OF_EACH_SUITE:
        _insert(document, {"gate": gate, "suite": digest})


def remove_suite(document: dict[str, Any], index: int) -> None:
    """With the gates that are about it."""
    if index >= len(document["suites"]):
        return
    digest = document["suites"].pop(index)["digest"]
    document["gates"] = [entry for entry in document["gates"] if entry.get("suite") != digest]


def remove_item(document: dict[str, Any], index: int) -> None:
    items = document["approval"].get("checklist", [])
    del items[index : index + 1]
    if not items:
        document["approval"].pop("checklist", None)


def add_gate(document: dict[str, Any], name: str) -> None:
    """With what its parameters are by default; about the policy's suite where there is only one."""
    if name not in GATES or canonical_gate(name) == LAST_GATE:
        return
    entry: dict[str, Any] = {"gate": name}
    for key, info in GATES[name].params.model_fields.items():
        if key == "suite" and len(document["suites"]) == 1:
            entry["suite"] = document["suites"][0]["digest"]
        elif key != "gate" and info.default not in (None, PydanticUndefined):
            entry[key] = str(info.default) if isinstance(info.default, Decimal) else info.default
    _insert(document, entry)


def _insert(document: dict[str, Any], entry: dict[str, Any]) -> None:
    """Before the signature, which stays last."""
    gates = document["gates"]
    last = len(gates) - 1 if gates and gates[-1].get("gate") == LAST_GATE else len(gates)
    gates.insert(last, entry)


def unseen(text: str) -> bool:
    """Whether it holds characters that cannot be seen, or that change how their neighbours are read."""
    return any(is_mark for _, is_mark in split_unseen(text))


def text_of(document: Any) -> str:
    """The document as JSON for people. Where something in it cannot be seen, all that is not ASCII is escaped."""
    text = json.dumps(ordered(document), indent=2, ensure_ascii=False)
    return json.dumps(ordered(document), indent=2) if unseen(text) else text


def ordered(document: Any) -> Any:
    """The same document in the order in which people write it: databases keep none."""
    if not isinstance(document, Mapping):
        return document
    keys = [key for key in SKELETON if key in document]
    found = {key: document[key] for key in [*keys, *(key for key in document if key not in keys)]}
    if isinstance(found.get("gates"), list):
        found["gates"] = [_ordered_entry(entry) for entry in found["gates"]]
    for key in ("sampling", "approval"):
        if isinstance(found.get(key), Mapping):
            first = [name for name in SKELETON[key] if name in found[key]]
            found[key] = {
                name: found[key][name] for name in [*first, *(n for n in found[key] if n not in first)]
            }
    return found


def _ordered_entry(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    gate = GATES.get(str(entry.get("gate")))
    keys = [key for key in (gate.params.model_fields if gate else ["gate"]) if key in entry]
    return {key: entry[key] for key in [*keys, *(key for key in entry if key not in keys)]}
