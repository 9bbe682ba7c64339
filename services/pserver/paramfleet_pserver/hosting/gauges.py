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
    "rows": "Rows of a table on this server; for a dense table, values.",
    "bytes": "Memory of a table on this server: rows, index, and the sketch of an entry, "
    "which is most of it while a table is small. max_bytes counts only rows and "
    "index.",
    "admitted": "Ids to which this server gave a row because the table's entry admitted "
    "them, since the process started; 0 without an entry and max_rows.",
    "refused": "Times that an id got no row, because the entry did not admit it or the "
    "table was full. Each push of an id counts.",
    "removed": "Rows that were removed on this server, since the process started.",
    "pulls": "Pulls of a table.",
    "pushes": "Gradients or differences that were received for a table.",
    "version": "Pushes (sync: steps) that were applied to a table in this job: the largest.",
    "guarded": "Updates whose length the guard of async and GEO has checked, since the "
    "last load. For a sparse table each of its parts on this server counts.",
    "shortened": "Updates that the guard has shortened. Divide by paramfleet_table_guarded "
    "to get the share.",
    "cold_rows": "Rows of a table that are only on disk on this server; 0 without a memory "
    "budget, as are all cold metrics.",
    "cold_wanted": "Times that an id was requested that was not in memory.",
    "cold_read": "Times that a requested row was read from disk.",
    "cold_written": "Rows that were written to disk when they left memory, because they "
    "had changed.",
    "cold_prefetched": "Rows that were read from disk before they were needed; "
    "paramfleet_table_cold_read contains them.",
    "cold_prefetched_used": "Prefetched rows that were used before they left memory again.",
    "cold_file_bytes": "Disk space that rows take.",
    "rate_power": "The guard divides the learning rate by the number of workers N to this "
    "power: 0 is the whole rate, 1 is a division by N. The largest of the "
    "table's parts.",
}
"""Facts about each table that are measured, and what they say."""

ROW_GAUGES = {
    "ages": "Time since rows were last pushed, in steps, hours or days: a quantile of a "
    "sample of the rows on this server. Only of tables with eviction or an "
    "accessor.",
    "scores": "Scores of the rows of a table with an accessor: a quantile of a sample.",
}
"""Facts about each table's rows that are measured by quantiles."""

SERVICE_GAUGES = {
    "requests": "Requests answered.",
    "request_seconds": "Seconds from receiving a request to its answer, summed. Waiting "
    "counts, except a step's wait for other workers. Divide by "
    "paramfleet_pserver_requests to get the mean.",
}

BODY_GAUGES = {
    "receiving": "Memory of requests that are being received.",
    "sending": "Bytes of answers that are not sent yet.",
}
"""Of all workers together."""

LOG_GAUGES = {
    "waiting_bytes": "Bytes of changes that are not on this server's disk yet.",
    "bytes_since_snapshot": "Bytes of the log after the newest snapshot. A restart replays "
    "them.",
    "refusing": "1 while the disk fails or is full, so that changes are refused; else 0.",
}
"""Of a training that is kept on the disk; 0 where none is."""

HELD = "Seconds in which pushes waited for checkpoints, summed."
