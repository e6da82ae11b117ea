"""Clients whose client id names no team, and too few requests of them. `orders.pcap` is a capture of one's own."""

import kwire

CODE = "acme-client-id"


def test_clients_without_a_team_are_named() -> None:
    findings = kwire.findings("orders.pcap", only=[CODE], thresholds={f"{CODE}.requests": 12})
    assert {finding.who["client_id"] for finding in findings} == {"franz-snappy", "franz-zstd", "franz-consumer"}


def test_a_client_of_a_few_requests_is_someones_test() -> None:
    assert kwire.findings("orders.pcap", only=[CODE], thresholds={f"{CODE}.requests": 1000}) == []
