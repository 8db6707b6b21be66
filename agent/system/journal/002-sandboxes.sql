-- The sandboxes of this host: the truth about each; every other copy may be out of date.
CREATE TABLE sandboxes (
  id TEXT PRIMARY KEY,
  account_id TEXT NOT NULL,
  config TEXT NOT NULL, -- JSON: SandboxConfig
  environment TEXT NOT NULL, -- JSON: environment of every process
  root_disk_id TEXT NOT NULL UNIQUE,
  parent_id TEXT, -- the sandbox that it was forked from
  vm_id TEXT NOT NULL UNIQUE, -- names its directory and control groups
  uid INTEGER NOT NULL UNIQUE, -- user of its machine, for as long as the sandbox exists
  slot INTEGER UNIQUE, -- network slot, while its machine may run
  boot_id TEXT NOT NULL, -- the guest's boot id, a new one for each boot
  state TEXT NOT NULL,
  checkpoint TEXT, -- names the state that a resume, start or fork would begin with
  expires_at INTEGER, -- milliseconds since the epoch; when its maximum running time ends
  idle_since INTEGER, -- milliseconds since the epoch; null while something uses it
  revision INTEGER NOT NULL,
  created_at TEXT NOT NULL,
  last_active_at TEXT NOT NULL,
  running_at TEXT,
  finished_at TEXT,
  exit_reason TEXT,
  exit_message TEXT,
  is_deleting INTEGER NOT NULL -- 1: its deletion has begun
) STRICT;

CREATE TABLE sandbox_execs (
  position INTEGER PRIMARY KEY AUTOINCREMENT, -- order of execution
  id TEXT NOT NULL UNIQUE,
  sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
  command TEXT NOT NULL,
  timeout_at INTEGER, -- milliseconds since the epoch
  status TEXT NOT NULL,
  ending TEXT, -- the status that its end will have, written before the command is killed
  started_at TEXT NOT NULL,
  finished_at TEXT,
  exit_code INTEGER,
  exit_reason TEXT,
  execute_time_ms INTEGER,
  dropped_bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX sandbox_execs_of ON sandbox_execs (sandbox_id, position);
