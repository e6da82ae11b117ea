"""Times one command for each question that users of Kafka ask a capture (what other analyzers are asked for and miss).

    python -m tests.bench.questions --size 1G            # both captures, generated, analysed once, then asked
    python -m tests.bench.questions --dataset DATASET    # one that is there

The bar is 10 s a question on a capture of 1 GB, the whole process counted, on a dataset; making the dataset is timed
apart. It prints a table and writes no file.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench import generate
from tests.shared import KWIRE

BAR_S = 10

_SQL = ("sql", "DATASET")
_FINDINGS = ("findings", "DATASET")
# fmt: off
QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Who writes topic X, from where?", (*_SQL, "SELECT * FROM producers WHERE topic = 'orders-00'")),
    ("Who reads topic X?", (*_SQL, "SELECT * FROM consumers WHERE topic = 'orders-00'")),
    ("Which clients break when the broker goes to 4.0?", (*_FINDINGS, "--target", "4.0")),
    ("Is a slow fetch the broker or the long poll?",
     (*_SQL, "SELECT cause, count(*) AS exchanges, max(hold_us) AS hold_us, max(broker_us) AS broker_us FROM exchanges "
      "WHERE api = 'Fetch' GROUP BY cause ORDER BY exchanges DESC")),
    ("Which request timed out, and where was it lost?",
     (*_FINDINGS, "--only", "request-unanswered,answer-after-client-timeout,connection-reset,tcp-retransmission")),
    ("Why is the group rebalancing, how long did consumers stand still?",  # of one: kwire story DATASET --group G
     (*_SQL, "SELECT group_id, began, ended, trigger, trigger_member, stopped FROM rebalances ORDER BY began")),
    ("Who is throttled, by how much, by which broker?", (*_SQL, "SELECT * FROM throttled")),
    ("Topic names instead of ids?", (*_SQL, "SELECT * FROM named_topics LIMIT 50")),
    ("A correlation id does not match: whose fault?", (*_FINDINGS, "--only", "correlation-mismatch")),
    ("Which leg makes my records late?",
     (*_SQL, "SELECT topic, producer_client, reader, batches, p50_us, p99_us, late_leg, late_leg_us FROM end_to_end")),
    ("How far are readers behind?", (*_SQL, "SELECT * FROM lag_trend LIMIT 50")),
    ("What could not be decoded, or is encrypted?",
     (*_FINDINGS, "--only", "opaque-bytes,frame-malformed,unknown-api,tls-not-decoded,capture-lost-packets")),
    ("Which fetch sessions misbehave?",
     (*_FINDINGS, "--only", "fetch-spin,fetch-above-high-watermark,fetch-session-churn,partition-stuck")),
    ("Bytes, batch sizes and compression by topic?", (*_SQL, "SELECT * FROM batch_use")),
    ("Which logins and rights failed, what crosses in the clear?",
     (*_FINDINGS, "--only", "authentication-failed,authorization-failed,credentials-in-clear")),
    ("What is wrong, worst first?", _FINDINGS),
    ("What happened, in ten lines?", ("story", "DATASET")),
)
# fmt: on
"""Each question of ANALYZERS 5 that a dataset answers (keys for TLS are the analysis' own), and the command."""


def seconds(*arguments: str) -> float:
    """How long a command takes as a process of its own. Raises CalledProcessError where it fails."""
    begin = time.perf_counter()
    ran = subprocess.run([*KWIRE, *arguments], capture_output=True, text=True, check=False)
    took = time.perf_counter() - begin
    if ran.returncode not in (0, 1):
        raise subprocess.CalledProcessError(ran.returncode, ran.args, ran.stdout, ran.stderr)
    return took


def timed(dataset: str) -> list[tuple[str, str, float]]:
    """(question, command, seconds) of all."""
    results = []
    for question, command in QUESTIONS:
        arguments = [dataset if word == "DATASET" else word for word in command]
        shown = " ".join(f'"{word}"' if " " in word or "'" in word else word for word in ("kwire", *command))
        results.append((question, shown, seconds(*arguments)))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.questions", description=__doc__)
    parser.add_argument("--size", default="1G", help="of each generated capture")
    parser.add_argument("--dataset", action="append", default=[], help="ask this one instead (repeatable)")
    options = parser.parse_args()
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        datasets = list(options.dataset)
        for case in () if datasets else ("small", "large"):
            capture, dataset = Path(folder) / f"{case}.pcap", str(Path(folder) / case)
            getattr(generate, case)(capture, generate.size_of(options.size))
            print(f"{case}: analysed in {seconds('analyze', str(capture), '-o', dataset):.1f} s", flush=True)
            capture.unlink()
            datasets.append(dataset)
        for dataset in datasets:
            print(f"\n{Path(dataset).name}")
            for question, command, took in timed(dataset):
                slow |= took > BAR_S
                print(f"{took:6.1f} s  {question}\n          {command}", flush=True)
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
