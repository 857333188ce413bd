"""What the API says of bases, tracks, policies, candidates, evidence, gates, the registry and exports."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from promotion import preflight
from promotion.gates import OPENS, Outcome
from promotion.models import (
    Alias,
    AliasMove,
    Approval,
    BrokenGlass,
    Candidate,
    CandidateDataset,
    Evidence,
    Export,
    GateResult,
    Policy,
    RegistryEntry,
    Track,
    Waiver,
)
from promotion.services.gating import APPROVAL_GATE, results_of
from promotion.services.policies import Kind as ChangeKind
from promotion.services.waivers import STATES as WAIVER_STATES
from promotion.services.waivers import state_of as waiver_state
from rollouts.api.outputs import (
    Address,
    AnyObject,
    AnyObjectOrNull,
    BackendName,
    OrNull,
    Person,
    RunOutput,
    address,
)
from rollouts.models import BaseModel


class BaseOutput(serializers.ModelSerializer[BaseModel]):
    url = Address("api-base-detail", kwarg="name", attribute="name")
    sha256 = serializers.CharField(source="artifact_id")
    size_bytes = serializers.IntegerField(source="artifact.size_bytes")
    header = AnyObject()
    created_by = Person()

    class Meta:
        model = BaseModel
        fields = [
            "name", "url", "architecture", "sha256", "size_bytes", "chat_template_sha256", "header",
            "created_at", "created_by",
        ]  # fmt: skip


class EntryName(serializers.ModelSerializer[RegistryEntry]):
    """A registry entry in short."""

    url = Address("api-registry-detail")
    candidate = serializers.CharField(source="candidate.name")
    gguf_sha256 = serializers.CharField(source="gguf_id")

    class Meta:
        model = RegistryEntry
        fields = ["number", "url", "candidate", "gguf_sha256"]


class TrackOutput(serializers.ModelSerializer[Track]):
    url = Address("api-track-detail", kwarg="name", attribute="name")
    created_by = Person()
    champion = serializers.SerializerMethodField()
    readers = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)

    class Meta:
        model = Track
        fields = ["name", "url", "purpose", "champion", "readers", "created_at", "created_by"]

    @extend_schema_field(EntryName(allow_null=True))
    def get_champion(self, track: Track) -> Any:
        found = track.champions  # type: ignore[attr-defined]
        return EntryName(found[0].entry).data if found else None


class PolicyOutput(serializers.ModelSerializer[Policy]):
    url = Address("api-policy-detail")
    track = serializers.CharField(source="track.name")
    document = AnyObject()
    created_by, locked_by = Person(), Person()

    class Meta:
        model = Policy
        fields = [
            "id", "url", "track", "version", "digest", "document", "created_at", "created_by", "locked_at",
            "locked_by",
        ]  # fmt: skip


class CandidateOutput(serializers.ModelSerializer[Candidate]):
    url = Address("api-candidate-detail")
    track = serializers.CharField(source="track.name")
    base = serializers.CharField(source="base.name")
    adapter_config_sha256 = serializers.CharField(source="adapter_config_id")
    adapter_model_sha256 = serializers.CharField(source="adapter_weights_id")
    gguf_sha256 = serializers.CharField(source="gguf_id", allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())
    submitted_by = Person()

    class Meta:
        model = Candidate
        fields = [
            "id", "url", "track", "name", "base", "state", "revision", "outtype", "baseline",
            "adapter_config_sha256", "adapter_model_sha256", "adapter_source_sha256", "gguf_sha256",
            "warnings", "error_detail", "submitted_by", "created_at",
        ]  # fmt: skip


class ApprovalOutput(serializers.ModelSerializer[Approval]):
    """A signature, or a refusal. There is no verb that makes one here: people sign in the browser."""

    approver = Person()
    panels_opened = serializers.ListField(child=serializers.CharField())
    panels_unopened = serializers.ListField(child=serializers.CharField())
    checklist = serializers.ListField(child=AnyObject())

    class Meta:
        model = Approval
        fields = [
            "approver", "printed_name", "role", "decision", "meaning", "comment", "method", "authenticated_at",
            "evidence_digest", "policy_digest", "signed_at", "template_version", "panels_opened", "panels_unopened",
            "unopened_reason", "checklist", "withdrawn_at", "withdrawn_reason",
        ]  # fmt: skip


class GateResultOutput(serializers.ModelSerializer[GateResult]):
    outcome = serializers.ChoiceField(choices=[outcome.value for outcome in Outcome])
    numbers = AnyObject()

    class Meta:
        model = GateResult
        fields = ["position", "gate", "outcome", "reason", "numbers"]


class DatasetUseOutput(serializers.ModelSerializer[CandidateDataset]):
    """A dataset that the candidate says it was made from."""

    url = serializers.SerializerMethodField()
    name = serializers.CharField(source="dataset.name")
    version = serializers.IntegerField(source="dataset.version")
    digest = serializers.CharField(source="dataset.digest")

    class Meta:
        model = CandidateDataset
        fields = ["role", "name", "version", "digest", "url"]

    def get_url(self, use: CandidateDataset) -> str:
        return address("api-dataset-detail", digest=use.dataset.digest)


class FindingOutput(serializers.Serializer[Any]):
    """`code` is stable; `where` names a file and line, or a document and its key."""

    code = serializers.CharField()
    severity = serializers.ChoiceField(choices=[preflight.ERROR, preflight.WARNING])
    where = serializers.CharField()
    text = serializers.CharField()
    remedy = serializers.CharField()


class PreflightOutput(serializers.Serializer[Any]):
    """`go` where nothing is an error."""

    go = serializers.BooleanField()
    findings = FindingOutput(many=True)


class CandidateDetail(CandidateOutput):
    """A candidate with its newest evidence, what blocks it there, and its signatures."""

    backend = BackendName(allow_null=True)
    verification = AnyObjectOrNull()
    evidence_digest = serializers.SerializerMethodField()
    blocked_by = serializers.SerializerMethodField()
    approvals = ApprovalOutput(many=True)
    datasets = DatasetUseOutput(many=True, source="dataset_uses")
    tool_schema_sha256 = OrNull()

    class Meta(CandidateOutput.Meta):
        fields = [
            *CandidateOutput.Meta.fields, "backend", "verification", "evidence_digest", "blocked_by",
            "approvals", "datasets", "tool_schema_sha256",
        ]  # fmt: skip

    def get_evidence_digest(self, candidate: Candidate) -> str | None:
        newest = candidate.newest_evidence  # type: ignore[attr-defined]
        return newest.digest if newest else None

    def get_blocked_by(self, candidate: Candidate) -> list[str]:
        newest = candidate.newest_evidence  # type: ignore[attr-defined]
        return blocked_by(candidate, newest) if newest else []


def blocked_by(candidate: Candidate, evidence: Evidence) -> list[str]:
    """The gates that do not open the door now, signatures aside."""
    return [
        f"{result.gate}: {result.reason}"
        for result in results_of(candidate, evidence)
        if result.gate != APPROVAL_GATE and result.outcome not in OPENS
    ]


class WaiverOutput(serializers.ModelSerializer[Waiver]):
    """One gate of one candidate's measurements that two persons let be, for a time."""

    url = Address("api-waiver-detail")
    candidate = serializers.IntegerField(source="candidate_id")
    suite = serializers.SerializerMethodField()
    state = serializers.SerializerMethodField()
    requested_by, granted_by, ended_by = Person(), Person(), Person()

    class Meta:
        model = Waiver
        fields = [
            "id", "url", "candidate", "gate", "suite", "measurement_digest", "state", "reason", "requested_by",
            "requested_at", "granted_by", "granted_at", "expires_at", "ended_by", "ended_at",
        ]  # fmt: skip

    def get_suite(self, waiver: Waiver) -> str | None:
        return waiver.suite_digest or None

    @extend_schema_field(serializers.CharField(help_text=f"{', '.join(WAIVER_STATES)}."))
    def get_state(self, waiver: Waiver) -> str:
        return waiver_state(waiver)


class WaiverDetail(WaiverOutput):
    """`applies`: it is granted, has not run out, and is of what was judged last."""

    applies = serializers.BooleanField()

    class Meta(WaiverOutput.Meta):
        fields = [*WaiverOutput.Meta.fields, "applies"]


class ChangeOutput(serializers.Serializer[Any]):
    """One difference. `loosens`: it could let more pass, or nobody can tell."""

    kind = serializers.ChoiceField(choices=[kind.value for kind in ChangeKind])
    what = serializers.CharField()
    suite = serializers.CharField(help_text="The digest that it is about, or empty.")
    before = serializers.CharField()
    after = serializers.CharField()
    loosens = serializers.BooleanField()


class PolicyDiffOutput(serializers.Serializer[Any]):
    """What a version of a policy changes of another; nothing where it is the first."""

    version = serializers.IntegerField()
    against = serializers.IntegerField(allow_null=True)
    loosens = serializers.BooleanField()
    changes = ChangeOutput(many=True)


class StartedOutput(serializers.Serializer[Any]):
    """A candidate whose evaluation started, and the runs that were planned for it."""

    url = Address("api-candidate-detail")
    candidate = CandidateOutput(source="*")
    runs = RunOutput(many=True)


class JudgedOutput(serializers.Serializer[Any]):
    """The gates' word on a candidate's evidence."""

    evidence = serializers.CharField(
        allow_null=True, help_text="Its digest; null before the first judgement."
    )
    results = GateResultOutput(many=True)


class DifferenceOutput(serializers.Serializer[Any]):
    """A gate that another policy judges otherwise. An empty outcome: that policy does not ask it."""

    gate = serializers.CharField()
    suite = serializers.CharField()
    now = serializers.CharField(help_text="An outcome, or empty.")
    then = serializers.CharField(help_text="An outcome, or empty.")
    reason = serializers.CharField()


class WhatIfRow(serializers.Serializer[Any]):
    """A candidate under both policies, signatures aside. `then` is null, with `why_not`, where it cannot be told."""

    url = Address("api-candidate-detail")
    candidate = serializers.CharField(source="candidate.name")
    state = serializers.CharField(source="candidate.state")
    evidence = serializers.CharField(source="evidence.digest")
    policy = serializers.IntegerField(source="policy_version", allow_null=True)
    now = serializers.CharField(
        allow_null=True, help_text="passes or blocked; null without a policy of its own."
    )
    then = serializers.CharField(allow_null=True, help_text="passes or blocked.")
    differences = DifferenceOutput(many=True)
    why_not = serializers.CharField()


class WhatIfOutput(serializers.Serializer[Any]):
    """What another policy would have said of the track's newest candidates, at most 50."""

    track = serializers.CharField(source="track.name")
    policy = serializers.IntegerField(source="version", allow_null=True, help_text="Null for a document.")
    digest = serializers.CharField()
    same = serializers.IntegerField()
    opened = serializers.IntegerField(help_text="Blocked, and would pass.")
    closed = serializers.IntegerField(help_text="Passed, and would be blocked.")
    unknown = serializers.IntegerField()
    candidates = WhatIfRow(source="rows", many=True)


class GateOutput(serializers.Serializer[Any]):
    """A gate that policies may list. `parameters` is the JSON schema of its entry in a policy."""

    gate = serializers.CharField()
    summary = serializers.CharField()
    description = serializers.CharField()
    parameters = AnyObject()


class EvidenceOutput(serializers.ModelSerializer[Evidence]):
    url = Address("api-evidence-detail", kwarg="digest", attribute="digest")
    candidate = serializers.IntegerField(source="candidate_id")
    policy_version = serializers.IntegerField(source="policy.version", allow_null=True)

    class Meta:
        model = Evidence
        fields = ["digest", "url", "candidate", "policy_version", "created_at"]


GLASS_PEOPLE = ("broken_by", "reviewed_by")


class GlassOutput(serializers.ModelSerializer[BrokenGlass]):
    """A promotion without the signatures, and what somebody else said of it afterwards; `verdict` is "" until then."""

    broken_by, reviewed_by = Person(), Person()

    class Meta:
        model = BrokenGlass
        fields = [
            "evidence_digest", "broken_by", "printed_name", "reason", "method", "broken_at", "review_due_at",
            "verdict", "reviewed_by", "reviewed_at", "review_comment",
        ]  # fmt: skip


class EntryOutput(serializers.ModelSerializer[RegistryEntry]):
    """An immutable, numbered model version, with what was known when it was made."""

    url = Address("api-registry-detail")
    track = serializers.CharField(source="track.name")
    candidate = serializers.IntegerField(source="candidate_id")
    candidate_name = serializers.CharField(source="candidate.name")
    gguf_sha256 = serializers.CharField(source="gguf_id")
    evidence_digest = serializers.CharField(source="evidence.digest")
    aliases = serializers.SlugRelatedField("name", many=True, read_only=True)
    broken_glass = serializers.SerializerMethodField()
    record = AnyObject()

    class Meta:
        model = RegistryEntry
        fields = [
            "id", "url", "track", "number", "candidate", "candidate_name", "gguf_sha256", "evidence_digest",
            "ungated", "broken_glass", "aliases", "record", "created_at",
        ]  # fmt: skip

    @extend_schema_field(GlassOutput(allow_null=True))
    def get_broken_glass(self, entry: RegistryEntry) -> Any:
        glasses = entry.candidate.broken_glass.all()
        found = [glass for glass in glasses if glass.evidence_id == entry.evidence_id]
        return GlassOutput(found[0]).data if found else None


class AliasOutput(serializers.ModelSerializer[Alias]):
    track = serializers.CharField(source="track.name")
    entry = EntryName()

    class Meta:
        model = Alias
        fields = ["track", "name", "entry", "moved_at"]


class AliasMoveOutput(serializers.ModelSerializer[AliasMove]):
    track = serializers.CharField(source="track.name")
    old, new = EntryName(allow_null=True), EntryName()

    class Meta:
        model = AliasMove
        fields = ["id", "track", "name", "old", "new", "reason", "moved_at"]


class ExportOutput(serializers.ModelSerializer[Export]):
    url = Address("api-export-detail")
    file_url = Address("api-export-file")
    entry = EntryName()
    sha256 = serializers.CharField(source="artifact_id")
    size_bytes = serializers.IntegerField(source="artifact.size_bytes")
    manifest = AnyObject()

    class Meta:
        model = Export
        fields = [
            "id",
            "url",
            "file_url",
            "name",
            "kind",
            "entry",
            "sha256",
            "size_bytes",
            "manifest",
            "published_at",
        ]


class TokenMade(serializers.Serializer[Any]):
    """The token is shown this once. Only its hash is kept."""

    token = serializers.CharField()
    key = serializers.CharField(
        help_text="The token's beginning: how lists name it, in part also the audit history."
    )
    expires_at = serializers.DateTimeField(source="expiry", allow_null=True)


class TokenOutput(serializers.Serializer[Any]):
    key = serializers.CharField(source="token_key")
    created_at = serializers.DateTimeField(source="created")
    expires_at = serializers.DateTimeField(source="expiry", allow_null=True)
    current = serializers.SerializerMethodField()

    def get_current(self, token: Any) -> bool:
        return bool(token.pk == self.context["request"].auth.pk)
