-- The disks that sandboxes of this host mount. A row is written before the disk's mount and its lease
-- are kept for the sandbox, and removed after both were given back.
CREATE TABLE disk_holds (
  disk_id TEXT NOT NULL,
  sandbox_id TEXT NOT NULL,
  account_id TEXT NOT NULL,
  PRIMARY KEY (disk_id, sandbox_id)
) STRICT;
