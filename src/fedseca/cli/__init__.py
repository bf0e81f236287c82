"""The command line, thin: it reads arguments, calls the library and prints."""

from fedseca.cli.app import main

__all__ = ["main"]
