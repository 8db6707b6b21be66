-- What this host has begun and not yet cleared away. Written before the host is touched.
CREATE TABLE execs (
  id TEXT PRIMARY KEY,
  account_id TEXT NOT NULL,
  disk_ids TEXT NOT NULL, -- separated by spaces
  request_id TEXT NOT NULL,
  begun_at TEXT NOT NULL
) STRICT;
