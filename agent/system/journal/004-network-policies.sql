-- What the sandbox may connect to: the policy as it is shown, and sealed with its secrets if it has
-- any. Sandboxes of before had no network.
ALTER TABLE sandboxes ADD COLUMN network TEXT NOT NULL DEFAULT '{"egress":{"default":"deny"}}';
ALTER TABLE sandboxes ADD COLUMN network_sealed TEXT;
