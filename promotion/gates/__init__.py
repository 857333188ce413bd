"""The gates. Importing this package registers all of them, in the order in which a policy should list them."""

from promotion.gates import integrity, identity, regression, safety, generalization, approval  # noqa: I001
from promotion.gates.base import GATES, METRICS, OPENS, Evidence, GateOutcome, Outcome, judge, parse_params

__all__ = [
    "GATES",
    "METRICS",
    "OPENS",
    "Evidence",
    "GateOutcome",
    "Outcome",
    "approval",
    "generalization",
    "identity",
    "integrity",
    "judge",
    "parse_params",
    "regression",
    "safety",
]
