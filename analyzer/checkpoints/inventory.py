"""Inventory of a checkpoint: the state between two windows, class by class.

    stage       what it keeps between windows, and what bounds it

    reader      files and notes so far, counts of packets, IP fragments in progress: of 128 packets; of a file that
                grows how far it was read, and how to read on
    flows       four-tuples, connections by slot, those that linger, past ones: what is open, an hour, `REMEMBERED`
    streams     of each connection and direction: next byte, the last 16 packets; bytes out of order: `waiting_bytes`
    tls         sessions and their directions: hellos, epoch, number of the next record, ciphertext of an unfinished
                one, never a secret or a key (below): 1 MiB a connection
    framing     of each direction: mode, bytes of the unfinished frame, where they came: `frame_limit`
    matching    requests that wait for answers, their partitions; strings and lists: distinct names
    zookeeper   the same for connections to ZooKeeper: a frame each
    merging     numbers of names, of open connections
    meaning     `Latency` (throttles, leaders of groups, fetch sessions), `ControlExchanges` (messages of groups and
                transactions that wait), and `Clients`, `Groups`, `Offsets`, `Transactions`, `Journeys`, which keep
                their events to the end, or make rows of them where they are too many (`points.MOST_HELD_BYTES`)
    watch       seconds that are not over, groups in rebalance, the rows of a lap: bounds of `counts` and `laps`
    summary     counts; coverage of connections that ended: APIs, topics, clients
    records     batches of record sets whose exchange has not ended: `HELD_BYTES`

Left out is what settings say again (options, layouts, pools), and memory that means nothing between windows. Rows of
tables are handed out before a snapshot is taken, so none is in it.

Of TLS connections that keys opened, neither keys nor the secrets they come of are stored. Who takes them up finds the
keys in the key log again, and goes on at the very next record; where they are not there (secrets that an earlier pcapng
file brought along, a session known by no name), the connection goes on as after a hole: TLS 1.3 can be found again
(`kwire.captures.tls.session`), of TLS 1.2 the rest stays encrypted, and is counted so.

In and out: nothing. Rule: a class that holds state is here, or encoding fails.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable
from typing import Any, Final

from kwire.analyzer.checkpoints.codec import Kind, kind_of

_PLAIN: Final = (
    "kwire.captures.files.sources.FileInfo",
    "kwire.captures.files.layouts.Layout:state interfaces comments notes _secrets_bytes _foreign _drops _commented",
    "kwire.captures.files.growing_files.FilePosition",
    "kwire.captures.flow_tables.FlowTables",
    "kwire.captures.fragments.FragmentTables",
    "kwire.captures.stream_tables.StreamTables",
    "kwire.captures.tls.detection.TlsDetector:held tls _first_bytes _before",
    "kwire.captures.tls.midstream.Search:budget",
    "kwire.captures.tls.direction.Direction-opener",
    "kwire.captures.tls.session.Session-_keys -_openers -_nameless",
    "kwire.captures.tls.stage.Stage:_since _state _sessions _openings _doubted _plainly",
    "kwire.captures.tls.clear_handshakes.ClearHandshakes:_sessions _openings _settled",
    "kwire.captures.packets.Reader:files notes _rows _counts _fragments _dropped _read_before _left",
    "kwire.captures.fragments.Fragments:tables",
    "kwire.captures.flows.Flows:tables",
    "kwire.captures.streams.Streams:shard shards waiting_bytes _tables",
    "kwire.analyzer.protocol.jute._Side",
    "kwire.analyzer.protocol.jute._Request",
    "kwire.analyzer.protocol.jute.Conversation:_sides _open",
    "kwire.analyzer.protocol.embedded.GroupProtocols:_facts",
    "kwire.analyzer.bulk.symbols.Symbols",
    "kwire.analyzer.bulk.state.State",
    "kwire.analyzer.bulk.state.Framing",
    "kwire.analyzer.bulk.state.Matching",
    "kwire.analyzer.bulk.state.Parts",
    "kwire.analyzer.bulk.state.Output",
    "kwire.analyzer.bulk.purgatory.PurgatoryState",
    "kwire.analyzer.bulk.zookeeper.ZooKeeperConversations:_kind _spoken",
    "kwire.analyzer.bulk.shard.Conversations:"
    "_state _v _strings_out _lists_out _most_strings _most_lists _overheard _spare",
    "kwire.analyzer.bulk.rows.Names",
    "kwire.analyzer.bulk.rows._Symbols",
    "kwire.analyzer.bulk.rows.Message",
    "kwire.analyzer.bulk.rows.ShardMerger:names _shards _slots",
    "kwire.analyzer.bulk.engine._Shard",
    "kwire.analyzer.bulk.engine.Engine:flows merging packets done_packets reader _shards _recycled",
    "kwire.analyzer.messages.raw_messages.HeldMessages:_requests _responses",
    "kwire.analyzer.records.arrow_tables.RecordCounts",
    "kwire.analyzer.records.arrow_tables.RecordTables:counts _held _held_bytes _held_size",
    "kwire.analyzer.analysis.clients._Client",
    "kwire.analyzer.analysis.clients._Open",
    "kwire.analyzer.analysis.clients.Clients",
    "kwire.analyzer.analysis.connections.Coverage",
    "kwire.analyzer.analysis.connections.Unrecognised",
    "kwire.analyzer.analysis.connections.EndedConnections",
    "kwire.analyzer.analysis.event_log.EventLog",
    "kwire.analyzer.analysis.delivery_times.DeliveryTimes",
    "kwire.analyzer.analysis.group_events.Contact",
    "kwire.analyzer.analysis.groups.GroupCollector",
    "kwire.analyzer.analysis.control_exchanges.ControlExchanges:_messages _groups",
    "kwire.analyzer.analysis.journeys.Journeys-_numbers -_origin_of -_strings",
    "kwire.analyzer.analysis.latency.Latency:_mutes _leaders sessions",
    "kwire.analyzer.analysis.latency._Leaders:_answered",
    "kwire.analyzer.analysis.latency._Mutes:_until _after _any",
    "kwire.analyzer.analysis.logins.Login",
    "kwire.analyzer.analysis.cluster_metadata.TopicIds",
    "kwire.analyzer.analysis.cluster_metadata.Advertised",
    "kwire.analyzer.analysis.cluster_metadata.Brokers",
    "kwire.analyzer.analysis.cluster_metadata.Offers",
    "kwire.analyzer.analysis.cluster_metadata.Leaders",
    "kwire.analyzer.frame.log.Log",
    "kwire.analyzer.frame.numbered_keys.NumberedKeys",
    "kwire.analyzer.analysis.numbered_places.NumberedPlaces",
    "kwire.analyzer.analysis.offsets.Offsets",
    "kwire.analyzer.analysis.reader_positions.Positions",
    "kwire.analyzer.analysis.producers.ProducerEvent",
    "kwire.analyzer.analysis.producers.Producer:"
    "transactional_id transactions _current _tried _owner _takeovers _known _given _timeout_ms _earlier_timeouts _line "
    "_counts _fenced _last latest",
    "kwire.analyzer.analysis.producers.Transaction",
    "kwire.analyzer.analysis.record_sets.OpenedRecords:_tables",
    "kwire.analyzer.analysis.replicated_offsets.Replicated",
    "kwire.analyzer.analysis.sessions.Sessions:over _partitions _know _known",
    "kwire.analyzer.analysis.sessions._Partitions",
    "kwire.analyzer.analysis.latency_quantiles.Histogram",
    "kwire.analyzer.analysis.latency_quantiles.OwnLatencies",
    "kwire.analyzer.analysis.summary._Api",
    "kwire.analyzer.analysis.summary.Summary",
    "kwire.analyzer.analysis.transaction_log.TransactionLog",
    "kwire.analyzer.analysis.transactions._Marker",
    "kwire.analyzer.analysis.transactions.Transactions",
    "kwire.analyzer.analysis.zookeeper.Committed",
    "kwire.analyzer.analysis.zookeeper.Requests",
    "kwire.analyzer.pipeline.analysis_tables.AnalysisTables:control collectors early_rows _held_before _windows",
    "kwire.analyzer.pipeline.point_tables.PointTables:"
    "names topics summary latency selection analysis _ended _zookeeper _learners _records",
    "kwire.analyzer.pipeline.selection.Selection:messages matched seen",
)
"""MODULE.CLASS, whose fields or slots are stored; `-NAME`: not that one; or `:NAME ...`: these attributes."""

_WATCH: Final = (
    "kwire.analyzer.live.live_counts.Line",
    "kwire.analyzer.live.live_counts.Moment",
    "kwire.analyzer.live.live_counts.Tally",
    "kwire.analyzer.live.live_counts.Second",
    "kwire.analyzer.live.open_requests.OpenAtBroker",
    "kwire.analyzer.live.open_requests.OpenRequests",
    "kwire.analyzer.live.reader_delays.ReaderLine",
    "kwire.analyzer.live.reader_delays.ReaderDelays",
    "kwire.analyzer.live.reader_lag.ReaderLag",
    "kwire.analyzer.live.reader_lag.ReaderStanding",
    "kwire.analyzer.live.live_counts.Counts:time_ns told _told _seconds _groups _since open delays _standing",
    "kwire.analyzer.live.evaluation_windows.EvaluationWindows:"
    "_topics told left_out _sink _rows _since _now _early_after",
    "kwire.analyzer.live.watch_session.SessionState",
)
"""The same, of a watch besides: others do not load them."""

_COLUMNS: Final = (
    "kwire.captures.files.layouts",
    "kwire.captures.flow_tables",
    "kwire.captures.flows",
    "kwire.captures.fragments",
    "kwire.captures.stream_tables",
    "kwire.captures.tls.direction",
    "kwire.analyzer.bulk.state",
    "kwire.analyzer.bulk.symbols",
    "kwire.analyzer.bulk.purgatory",
    "kwire.analyzer.bulk.fields",
)
"""Modules whose integer constants say what is in a table's columns."""


def _class(name: str) -> type:
    # By name: no stage above may look into the tables of those below, and here nothing does, it carries them.
    module, _, of = name.rpartition(".")
    kind: type = getattr(importlib.import_module(module), of)
    return kind


def _made_otherwise() -> dict[str, Callable[[], Any]]:
    """Objects that need something that is not stored."""
    from kwire.analyzer.bulk.zookeeper import wanted
    from kwire.analyzer.protocol.jute import Conversation
    from kwire.captures.files.layouts import Layout
    from kwire.captures.tls.direction import Direction
    from kwire.captures.tls.keylog import KeyLog
    from kwire.captures.tls.session import Session
    from kwire.captures.tls.stage import Stage

    return {
        "kwire.analyzer.protocol.jute.Conversation": lambda: Conversation(wanted),
        "kwire.captures.files.layouts.Layout": Layout,
        "kwire.captures.tls.direction.Direction": Direction,
        "kwire.captures.tls.session.Session": lambda: Session(KeyLog()),
        "kwire.captures.tls.stage.Stage": lambda: Stage(None),
    }


@functools.cache
def kinds(watch: bool = False) -> tuple[Kind, ...]:
    """All of them, in the order of their numbers; `watch`: those of `kwire watch` too."""
    makers = _made_otherwise()
    all_kinds = []
    for line in (*_PLAIN, *_WATCH) if watch else _PLAIN:
        line, _, listed = line.partition(":")
        line, *left = line.replace(" ", "").split("-")
        all_kinds.append(kind_of(_class(line), tuple(left), tuple(listed.split()), makers.get(line)))
    return tuple(all_kinds)


@functools.cache
def shape(watch: bool = False) -> str:
    """Return a digest of classes, attributes and columns: equal for two versions of kwire that hold the same state."""
    lines = [f"{kind.of.__module__}.{kind.of.__qualname__} {' '.join(kind.names)}" for kind in kinds(watch)]
    for name in _COLUMNS:
        constants = vars(importlib.import_module(name)).items()
        numbers = sorted((key, value) for key, value in constants if key.isupper() and type(value) is int)
        lines.append(f"{name} {numbers}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
