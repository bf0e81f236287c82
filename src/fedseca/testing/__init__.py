"""The contracts of rules, steps, attacks, data sets and models, as checks that anyone can run on their own.

    from fedseca.testing import check_aggregator, check_attack, check_dataset, check_model, check_step
    check_aggregator("my_rule")
    check_step("my_step")
    check_attack("my_attack")
    check_dataset("my_data")
    check_model("my_network", shape=(30,))

or, one test for each clause:

    @pytest.mark.parametrize("check", aggregator_checks("my_rule"), ids=str)
    def test_contract(check): check()

Being registered means being checked: nothing here names a rule, a step, an attack, a data set or a model. What its
equations do not promise, each of them says with its traits. `FEDSECA_TEST_DEVICE=cuda` runs the checks on another
device.
"""

from fedseca.testing.aggregators import aggregator_checks, check_aggregator, errors_over_rounds, outlier_errors
from fedseca.testing.attacks import attack_checks, check_attack, damage_to_the_mean
from fedseca.testing.check import Check
from fedseca.testing.data import check_dataset, dataset_checks
from fedseca.testing.models import check_model, model_checks
from fedseca.testing.steps import chain_checks, check_step, step_checks

__all__ = [
    "Check",
    "aggregator_checks",
    "attack_checks",
    "chain_checks",
    "check_aggregator",
    "check_attack",
    "check_dataset",
    "check_model",
    "check_step",
    "damage_to_the_mean",
    "dataset_checks",
    "errors_over_rounds",
    "model_checks",
    "outlier_errors",
    "step_checks",
]
