"""What a pserver measures of itself, and what each gauge says."""

__all__ = [
    "BODY_GAUGES",
    "HELD",
    "LOG_GAUGES",
    "ROW_GAUGES",
    "SERVICE_GAUGES",
    "TABLE_GAUGES",
]

TABLE_GAUGES = {
    "rows": "Rows (dense: values) of a table on this server.",
    "bytes": "Memory that a table takes on this server.",
    "admitted": "Ids that a table's entry gave a row on this server, in this process's life; 0 "
    "without an entry and `max_rows`.",
    "refused": "Times that it gave an id none, or the table was full: each push of one counts.",
    "removed": "Rows that were removed on this server, in this process's life.",
    "pulls": "Reads of a table.",
    "pushes": "Gradients or differences taken for a table.",
    "version": "Pushes (sync: steps) applied to a table in this job.",
    "guarded": "Updates whose length the guard of async and GEO has looked at, since the last "
    "load; of a sparse table each of its parts on this server counts.",
    "shortened": "Those of them that it has shortened.",
    "cold_rows": "Rows of a table on this server that are on disk alone; 0 without a memory "
    "budget, as the next ones.",
    "cold_wanted": "Ids that were asked for and weren't in memory.",
    "cold_read": "Those of them that were read from disk.",
    "cold_written": "Rows that left memory, and were written as they had changed.",
    "cold_prefetched": "Those of the rows read that came before they were needed.",
    "cold_prefetched_used": "Those of them that were used before they left memory again.",
    "cold_file_bytes": "Disk that rows take.",
    "rate_power": "Power of the number of workers by which the guard divides the rate now: 0 "
    "for the whole rate, 1 for the N-th part; the largest of the table's parts.",
}
"""Facts about each table that are measured, and what they say."""

ROW_GAUGES = {
    "ages": "Steps, hours or days since rows of a table that evicts some, or has an accessor, "
    "were pushed: a quantile of some rows on this server.",
    "scores": "Scores of rows of a table with an accessor: the same.",
}
"""Facts about each table's rows that are measured by quantiles."""

SERVICE_GAUGES = {
    "requests": "Requests answered.",
    "request_seconds": "Seconds between taking a request and its answer, waiting included, but "
    "for that of a step for other workers.",
}

BODY_GAUGES = {
    "receiving": "Memory of requests that are being received.",
    "sending": "Bytes of answers that haven't left as yet.",
}
"""Of all workers together."""

LOG_GAUGES = {
    "waiting_bytes": "Bytes of changes that aren't on this server's disk yet.",
    "bytes_since_snapshot": "Bytes of the log behind the newest snapshot, which a restart "
    "executes.",
    "refusing": "1 while the disk takes no change, which is refused then; else 0.",
}
"""Of a training that is kept on the disk; 0 where none is."""

HELD = "Seconds for which pushes waited for checkpoints, in all."
