"""Names of addresses from the files that people have.

Proves: analyzer/common/address_names.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.cli import parser
from kwire.analyzer.common.address_names import LONGEST_NAME, read_names
from kwire.analyzer.common.errors import UsageError
from tests.shared import SAMPLES

CAPTURE = str(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap")


def pod(name: str, *addresses: str, host: bool = False) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"hostNetwork": True} if host else {},
        "status": {"podIP": addresses[0], "podIPs": [{"ip": ip} for ip in addresses], "hostIP": "10.0.0.9"},
    }


WIDE = """\
NAMESPACE   NAME             READY   STATUS    RESTARTS      AGE   IP           NODE     NOMINATED NODE   GATES
shop        orders-7f9-abc   1/1     Running   3 (2d ago)    9d    10.1.0.5     node-1   <none>           -
shop        waiting-1        0/1     Pending   0             1m    <none>       <none>   <none>           -
kafka       kafka-0          1/1     Running   0             9d    10.1.0.7     node-2   <none>           -
"""
SLICES = {
    "kind": "EndpointSliceList",
    "items": [
        {
            "kind": "EndpointSlice",
            "metadata": {"name": "kafka-x2"},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.1.0.7"], "targetRef": {"kind": "Pod", "name": "kafka-0"}},
                {"addresses": ["10.1.0.8"], "hostname": "kafka-1"},
                {"addresses": ["10.1.0.6"]},
            ],
        }
    ],
}
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "hosts": (
        "# mine\n127.0.0.1\tlocalhost loopback # both\n\n::1 ip6-localhost\n2001:DB8::0:1  broker.example\n",
        {"127.0.0.1": "localhost", "::1": "ip6-localhost", "2001:db8::1": "broker.example"},
    ),
    "csv": (
        '\ufeffaddress,name,team\n10.0.0.1,"orders, main",a\n::ffff:10.0.0.2,kafka-0,b\n10.0.0.1,second,c\n',
        {"10.0.0.1": "orders, main", "10.0.0.2": "kafka-0"},
    ),
    "csv without a heading": ("10.0.0.1;orders\n", {"10.0.0.1": "orders"}),
    "kubectl get pods -o wide": (WIDE, {"10.1.0.5": "orders-7f9-abc", "10.1.0.7": "kafka-0"}),
    "kubectl get pods -o json": (
        json.dumps(
            {
                "kind": "List",
                "items": [pod("orders", "10.1.0.5", "fd00::5"), pod("proxy", "10.0.0.9", host=True), {"kind": "Pod"}],
            }
        ),
        {"10.1.0.5": "orders", "fd00::5": "orders"},
    ),
    "one pod": (json.dumps(pod("orders", "10.1.0.5")), {"10.1.0.5": "orders"}),
    "endpointslices": (json.dumps(SLICES), {"10.1.0.7": "kafka-0", "10.1.0.8": "kafka-1"}),
    "a service": (
        json.dumps(
            {
                "kind": "Service",
                "metadata": {"name": "kafka"},
                "spec": {"clusterIP": "10.96.0.4", "clusterIPs": ["10.96.0.4", "None"]},
            }
        ),
        {"10.96.0.4": "kafka"},
    ),
    "nothing": ("", {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_told_by_its_content(form: str, tmp_path: Path) -> None:
    text, names = FORMS[form]
    path = tmp_path / "names"
    path.write_text(text, encoding="utf-8")
    assert read_names([str(path)]) == names


def test_the_first_file_counts(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).write_text(f"10.0.0.1 name-{number}\n10.0.0.{2 + number} other\n")
    names = read_names([str(tmp_path / "0"), str(tmp_path / "1")])
    assert names == {"10.0.0.1": "name-0", "10.0.0.2": "other", "10.0.0.3": "other"}


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("10.0.0.1\n", "line 1 is no address with a name"),
        ("10.0.0.1 a\nhello world\n", "line 2 is no address with a name"),
        ("10.0.0.1,a\n10.0.0.300,b\n", "line 2 is no address with a name"),
        ('{"items": [', "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_none_of_these(text: str, reading: str, tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_text(text)
    with pytest.raises(UsageError, match=reading):
        read_names([str(path)])


def test_hostile_names_are_printable_and_short(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_text(json.dumps(pod("\x1b]0;x\n" + "y" * 1000, "10.1.0.5")))
    (name,) = read_names([str(path)]).values()
    assert name.startswith("\\x1b]0;x\\n")
    assert len(name) == LONGEST_NAME


def test_objects_of_any_shape_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    strange = [1, None, {"items": 3}, {"items": [{"items": []}, 5]}, {"spec": [], "status": 7, "endpoints": {"a": 1}}]
    path.write_text(json.dumps(strange))
    assert read_names([str(path)]) == {}


# ---------------------------------------------------------------------------------------------------------- kwire show


@pytest.fixture
def names(tmp_path: Path) -> str:
    path = tmp_path / "names"
    path.write_text("127.0.0.1 kafka-0\n10.9.9.9 nobody\n")
    return str(path)


def test_show_has_the_names(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parser.main(["show", CAPTURE, "--names", names, "--json", "--limit", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["client_name"], row["broker_name"]) == ("kafka-0", "kafka-0")
    parser.main(["show", CAPTURE, "--json", "--limit", "1"])
    assert "client_name" not in json.loads(capsys.readouterr().out)
    parser.main(["show", CAPTURE, "--names", names, "--limit", "1", "--wide"])
    assert f"kafka-0:{row['client_port']}" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed: it is the judge here")
def test_wireshark_has_the_names_of_those_in_the_file(names: str, tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    assert parser.main(["show", CAPTURE, "--names", names, "--limit", "1", "-w", str(out)]) == 0
    command = ["tshark", "-r", str(out), "-o", "nameres.network_name:TRUE", "-T", "fields", "-e", "ip.src_host"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {"kafka-0"}
    assert b"nobody" not in out.read_bytes()


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.main(["show", CAPTURE, "--names", "/no/such/file"])
    assert ended.value.code == 2
    assert "/no/such/file: No such file" in capsys.readouterr().err
