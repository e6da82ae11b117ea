"""`python -m tests.brokers VERSION [--nodes N]`: brokers to try things at, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec, scram_users


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.brokers", description=__doc__)
    parser.add_argument("version", nargs="?", default=jars.NEWEST)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a broker property")
    parser.add_argument("--secure", action="store_true", help="also listeners SASL, SSL and SASL_SSL")
    options = parser.parse_args()
    settings = tuple((key, value) for key, _, value in (setting.partition("=") for setting in options.set))
    listeners = (("SASL", "SASL_PLAINTEXT"), ("SSL", "SSL"), ("SASL_SSL", "SASL_SSL")) if options.secure else ()
    spec = Spec(options.version, options.nodes, settings, listeners)
    with tempfile.TemporaryDirectory(prefix="kwire-brokers-") as folder:
        cluster = Cluster(spec, Path(folder, "cluster"), jars.find_java(), jars.fetch(spec.version))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            cluster.start()
            for name in ("PLAINTEXT", *(name for name, _ in listeners)):
                print(name, *(cluster.address(name, node.number) for node in cluster.nodes), flush=True)
            if listeners:
                scram_users(cluster)
                print("trust", cluster.certificate, flush=True)
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            return 0
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
