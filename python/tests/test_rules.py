"""Rules, and what a script's optimizer becomes."""

import pytest
import torch

import slackline
from slackline import _core, _rules


def test_text_is_a_config_s_optimizer_with_the_same_numbers():
    for rule in (
        slackline.SGD(0.1),
        slackline.SGD(0.1, momentum=0.9, weight_decay=1e-4),
        slackline.SGD(0.1, momentum=0.9, nesterov=True),
        slackline.Adagrad(),
        slackline.Adam(lr=1e-3, betas=(0.8, 0.99)),
        slackline.AdamW(),
    ):
        assert _core.Rule(rule.text()).learning_rate == rule.lr


def test_optimizers_of_torch_keep_their_options():
    net = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    rule = _rules.rule_of_group(adam, adam.param_groups[0])
    assert rule == slackline.Adam(lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad=False is required"),
        (lambda p: torch.optim.SGD(p, lr=1, momentum=0.5, dampening=0.1), "dampening=0 is required"),
        (lambda p: torch.optim.RMSprop(p), "RMSprop cannot run on servers"),
    ],
)
def test_what_servers_cannot_do_is_refused_by_name(make, said):
    optimizer = make(torch.nn.Linear(2, 2).parameters())
    with pytest.raises(ValueError, match=said):
        _rules.rule_of_group(optimizer, optimizer.param_groups[0])


def test_an_unknown_option_of_a_group_is_named():
    with pytest.raises(ValueError, match="Adam has no option 'momentum'; it has lr, betas"):
        slackline.Adam().with_options({"momentum": 0.9})


def test_a_rule_with_impossible_numbers_is_refused():
    with pytest.raises(ValueError, match="learning_rate"):
        _core.Rule(slackline.SGD(lr=-1).text())
