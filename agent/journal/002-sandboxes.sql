-- The sandboxes of this host: the truth about each, wherever else it is repeated.
CREATE TABLE sandboxes (
  id TEXT PRIMARY KEY,
  account_id TEXT NOT NULL,
  config TEXT NOT NULL, -- JSON: SandboxConfig
  environment TEXT NOT NULL, -- JSON: of every process
  root_disk_id TEXT NOT NULL UNIQUE,
  parent_id TEXT, -- the sandbox that it was forked from
  vm_id TEXT NOT NULL UNIQUE, -- names its directory and control groups
  uid INTEGER NOT NULL UNIQUE, -- user of its machine, as long as the sandbox lives
  slot INTEGER UNIQUE, -- network, while its machine may run
  boot_id TEXT NOT NULL, -- the guest's, drawn anew for each boot
  state TEXT NOT NULL,
  checkpoint TEXT, -- names what it could go on from
  expires_at INTEGER, -- milliseconds since the epoch; when it has run for as long as it may
  idle_since INTEGER, -- milliseconds since the epoch; none while something uses it
  revision INTEGER NOT NULL,
  created_at TEXT NOT NULL,
  last_active_at TEXT NOT NULL,
  running_at TEXT,
  finished_at TEXT,
  exit_reason TEXT,
  exit_message TEXT,
  is_deleting INTEGER NOT NULL -- 1: what is left of it is on its way out
) STRICT;

CREATE TABLE sandbox_execs (
  position INTEGER PRIMARY KEY AUTOINCREMENT, -- order of execution
  id TEXT NOT NULL UNIQUE,
  sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
  command TEXT NOT NULL,
  timeout_at INTEGER, -- milliseconds since the epoch
  status TEXT NOT NULL,
  ending TEXT, -- the status that it will have, written before it is killed
  started_at TEXT NOT NULL,
  finished_at TEXT,
  exit_code INTEGER,
  exit_reason TEXT,
  execute_time_ms INTEGER,
  dropped_bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX sandbox_execs_of ON sandbox_execs (sandbox_id, position);
