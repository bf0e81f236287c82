"""The audit of a federation: what every client did in every round, in a file that cannot be edited without showing."""

from fedseca.audit.chain import (
    AUDIT_FILE,
    BEGINNING,
    Audit,
    AuditError,
    Record,
    checked,
    is_chained,
    modern,
    read_audit,
)
from fedseca.audit.conduct import Act, Conduct, Findings, PastRound, Verified, When, conduct, verify

__all__ = [
    "AUDIT_FILE",
    "BEGINNING",
    "Act",
    "Audit",
    "AuditError",
    "Conduct",
    "Findings",
    "PastRound",
    "Record",
    "Verified",
    "When",
    "checked",
    "conduct",
    "is_chained",
    "modern",
    "read_audit",
    "verify",
]
