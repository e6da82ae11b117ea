"""The tables of what traffic means (`tables.MEANING`): part of the contract in code, as `tables` is.

Out: their columns, each with its Arrow type and a sentence that says what it holds.
"""

from __future__ import annotations

import pyarrow as pa

from kwire.analyzer.dataset.shared_columns import KEY, STRINGS, TIME, TOPIC_PARTITION, Column, columns

EVIDENCE = pa.struct([("connection", pa.string()), ("exchange", pa.int64()), ("reply", pa.int64())])
"""The key of an exchange within its capture point."""
VERSIONS = pa.list_(
    pa.struct(
        [("api", pa.string()), ("min_version", pa.int16()), ("max_version", pa.int16()), ("exchanges", pa.int64())]
    )
)
ASSIGNMENT = pa.list_(pa.struct([("member_id", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]))
STOPPED = pa.list_(pa.struct([("member_id", pa.string()), ("stopped_us", pa.int64())]))
PLACES = pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32())]))
COMMITS = pa.list_(
    pa.struct([("group_id", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
)
WORDS = pa.map_(pa.string(), pa.string())

_EXCHANGE = columns(
    ("connection", pa.string(), "Connection of the exchange that said so."),
    ("exchange", pa.int64(), "Ordinal of its request frame; null for an orphan."),
    ("reply", pa.int64(), "Ordinal of its response frame; null where none."),
)

CLIENTS = (
    KEY[0],
    *columns(
        ("client_id", pa.string(), "Client id as sent; null: none."),
        ("client_ip", pa.string(), "Its address."),
        ("software_name", pa.string(), "Its software, from ApiVersions v3 and newer (KIP-511)."),
        ("software_version", pa.string(), "Its version."),
        ("principal", pa.string(), "The name it logged in with by SASL, never more; null where it used several."),
        ("group_ids", STRINGS, "Groups that its requests name."),
        ("topics_written", STRINGS, "Topics of its Produce requests."),
        ("topics_read", STRINGS, "Topics of its Fetch and ShareFetch requests."),
        ("apis", VERSIONS, "APIs that it used: lowest and highest version, exchanges."),
        ("connections", pa.int64(), "Its connections."),
        ("exchanges", pa.int64(), "Its exchanges."),
        ("errors", pa.int64(), "Those of them with an error."),
        ("first_time", TIME, "First byte of its first request."),
        ("last_time", TIME, "Last byte of its last exchange."),
        ("refused_principal", pa.string(), "The name whose login by SASL was refused; null where several were."),
        (
            "refused_status",
            pa.string(),
            "What the last challenge said that refused its login by OAUTHBEARER, as `invalid_token` (RFC 7628).",
        ),
        (
            "session_lifetime_ms",
            pa.int64(),
            "The shortest session that brokers granted it (SaslAuthenticate); null: without an end.",
        ),
    ),
)

READERS = (
    *KEY,
    *columns(
        ("session_id", pa.int32(), "Fetch session (KIP-227); null: none."),
        ("client_id", pa.string(), "Client id of its requests."),
        ("group_id", pa.string(), "Group that the same client is a member of, where the capture says so."),
    ),
    *TOPIC_PARTITION,
    *columns(
        ("from_time", TIME, "Request that first asked for it."),
        ("to_time", TIME, "End of the last answer of the session that it was part of."),
        ("first_offset", pa.int64(), "First offset asked for."),
        ("last_offset", pa.int64(), "Offset after the last record that it got, else the last one asked for."),
        ("records", pa.int64(), "Records in its answers, as batch headers say; null where only content would say."),
        ("record_bytes", pa.int64(), "Bytes of them."),
        ("start_seen", pa.bool_(), "The capture saw the session begin."),
        ("isolation_level", pa.int8(), "0 read uncommitted, 1 read committed."),
    ),
)

GROUPS = (
    KEY[0],
    *columns(
        ("time", TIME, "When it happened: end of the answer, or of the request that had none."),
        ("group_id", pa.string(), "Group that it is about."),
        ("protocol", pa.string(), "`classic`, `consumer` (KIP-848), `share`, `streams`, `connect`."),
        (
            "event",
            pa.string(),
            "`join`, `sync` (or a newer heartbeat that was answered with an assignment), `heartbeat_failed`, `leave`, "
            "`expired` (inferred, only where proven), `commit_failed`, `coordinator_moved`, `coordinator_refused` "
            "(FindCoordinator: no right to the group, or no name for one).",
        ),
        ("member_id", pa.string(), "Member that it is about."),
        ("group_instance_id", pa.string(), "Its static name (KIP-345)."),
        ("client_id", pa.string(), "Its client id."),
        ("client_ip", pa.string(), "Its address."),
        ("generation", pa.int32(), "Generation of the group, or epoch of the member."),
        ("session_timeout_ms", pa.int64(), "JoinGroup: how long the member may be silent."),
        (
            "rebalance_timeout_ms",
            pa.int64(),
            "JoinGroup 1 and later, and the newer heartbeats where they say it: how long it may take to join, which "
            "clients set to their longest time between polls (`max.poll.interval.ms`).",
        ),
        ("error", pa.string(), "Error of the answer; null on success."),
    ),
    *_EXCHANGE,
    *columns(
        (
            "subscribed",
            STRINGS,
            "Topics that a member subscribes to, as its join or its newer heartbeat says; null: not said.",
        ),
        ("reason", pa.string(), "Why it joins or leaves, as JoinGroup 8 and LeaveGroup 5 say (KIP-800)."),
    ),
)

# fmt: off
REBALANCES = (
    KEY[0],
    *columns(
        ("group_id", pa.string(), "Group that it is about."),
        ("protocol", pa.string(), "As in `groups`."),
        ("generation", pa.int32(), "Generation or group epoch that it led to; null: none was seen."),
        ("began", TIME, "The event that set it off, else the first sign of it."),
        ("ended", TIME, "The last member had its assignment; null: not seen."),
        ("trigger", pa.string(),
         "`join`, `leave`, `expired`, `metadata` (a member with other topics, or partitions that the group never had), "
         "`coordinator` (it moved, and a member joined elsewhere), `unknown`."),
        ("trigger_member", pa.string(),
         "Member that set it off, where one did; of `unknown`: one that joined again by itself."),
        ("evidence", EVIDENCE, "Exchange that shows the trigger."),
        ("members_before", STRINGS, "Members before, as far as seen."),
        ("members_after", STRINGS, "Members after."),
        ("assignment_before", ASSIGNMENT,
         "Who had which partition before, as far as seen. Of Connect: connector and task (null: the connector itself); "
         "of streams groups: subtopology and task."),
        ("assignment_after", ASSIGNMENT, "Who had which after."),
        ("stopped", STOPPED,
         "By member: the largest gap in its fetched records, from its last before to its first after; those without "
         "either are not listed. Of a member that expired: from its last records to the first that others got of its "
         "partitions."),
    ),
)
# fmt: on

# fmt: off
OFFSETS = (
    KEY[0],
    Column("time", TIME, "When it happened."),
    Column("group_id", pa.string(), "Group; null: a reader without one."),
    *TOPIC_PARTITION,
    *columns(
        ("offset", pa.int64(), "Offset committed or gone to; null: a refused reset."),
        ("previous", pa.int64(), "The one before it of this group and partition; null: not seen."),
        ("step", pa.int64(), "`offset - previous`; below 0: a step back."),
        ("kind", pa.string(),
         "`commit`, `txn_commit`, `reset`, `zookeeper` (a v0 commit, or ZooKeeper itself), `replica` (a record of "
         "`__consumer_offsets`)."),
        ("member_id", pa.string(), "Member that committed."),
        ("client_id", pa.string(), "Its client id."),
        ("leader_epoch", pa.int32(), "Leader epoch committed; null: none."),
        ("error", pa.string(), "Error of the answer; null on success."),
    ),
    *_EXCHANGE,
    *columns(
        ("target", pa.string(),
         "Of a reset by ListOffsets: what the client asked for: `latest`, `earliest`, `timestamp`, `max_timestamp`, "
         "`earliest_local`, `latest_tiered`; null: it did not ask, or that was not decoded."),
    ),
)
# fmt: on

# fmt: off
TRANSACTIONS = (
    KEY[0],
    *columns(
        ("transactional_id", pa.string(), "Transactional id; null where only the producer's id was seen."),
        ("producer_id", pa.int64(), "Producer id."),
        ("producer_epoch", pa.int16(), "Its epoch."),
        ("began", TIME, "First request of the transaction."),
        ("ended", TIME, "End of the answer to what ended it; null: not seen."),
        ("outcome", pa.string(),
         "`committed`, `aborted`, `fenced`, `open` (the capture ended first), `unknown` (its end was not seen, or the "
         "capture lacks requests that may have been its end)."),
        ("duration_us", pa.int64(), "`ended - began`; null where that is negative (the clock stepped back)."),
        ("timeout_ms", pa.int64(), "When the coordinator aborts it, as InitProducerId said; null: not seen."),
        ("partitions", PLACES, "Partitions that it wrote or added."),
        ("records", pa.int64(), "Records in its batches; null where that is not known."),
        ("offsets", COMMITS, "Offsets committed in it."),
        ("fenced_by", pa.string(), "Client that took over its transactional id: `client_id@client_ip`."),
        ("client_id", pa.string(), "Client id of its producer."),
        ("evidence", EVIDENCE, "Exchange that ended it, else the last of it."),
    ),
)
# fmt: on

# fmt: off
JOURNEYS = (
    KEY[0],
    *columns(
        ("topic", pa.string(), "Topic; null where no message of the capture point names its id."),
        ("topic_id", pa.string(), "Topic id, where the Produce request says it."),
        ("partition", pa.int32(), "Partition index."),
        ("base_offset", pa.int64(),
         "Offset of its first record, as the answer says; with acks=0, where a reader's answer held it. Null: "
         "see `reason`."),
        ("last_offset", pa.int64(), "Offset of its last record; null too where only compressed content says how many."),
        ("records", pa.int64(), "Records in it, as `record_count` of `partitions`."),
        ("record_bytes", pa.int64(), "Its size as it was produced."),
        ("producer_client", pa.string(), "Client id of its producer."),
        ("produced", EVIDENCE, "The Produce exchange."),
        ("created", TIME,
         "Time of its first record, as the producer's clock has it; null where the batch says LogAppendTime, or only "
         "compressed content (of the older formats) has it."),
        ("sent", TIME, "First byte of the Produce request."),
        ("received", TIME, "Its last byte: the broker has the batch."),
        ("acked", TIME, "Last byte of the answer."),
        ("kind", pa.string(), "Of the reader: `consumer`, `replica`, `share`; null: nobody read it, or see `reason`."),
        ("group_id", pa.string(), "Group of the reader; null: it takes part in none, or in several."),
        ("reader_client", pa.string(), "Client id of the reader, in a group of the first of them."),
        ("broker_id", pa.int32(), "Node id of a follower."),
        ("fetched", TIME, "Last byte of the answer that first held any of it for this reader."),
        ("fetches", pa.int64(), "How many answers brought its end to this reader; 1: it was delivered once."),
        ("committed", TIME,
         "First commit of the group behind its last record since then, accepted and, of a transaction, committed."),
        ("outcome", pa.string(), "Of its transaction, as in `transactions`; null: it is in none."),
        ("reason", pa.string(),
         "Why a side is null: `not read`; `no acknowledgement` (acks=0; where its offset is null, no answer to a fetch "
         "shows it); `unanswered`; "
         "`answer not captured`, `request not captured` (or not whole, of the Produce exchange); `reader not captured` "
         "(a fetch that may have brought it has no whole answer); `absent offsets` (an answer that spans it lacks "
         "batches, as after compaction, and `--records none` does not say which)."),
    ),
)
# fmt: on

FINDINGS = (
    KEY[0],
    *columns(
        ("severity", pa.string(), "`note`, `warning`, `error`."),
        ("code", pa.string(), "Rule: `kwire findings --explain CODE`."),
        ("family", pa.string(), "Family of rules that it belongs to."),
        ("text", pa.string(), "One sentence."),
        ("who", WORDS, "Whom it is about: `client_id`, `client_ip`, `broker`, `connection`."),
        ("what", WORDS, "What: `topic`, `partition`, `group_id`, `api` and others."),
        ("count", pa.int64(), "How many exchanges, batches or events."),
        ("since", TIME, "First of them."),
        ("until", TIME, "Last of them."),
        ("cause", pa.string(), "Why, where that is known."),
        ("proven", pa.bool_(), "The cause is proven; false: probable."),
        ("advice", pa.string(), "What to do."),
        ("first", EVIDENCE, "First piece of evidence."),
        ("worst", EVIDENCE, "Worst piece of evidence."),
        ("last", EVIDENCE, "Last piece of evidence."),
    ),
)
