"""The audit of a federation: what every node did in every round, in a file that cannot be edited without showing."""

from fedseca.audit.chain import AUDIT_FILE, BEGINNING, Audit, AuditError, Record, read_audit
from fedseca.audit.conduct import NO_ANSWER, Act, Conduct, PastRound, State, Survey, Verified, When, conduct, verify

__all__ = [
    "AUDIT_FILE",
    "BEGINNING",
    "NO_ANSWER",
    "Act",
    "Audit",
    "AuditError",
    "Conduct",
    "PastRound",
    "Record",
    "State",
    "Survey",
    "Verified",
    "When",
    "conduct",
    "read_audit",
    "verify",
]
