-- Execs that have begun on this host and whose traces are not yet removed. A row is written before
-- the host is changed.
CREATE TABLE execs (
  id TEXT PRIMARY KEY,
  account_id TEXT NOT NULL,
  disk_ids TEXT NOT NULL, -- separated by spaces
  request_id TEXT NOT NULL,
  begun_at TEXT NOT NULL
) STRICT;
