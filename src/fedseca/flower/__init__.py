"""Every rule of the library as a strategy of Flower. Needs `fedseca[flower]`."""

try:
    import flwr  # noqa: F401
except ImportError:
    from fedseca.errors import MissingDependency

    raise MissingDependency("fedseca.flower needs Flower: pip install 'fedseca[flower]'") from None

from fedseca.flower.strategy import RobustStrategy

__all__ = ["RobustStrategy"]
