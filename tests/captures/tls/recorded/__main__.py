"""`python -m tests.captures.tls.recorded`: record them again."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.captures.tls.recorded import FOLDER
from tests.captures.tls.sealing import certificates

AGENT = Path.home() / ".m2/repository/name/neykov/extract-tls-secrets/4.0.0/extract-tls-secrets-4.0.0.jar"
"""mvn dependency:get -Dartifact=name.neykov:extract-tls-secrets:4.0.0"""

JAVA = {
    "java-1.2-gcm": ("TLSv1.2", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", 2, ""),
    "java-1.2-chacha": ("TLSv1.2", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", 1, ""),
    "java-1.2-cbc": ("TLSv1.2", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", 2, ""),
    "java-1.3": ("TLSv1.3", "TLS_AES_128_GCM_SHA256", 2, ""),
    "java-1.3-key-updates": ("TLSv1.3", "TLS_AES_256_GCM_SHA384", 1, "AES/GCM/NoPadding KeyUpdate 2^10"),
}
"""Version, suite, connections (the second resumes), jdk.tls.keyLimits."""


def java(name: str, folder: Path) -> str:
    """Two engines of JSSE, with the agent's key log."""
    version, suite, connections, limits = JAVA[name]
    keys = folder / "keys.log"
    keys.touch()
    settings = folder / "java.security"
    settings.write_text(f"jdk.tls.keyLimits={limits}\n" if limits else "")
    store = folder / "store.p12"
    if not store.exists():
        subprocess.run(
            [
                "keytool",
                "-genkeypair",
                "-alias",
                "a",
                "-keyalg",
                "RSA",
                "-keysize",
                "2048",
                "-dname",
                "CN=broker.example",
                "-validity",
                "36500",
                "-storetype",
                "PKCS12",
                "-keystore",
                str(store),
                "-storepass",
                "secret",
            ],
            check=True,
            capture_output=True,
        )
    texts = "30" if limits else "6"
    words = [
        "java",
        f"-Djava.security.properties={settings}",
        f"-javaagent:{AGENT}={keys}",
        str(FOLDER / "Sessions.java"),
        str(store),
        version,
        suite,
        str(connections),
        texts,
    ]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    java_version = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True).stderr.splitlines()[
        0
    ]
    log = "".join(f"K {line}\n" for line in dict.fromkeys(keys.read_text().splitlines()) if line.strip())
    return f"# {java_version}, extract-tls-secrets 4.0.0, {version} {suite} {limits}\n{log}{done.stdout}"


def openssl(folder: Path) -> str:
    """`openssl s_server` and `s_client` by a relay: a session of TLS 1.3, then early data in one that resumes it."""
    (folder / "server.pem").write_text(certificates()[0])
    keys, session, early = folder / "openssl.log", folder / "session.pem", folder / "early"
    early.write_bytes(b"early bird\n")
    port, out = _free(), []
    server = subprocess.Popen(
        [
            "openssl",
            "s_server",
            "-accept",
            str(port),
            "-cert",
            str(folder / "server.pem"),
            "-early_data",
            "-tls1_3",
            "-naccept",
            "2",
            "-quiet",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        for words in (["-sess_out", str(session)], ["-sess_in", str(session), "-early_data", str(early)]):
            lines: list[str] = []
            time.sleep(1)
            relayed = _relay(port, lines)
            client = subprocess.Popen(
                [
                    "openssl",
                    "s_client",
                    "-connect",
                    f"127.0.0.1:{relayed}",
                    "-tls1_3",
                    "-keylogfile",
                    str(keys),
                    "-quiet",
                    "-no_ign_eof",
                    "-servername",
                    "broker.example",
                    *words,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            assert client.stdin is not None
            assert server.stdin is not None
            sent = [("C", early.read_bytes())] if "-sess_in" in words else []
            for text in (b"asked\n", b"again\n"):
                for who, side in (("C", client), ("S", server)):
                    time.sleep(0.5)
                    assert side.stdin is not None
                    side.stdin.write(text)
                    side.stdin.flush()
                    sent.append((who, text))
            time.sleep(0.5)
            client.stdin.close()
            client.wait(10)
            time.sleep(0.5)
            out += ["-", *lines, *(f"{who} T {text.hex()}" for who, text in sent)]
    finally:
        server.terminate()
        server.wait()
    version = subprocess.run(["openssl", "version"], check=True, capture_output=True, text=True).stdout.strip()
    log = "".join(f"K {line}\n" for line in keys.read_text().splitlines() if not line.startswith("#"))
    return f"# {version}, s_server -early_data and s_client -keylogfile\n{log}" + "\n".join(out) + "\n"


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _relay(port: int, lines: list[str]) -> int:
    """Listen once, pass all on to a port, and note it; returns where it listens."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        client, _ = listening.accept()
        server = socket.create_connection(("127.0.0.1", port))

        def pass_on(who: str, source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(65536):
                lines.append(f"{who} W {data.hex()}")
                target.sendall(data)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

        threading.Thread(target=pass_on, args=("S", server, client), daemon=True).start()
        pass_on("C", client, server)

    threading.Thread(target=run, daemon=True).start()
    own_port: int = listening.getsockname()[1]
    return own_port


def main(wanted: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="kwire-tls-") as name:
        folder = Path(name)
        for name in JAVA:
            if not wanted or name in wanted:
                (FOLDER / f"{name}.txt").write_text(java(name, folder))
                (folder / "keys.log").unlink()
        if not wanted or "openssl-1.3-early-data" in wanted:
            (FOLDER / "openssl-1.3-early-data.txt").write_text(openssl(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
