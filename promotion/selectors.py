"""What pages, the API and services read."""

from __future__ import annotations

from promotion.gates.approval import Signature
from promotion.models import Approval, Candidate, Decision


def signatures_of(candidate: Candidate) -> list[Signature]:
    """The approvals that still stand, oldest first, as the approval gate reads them."""
    standing = Approval.objects.filter(
        candidate=candidate, decision=Decision.APPROVE, withdrawn_at__isnull=True, approver__is_active=True
    ).select_related("approver")
    return [
        Signature(
            person=approval.approver.get_username(),
            role=approval.role,
            evidence_digest=approval.evidence_digest,
            signed_at=approval.signed_at,
        )
        for approval in standing.order_by("id")
    ]
