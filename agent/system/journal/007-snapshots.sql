-- Snapshots of sandboxes that this host holds. A row is written before the host makes anything of a
-- snapshot, and removed when nothing is left of it.
CREATE TABLE snapshots (
  id TEXT PRIMARY KEY, -- also names its directory, as a sandbox's vm_id does
  account_id TEXT NOT NULL,
  name TEXT NOT NULL,
  sandbox_id TEXT NOT NULL, -- the sandbox that it was made of
  config TEXT NOT NULL, -- JSON: SandboxConfig of that sandbox
  environment TEXT NOT NULL, -- JSON: environment of every process
  image TEXT, -- JSON: SandboxBase; null for the default image of its host
  network TEXT NOT NULL,
  network_sealed TEXT,
  root_disk_id TEXT NOT NULL UNIQUE,
  uid INTEGER NOT NULL UNIQUE, -- owner of its empty top layer; no process has it
  state TEXT NOT NULL, -- creating, ready, failed, deleting
  has_memory INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL,
  failure_reason TEXT,
  revision INTEGER NOT NULL,
  created_at TEXT NOT NULL
) STRICT;
ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT; -- the snapshot that it was created from
