-- How well do producers batch and compress, by topic and codec?
-- Needs `--records batches` or more; the compression ratio needs batches that were opened (`meta`, `full`).
-- topic: name of the topic, or its id where no message said the name.
-- codec: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
-- requests: exchanges that hold batches of the topic with this codec, by connection.
-- batches: record batches.
-- records: records in them.
-- batches_per_request: on average.
-- records_per_batch: on average; few mean that `linger.ms` or `batch.size` are small.
-- bytes_per_batch: on average.
-- compression_ratio: size of the records decompressed by their size as sent, headers of batches left out of both; null
--   where no batch was opened.
-- bad_checksums: batches whose checksum is wrong.
SELECT topic, codec, sum(requests) AS requests, sum(batches) AS batches, sum(records) AS records,
  try_divide(sum(batches), sum(requests)) AS batches_per_request,
  try_divide(sum(records), sum(batches)) AS records_per_batch,
  CAST(try_divide(sum(batch_bytes), sum(batches)) AS BIGINT) AS bytes_per_batch,
  try_divide(sum(uncompressed_bytes), sum(opened_bytes)) AS compression_ratio, sum(bad_checksums) AS bad_checksums
FROM batch_use
WHERE side = 'produce'
GROUP BY topic, codec
ORDER BY batches DESC, topic, codec
