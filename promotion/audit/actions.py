"""The audit actions of the governance app."""

ACTIONS = {
    "track.created": "A track was created.",
    "policy.drafted": "A policy draft was saved.",
    "policy.locked": "A policy was locked.",
    "candidate.submitted": "A candidate was submitted.",
    "candidate.built": "A candidate's GGUF was built, read back and verified.",
    "candidate.build_failed": "A candidate's GGUF could not be built.",
    "candidate.build_retried": "A failed build was sent again.",
    "candidate.evaluation_started": "The runs that a candidate needs were planned.",
    "candidate.judged": "The gates judged a candidate's evidence.",
    "candidate.signed": "A person signed an evidence digest.",
    "candidate.request_changes": "A person sent a candidate back.",
    "candidate.reject": "A person rejected a candidate.",
    "candidate.signature_refused": "An attempt to sign was refused.",
    "candidate.publishing": "The publication of the evaluated bytes began.",
    "candidate.publish_failed": "The publication failed; it can be tried again.",
    "candidate.publish_retried": "A failed publication was sent again.",
    "candidate.promotion_refused": "Evidence or signatures no longer held when the promotion was due.",
    "candidate.promoted": "The entry was written, the alias moved and the export published.",
    "candidate.withdrawn": "A candidate was taken back.",
}
