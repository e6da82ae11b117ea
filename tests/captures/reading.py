"""How the tests of this folder read captures: a file or bytes in, the kernel's rows as `dpkt_twin.Row`s out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from kwire.captures.files import CapturePoint, FileInfo
from kwire.captures.packets import COUNTED, Packets, Reader
from tests.captures.dpkt_reference import Row


@dataclass(frozen=True)
class Reading:
    """All that a reader gave of one capture point."""

    rows: list[Row]
    counts: dict[str, int]
    notes: list[str]
    files: list[FileInfo]
    secrets: list[bytes]
    batches: int
    not_understood: dict[str, int]

    @property
    def nonzero(self) -> dict[str, int]:
        return {name: count for name, count in self.counts.items() if count and name != "packets"}


def rows_of(batch: Packets) -> list[Row]:
    """A batch's rows as plain values."""
    out = []
    for row in range(len(batch)):
        at, size = int(batch.columns.payload_at[row]), int(batch.columns.payload_captured[row])
        payload = batch.buffer[at : at + size].tobytes()
        assert at >= 0
        assert len(payload) == size, "the payload lies in the window"
        out.append(
            Row(
                number=int(batch.columns.number[row]),
                record_at=int(batch.columns.record_at[row]),
                time_ns=int(batch.columns.time_ns[row]),
                interface=int(batch.columns.interface[row]),
                source=struct.pack(">QQ", int(batch.columns.src_hi[row]), int(batch.columns.src_lo[row])),
                target=struct.pack(">QQ", int(batch.columns.dst_hi[row]), int(batch.columns.dst_lo[row])),
                src_port=int(batch.columns.src_port[row]),
                dst_port=int(batch.columns.dst_port[row]),
                seq=int(batch.columns.seq[row]),
                ack=int(batch.columns.ack[row]),
                window=int(batch.columns.window[row]),
                flags=int(batch.columns.flags[row]),
                payload=payload,
                payload_length=int(batch.columns.payload_length[row]),
            )
        )
    return out


def read_point(point: CapturePoint, **settings: object) -> Reading:
    """Read a capture point to its end, checking what must hold for every capture."""
    reader = Reader(point, **settings)  # type: ignore[arg-type]
    rows: list[Row] = []
    batches = 0
    for batch in reader:
        assert all(getattr(batch.columns, name).flags.c_contiguous for name in ("number", "src_hi", "payload_at"))
        assert all(0 <= index < len(reader.files) for index in batch.columns.file.tolist())
        rows.extend(rows_of(batch))
        batches += 1
        batch.release()
    counts = reader.counts
    not_understood = counts.pop("not_understood", {})
    assert counts["packets"] == sum(counts[name] for name in COUNTED), "every packet is in exactly one class"
    assert counts["packets"] == sum(info.packets for info in reader.files)
    assert counts["tcp"] == len(rows)
    assert reader.bytes_read == sum(info.size for info in reader.files) or any(reader.notes)
    return Reading(rows, counts, reader.notes, reader.files, reader.secrets, batches, not_understood)


def read(path: Path, **settings: object) -> Reading:
    """Read one file."""
    return read_point(CapturePoint(path.name, (str(path),)), **settings)


def read_bytes(data: bytes, folder: Path, **settings: object) -> Reading:
    """Read a capture that is not in a file yet."""
    path = folder / "forged"
    path.write_bytes(data)
    return read(path, **settings)
