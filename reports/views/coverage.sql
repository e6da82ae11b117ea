-- Where did the captured bytes go?
-- Captured payload of Kafka connections is the sum of the parts `duplicate`, `decoded`, `opaque`, `skipped` and
-- `incomplete`; `missing` was never captured and stands apart.
-- capture: name of the capture point.
-- part: `duplicate` (retransmission, second sighting), `decoded`, `opaque` (not decoded), `skipped` (looking for the
--   next message), `incomplete` (of messages of which bytes are missing), `missing`.
-- reason: opaque: why; missing: `gap` (not captured) or `snaplen` (cut off).
-- bytes: how many.
-- share: of all captured payload of the capture point, from 0 to 1.
WITH parts AS (
  SELECT capture, payload_bytes, stack(14,
    'decoded', NULL, decoded_bytes,
    'duplicate', NULL, duplicate_bytes,
    'opaque', 'encrypted', opaque_encrypted_bytes,
    'opaque', 'sasl', opaque_sasl_bytes,
    'opaque', 'unknown_api', opaque_unknown_api_bytes,
    'opaque', 'unsupported_version', opaque_unsupported_version_bytes,
    'opaque', 'malformed', opaque_malformed_bytes,
    'opaque', 'trailing', opaque_trailing_bytes,
    'opaque', 'limit', opaque_limit_bytes,
    'opaque', 'prefix', opaque_prefix_bytes,
    'skipped', NULL, skipped_bytes,
    'incomplete', NULL, incomplete_bytes,
    'missing', 'gap', gap_bytes,
    'missing', 'snaplen', snaplen_bytes
  ) AS (part, reason, bytes)
  FROM connections
)
SELECT capture, part, reason, sum(bytes) AS bytes, try_divide(sum(bytes), sum(payload_bytes)) AS share
FROM parts
GROUP BY capture, part, reason
ORDER BY capture, bytes DESC, part, reason
