"""A signature as it is copied: everything that says who signed what, when, how, and after looking at which parts."""

from __future__ import annotations

from typing import Any

from promotion.models import Approval, Decision


def signature_record(approval: Approval) -> dict[str, Any]:
    """JSON-safe. Give it with its approver loaded."""
    approved = approval.decision == Decision.APPROVE
    return {
        "person": approval.approver.get_username(),
        "printed_name": approval.printed_name,
        "role": approval.role,
        "meaning": approval.get_meaning_display() if approved else approval.get_decision_display(),
        "comment": approval.comment,
        "method": approval.method,
        "authenticated_at": approval.authenticated_at.isoformat(),
        "signed_at": approval.signed_at.isoformat(),
        "evidence_digest": approval.evidence_digest,
        "policy_digest": approval.policy_digest,
        "template_version": approval.template_version,
        "panels_opened": approval.panels_opened,
        "panels_unopened": approval.panels_unopened,
        "unopened_reason": approval.unopened_reason,
        "checklist": approval.checklist,
    }
