-- From here on time limits count by the host's monotonic clock, which no step of the wall clock moves:
-- expires_at and idle_since are milliseconds of that clock. It begins anew when the host boots, but no
-- session outlives a boot. Sessions that run during the upgrade begin to count anew.
ALTER TABLE sandboxes ADD COLUMN running_since INTEGER; -- milliseconds of the monotonic clock
UPDATE sandboxes SET expires_at = NULL, idle_since = NULL;
