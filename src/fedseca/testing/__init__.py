"""The contracts of rules and attacks, as checks that anyone can run on their own.

    from fedseca.testing import check_aggregator, check_attack
    check_aggregator("my_rule")
    check_attack("my_attack")

or, one test for each clause:

    @pytest.mark.parametrize("check", aggregator_checks("my_rule"), ids=str)
    def test_contract(check): check()

Being registered means being checked: nothing here names a rule or an attack. What its equations do not promise, each of
them says with its traits.
"""

from fedseca.testing.aggregators import aggregator_checks, check_aggregator, outlier_errors
from fedseca.testing.attacks import attack_checks, check_attack, damage_to_the_mean
from fedseca.testing.check import Check

__all__ = [
    "Check",
    "aggregator_checks",
    "attack_checks",
    "check_aggregator",
    "check_attack",
    "damage_to_the_mean",
    "outlier_errors",
]
