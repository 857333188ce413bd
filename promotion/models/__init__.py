from promotion.models.approvals import Approval, Decision, Meaning
from promotion.models.candidates import (
    CANDIDATE_MOVES,
    OPEN_STATES,
    Candidate,
    CandidateDataset,
    CandidateState,
    DatasetRole,
)
from promotion.models.evidence import Evidence, GateResult
from promotion.models.policies import Policy
from promotion.models.registry import Export, RegistryEntry
from promotion.models.tracks import Alias, AliasMove, Track
from promotion.models.waivers import Waiver

__all__ = [
    "CANDIDATE_MOVES",
    "OPEN_STATES",
    "Alias",
    "AliasMove",
    "Approval",
    "Candidate",
    "CandidateDataset",
    "CandidateState",
    "DatasetRole",
    "Decision",
    "Evidence",
    "Export",
    "GateResult",
    "Meaning",
    "Policy",
    "RegistryEntry",
    "Track",
    "Waiver",
]
