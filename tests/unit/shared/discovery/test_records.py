"""What the registry keeps, and what former versions have kept there."""

import json
from dataclasses import replace

from paramfleet_shared.discovery.records import Member

PSERVER = Member(
    role="pserver", index=1, incarnation=2, endpoint="h:1", admin="h:2", host="h", pid=7
)


def test_a_member_is_kept_with_what_it_says_of_its_disk() -> None:
    durable = replace(PSERVER, durable=True, holds_run=3)

    assert Member.from_json(durable.to_json()) == durable


def test_a_record_of_before_is_of_a_member_that_is_not_durable() -> None:
    kept = json.loads(PSERVER.to_json())
    del kept["durable"], kept["holds_run"]

    assert Member.from_json(json.dumps(kept)) == PSERVER
