"""A campaign: run everything that a machine allows and that is not measured yet, in order of value, resumable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.campaign.run import CampaignResult as CampaignResult
    from ridgeline.lab.campaign.run import run_campaign as run_campaign
    from ridgeline.lab.campaign.steps import CampaignStep as CampaignStep
    from ridgeline.lab.campaign.steps import Facts as Facts
    from ridgeline.lab.campaign.steps import find_facts as find_facts
    from ridgeline.lab.campaign.steps import find_hourly_price as find_hourly_price
    from ridgeline.lab.campaign.steps import plan_campaign as plan_campaign
    from ridgeline.lab.campaign.steps import read_facts as read_facts
    from ridgeline.lab.campaign.steps import read_states as read_states

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "run": ["CampaignResult", "run_campaign"],
        "steps": [
            "CampaignStep",
            "Facts",
            "find_facts",
            "find_hourly_price",
            "plan_campaign",
            "read_facts",
            "read_states",
        ],
    },
)
