from promotion.models.approvals import Approval, BrokenGlass, Decision, GlassVerdict, Meaning, Method
from promotion.models.candidates import (
    CANDIDATE_MOVES,
    OPEN_STATES,
    Candidate,
    CandidateDataset,
    CandidateState,
    DatasetRole,
)
from promotion.models.disputes import Dispute, DisputeState
from promotion.models.evidence import Evidence, GateResult
from promotion.models.policies import Policy
from promotion.models.registry import Export, RegistryEntry
from promotion.models.reviews import (
    ChecklistAnswer,
    Comment,
    PanelOpening,
    ReviewVisit,
    RiskSummary,
    Thread,
)
from promotion.models.tracks import Alias, AliasMove, Track
from promotion.models.waivers import Waiver

__all__ = [
    "CANDIDATE_MOVES",
    "OPEN_STATES",
    "Alias",
    "AliasMove",
    "Approval",
    "BrokenGlass",
    "Candidate",
    "CandidateDataset",
    "CandidateState",
    "ChecklistAnswer",
    "Comment",
    "DatasetRole",
    "Decision",
    "Dispute",
    "DisputeState",
    "Evidence",
    "Export",
    "GateResult",
    "GlassVerdict",
    "Meaning",
    "Method",
    "PanelOpening",
    "Policy",
    "RegistryEntry",
    "ReviewVisit",
    "RiskSummary",
    "Thread",
    "Track",
    "Waiver",
]
