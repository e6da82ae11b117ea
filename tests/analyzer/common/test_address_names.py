"""Names of addresses from the files that people have.

Proves: analyzer/common/address_names.py
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import kwire
from kwire.analyzer.cli import parser
from kwire.analyzer.common import address_names
from kwire.analyzer.common.address_names import LONGEST_NAME, read_names
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.options.questions import ReportOptions
from kwire.reports import commands
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


# ---------------------------------------------------------------------------------------------------------- everywhere

HOSTILE = 'evil"<img src=x onerror=alert(1)>\x1b[31m|`*_[a](b)\r\n::error::x%0A'
"""A name that means something in a terminal, in HTML, in Markdown, in a filter, and to a build."""


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset with findings of each severity."""
    path = str(tmp_path_factory.mktemp("sasl") / "dataset")
    kwire.analyze(str(SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"), path)
    return path


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    path = tmp_path / "names.json"
    path.write_text(json.dumps(pod(HOSTILE, "127.0.0.1", "10.0.0.1", "10.0.0.9")))
    return str(path)


@pytest.mark.parametrize(
    ("text", "long", "brief"),
    [
        ("10.0.0.1:9092 is slow.", "kafka-0 (10.0.0.1:9092) is slow.", "kafka-0:9092 is slow."),
        ("client at 10.0.0.1", "client at kafka-0 (10.0.0.1)", "client at kafka-0"),
        ("orders (10.0.0.1), and", "orders (kafka-0 at 10.0.0.1), and", "orders (kafka-0), and"),
        ("[fd00::7]:9092, then", "six ([fd00::7]:9092), then", "six:9092, then"),
        ("from fd00::7.", "from six (fd00::7).", "from six."),
        ("10.0.0.10 10.0.0.1.2 110.0.0.1 v10.0.0.1", *["10.0.0.10 10.0.0.1.2 110.0.0.1 v10.0.0.1"] * 2),
        ("10.0.0.1:4000-10.0.0.1:9092#1", *["10.0.0.1:4000-10.0.0.1:9092#1"] * 2),
        ("at 12:30:05 in 1:2:3", *["at 12:30:05 in 1:2:3"] * 2),
    ],
)
def test_sentences_have_names(text: str, long: str, brief: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("10.0.0.1 kafka-0\nfd00::7 six\n")
    assert address_names.in_text(text) == text
    with address_names.opened([path]):
        assert address_names.in_text(text) == long
        assert address_names.in_text(text, brief=True) == brief
    assert address_names.known_names() == {}


def shown(*arguments: str) -> list[dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert parser.main(["show", CAPTURE, *arguments, "--json"]) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_filters_have_the_names(names: str) -> None:
    every = len(shown())
    assert len(shown("--names", names, "--filter", "client_name == kafka-0")) == every
    assert len(shown("--names", names, "--filter", 'broker_name ~ "^kafka" and api == Produce')) == 16
    assert len(shown("--names", names, "--filter", "client_name == broker_name")) == every
    assert not shown("--names", names, "--filter", "client_name == kafka-1 or broker_name is null")
    with_bodies = shown("--names", names, "--filter", "request.acks == -1 and client_name == kafka-0")
    assert with_bodies == shown("--names", names, "--filter", "request.acks == -1")


def test_a_filter_without_names_says_which_option_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser.main(["show", CAPTURE, "--filter", "client_name == kafka-0"])
    assert "`client_name` needs names of addresses\nhint: --names FILE has them" in capsys.readouterr().err


def test_fields_and_counts_have_the_names(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser.main(["show", CAPTURE, "--names", names, "--fields", "broker_name,api", "--limit", "1"])
    assert capsys.readouterr().out.splitlines()[-1].split() == ["kafka-0", "ApiVersions"]
    parser.main(["show", CAPTURE, "--names", names, "--count-by", "client_name"])
    assert capsys.readouterr().out.split() == ["client_name", "exchanges", "kafka-0", "77"]


def test_sql_has_the_names(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT client_name, count(*) AS n FROM exchanges WHERE broker_name = 'kafka-0' GROUP BY 1"
    parser.main(["sql", CAPTURE, query, "--names", names, "--format", "csv"])
    assert capsys.readouterr().out == "client_name,n\nkafka-0,77\n"
    parser.main(["sql", CAPTURE, "SELECT * FROM latency_by_broker", "--names", names, "--format", "csv"])
    heading, row, *_ = capsys.readouterr().out.splitlines()
    assert (heading.split(",")[:3], row.split(",")[:2]) == (
        ["broker", "broker_name", "api"],
        ["127.0.0.1:9092", "kafka-0"],
    )
    parser.main(["sql", CAPTURE, "SELECT * FROM address_names", "--names", names, "--format", "csv"])
    assert capsys.readouterr().out == "address,name\n127.0.0.1,kafka-0\n"
    with pytest.raises(SystemExit):
        parser.main(["sql", CAPTURE, "SELECT client_name FROM exchanges"])
    assert "hint: --names FILE gives names to addresses, and tables the column client_name" in capsys.readouterr().err


def test_names_and_zones_go_together(names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zones = tmp_path / "zones"
    zones.write_text("127.0.0.0/8 home\n")
    query = "SELECT * FROM zones"
    parser.main(["sql", CAPTURE, query, "--names", names, "--zones", str(zones), "--format", "csv"])
    heading, row, *_ = (line.split(",") for line in capsys.readouterr().out.splitlines())
    values = dict(zip(heading, row, strict=True))
    assert (values["from_zone"], values["client_ip"], values["client_name"]) == ("home", "127.0.0.1", "kafka-0")


def test_findings_and_story_name_who(names: str, sasl: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser.main(["findings", sasl, "--names", names, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any("kafka-0 (127.0.0.1:9095) refused the login" in row["text"] for row in rows)
    for row in rows:
        assert row["who"].get("client_name") == ("kafka-0" if "client_ip" in row["who"] else None)
    parser.main(["story", sasl, "--names", names])
    story = capsys.readouterr().out
    assert "kafka-0" in story


def findings_of(sasl: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser.main(["findings", sasl, *arguments])
    return capsys.readouterr().out


def test_hostile_names_in_a_terminal(hostile: str, sasl: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["show", CAPTURE], ["show", CAPTURE, "--tree", "--limit", "2"], ["story", sasl]):
        parser.main([*arguments, "--names", hostile])
        out = capsys.readouterr().out
        assert all(line.isprintable() for line in out.replace("\t", " ").split("\n"))
    assert "\\x1b[31m" in findings_of(sasl, capsys, "--names", hostile)


def test_hostile_names_as_annotations(hostile: str, sasl: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No line begins with a command of the runner but those of findings."""
    lines = findings_of(sasl, capsys, "--names", hostile, "--format", "github").splitlines()
    assert any("evil" in line for line in lines)
    commands = [line for line in lines if line.startswith("::")]
    assert all(re.match(r"::(error|warning|notice) title=[a-z-]+::", line) for line in commands)


def test_hostile_names_in_markdown(hostile: str, sasl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = tmp_path / "summary.md"
    findings_of(sasl, capsys, "--names", hostile, "--summary", str(summary))
    text = summary.read_text()
    assert "evil" in text
    assert not re.search(r"(?<!\\)(<img|\[a\])", text)


def test_hostile_names_in_junit(hostile: str, sasl: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = ElementTree.fromstring(findings_of(sasl, capsys, "--names", hostile, "--format", "junit"))
    assert any("<img" in (failure.text or "") for failure in root.iter("failure"))


def test_hostile_names_in_a_report(hostile: str, sasl: str) -> None:
    with address_names.opened([hostile]):
        report = commands.report_on(ReportOptions(sources=[sasl]), [sasl], None)
        html, markdown, text = (commands.rendered(report, form) for form in ("html", "md", "json"))
    for rendered in (html, markdown, text):
        assert "evil" in rendered
        assert "\x1b" not in rendered
    assert "<img" not in html
    assert not re.search(r"(?<!\\)(<img|\[a\])", markdown)
    answers = json.loads(text)["answers"]
    assert all("evil" in row["client_name"] for row in answers["latency_by_client"]["rows"])


def test_hostile_names_are_values_of_a_filter(hostile: str) -> None:
    name = next(iter(read_names([hostile]).values()))
    quoted = name.replace('"', '""')
    assert len(shown("--names", hostile, "--filter", f'client_name == "{quoted}"')) == len(shown())
