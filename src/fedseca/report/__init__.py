"""Runs as one HTML page that opens anywhere, without a network."""

from fedseca.report.collect import Collection, LeftOut, collect
from fedseca.report.page import make_page, require_plotly

__all__ = ["Collection", "LeftOut", "collect", "make_page", "require_plotly"]
