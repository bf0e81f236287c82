"""Handwritten digits at several sites, some of which may be malicious."""
