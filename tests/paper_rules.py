"""The rules that the paper compares, and Multi-Krum: those that are tested in every combination."""

PAPER = (
    *("fedavg", "krum", "multi_krum", "rfa", "cwtm", "cwmed", "huber"),
    *("cclip", "cc_randbucket", "cc_seqbucket", "copod_dos", "fldetector", "ties", "fedseca"),
)
