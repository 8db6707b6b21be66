-- Addresses that the names of a policy's rules had when the memory was saved: by rule, with the time
-- until which each counts. NULL where there are none.
ALTER TABLE sandboxes ADD COLUMN name_addresses TEXT;
ALTER TABLE snapshots ADD COLUMN name_addresses TEXT;
